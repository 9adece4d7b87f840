"""Answers that wait for a label: which one a label is for, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from jellybean.ledger import KeptAnswer, Ledger, LedgerError, keep_answers, waiting_answers
from jellybean.ledger.answers import AnswerName, label_answer


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    at_file = request.param == "sqlite"
    found = Ledger(str(tmp_path / "ledger.db") if at_file else request.getfixturevalue("postgres")())
    yield found
    found.close()


def answer(id_: str, client: str = "ann", at_s: float = 1.0, outputs: bytes = b"right") -> KeptAnswer:
    return KeptAnswer(client, id_, at_s, "flow", "p", "", "", outputs)


def judge(outputs: bytes) -> float:
    return float(outputs == b"right")


def test_a_label_for_one_of_several_answers_with_an_id_is_refused(ledger: Ledger) -> None:
    keep_answers(ledger, [answer("1"), answer("1", outputs=b"wrong"), answer("2")], 1.0)
    with pytest.raises(LedgerError, match=r"2 answers to requests '1' of one client wait for a label.*of its own"):
        label_answer(ledger, AnswerName("flow", "1"), judge, 2.0)
    assert waiting_answers(ledger, "flow") == 3, "both are kept"
    assert label_answer(ledger, AnswerName("flow", "2"), judge, 2.0) == 1.0


def test_an_id_that_is_used_again_after_its_label_is_the_new_answer_s(ledger: Ledger) -> None:
    keep_answers(ledger, [answer("1")], 1.0)
    assert label_answer(ledger, AnswerName("flow", "1"), judge, 2.0) == 1.0
    with pytest.raises(LedgerError, match="has its label already"):
        label_answer(ledger, AnswerName("flow", "1"), judge, 2.0)
    keep_answers(ledger, [answer("1", outputs=b"wrong")], 3.0)
    assert label_answer(ledger, AnswerName("flow", "1"), judge, 4.0) == 0.0


def test_clients_with_one_id_are_told_apart_by_name(ledger: Ledger) -> None:
    keep_answers(ledger, [answer("1", "ann"), answer("1", "bob", outputs=b"wrong")], 1.0)
    with pytest.raises(LedgerError, match="several clients sent a request '1': ann, bob"):
        label_answer(ledger, AnswerName("flow", "1"), judge, 2.0)
    assert label_answer(ledger, AnswerName("flow", "1", "bob"), judge, 2.0) == 0.0


def test_only_the_last_answers_wait_and_labelled_ones_stay(ledger: Ledger) -> None:
    keep_answers(ledger, [answer(str(number)) for number in range(10)], 1.0, most_waiting=100)
    label_answer(ledger, AnswerName("flow", "0"), judge, 2.0)
    keep_answers(ledger, [answer("10")], 2.0, most_waiting=3)
    assert waiting_answers(ledger, "flow") == 3
    with pytest.raises(LedgerError, match="has its label already"):
        label_answer(ledger, AnswerName("flow", "0"), judge, 2.0)
    with pytest.raises(LedgerError, match="no answer to a request '7' is kept"):
        label_answer(ledger, AnswerName("flow", "7"), judge, 2.0)
    assert label_answer(ledger, AnswerName("flow", "8"), judge, 2.0) == 1.0


def test_a_ledger_from_elsewhere_has_no_triggers(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    ledger = Ledger(path)
    keep_answers(ledger, [answer("1")], 1.0)
    with ledger.changing() as connection:
        connection.execute(text("CREATE TRIGGER forged AFTER INSERT ON ledger_answers BEGIN SELECT 1; END"))
    ledger.close()
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match="it has a trigger 'forged', as no file of JellyBean"):
        keep_answers(ledger, [answer("2")], 1.0)
    ledger.close()


def test_a_ledger_of_an_earlier_version_gets_the_index(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    ledger = Ledger(path)
    keep_answers(ledger, [answer("1")], 1.0)
    with ledger.changing() as connection:
        connection.execute(text("DROP INDEX ledger_answers_waiting"))
    ledger.close()
    ledger = Ledger(path)
    keep_answers(ledger, [answer("2")], 1.0)
    with ledger.reading() as connection:
        names = {index["name"] for index in inspect(connection).get_indexes("ledger_answers")}
    ledger.close()
    assert "ledger_answers_waiting" in names
