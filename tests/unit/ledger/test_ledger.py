"""The ledger's database: intervals, whoever writes them is killed when, and what old ones become."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy import func, select

from jellybean.ledger import (
    KINDS,
    LATENCY_BOUNDS_S,
    RECEIVED,
    By,
    EventKind,
    Ledger,
    LedgerError,
    Span,
    all_events,
    compact,
    cost,
    served,
    tables,
)
from tests.support.at_once import run_at_once
from tests.support.made_up_run import BEGIN_S, DAY_S, PLAN, Serving


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    found = Ledger(url, "gateway")
    yield found
    found.close()


@pytest.mark.slow
def test_all_sums_are_the_cost_by_hand(ledger: Ledger) -> None:
    serving = Serving()
    first = serving.read(0.0)
    assert ledger.write(first) is None
    paid_before = serving.sent_bytes / 2**30 * 9.0
    for at_s in (10.0, 25.0, 3700.0, DAY_S + 5.0):
        ledger.write(serving.read(at_s))
    expected = serving.usd(DAY_S + 5.0) - paid_before
    for by in By:
        lines = cost(ledger, by)
        assert sum(line.usd for line in lines) == pytest.approx(expected, rel=1e-12), by
        assert len({line.name for line in lines}) == len(lines)
    names = {by: {line.name for line in cost(ledger, by)} for by in By}
    assert names[By.SITE] == {"store-1", ""}
    assert names[By.LINK] == {"", "store -> cloud"}
    assert names[By.VARIANT] == {"detect small", "detect big", "read only"}
    assert names[By.CLIENT] == {"ann", "bob"}
    assert names[By.TIER] == {"store", "cloud"}
    assert names[By.WORKER] == {"store-1/box", "gpu"}
    done = {key.client: row[KINDS["answered"]] for key, row in serving.requests.items()}
    before = {key.client: row[KINDS["answered"]] for key, row in first.requests.items()}
    assert {line.name: line.done for line in cost(ledger, By.CLIENT)} == {n: done[n] - before[n] for n in done}
    ((flow),) = cost(ledger, By.WORKFLOW)
    assert flow.done == sum(done.values()) - sum(before.values())


def test_latencies_are_those_of_the_histogram(ledger: Ledger) -> None:
    serving = Serving()
    first = serving.read(0.0)
    ledger.write(first)
    for at_s in (10.0, DAY_S, DAY_S + 10.0):
        last = serving.read(at_s)
        ledger.write(last)
    (one, other) = served(ledger, By.DAY)
    totals = [row[RECEIVED] for reading in (first, last) for row in reading.requests.values()]
    assert one.received + other.received == sum(totals[2:]) - sum(totals[:2])
    for line in (one, other):
        assert line.received == sum(line.ends.values()) == line.ends["answered"] + line.ends["shed"]
        assert 0.0005 <= line.latency_p50_s <= line.latency_p90_s <= line.latency_p99_s <= LATENCY_BOUNDS_S[3]
    with pytest.raises(LedgerError, match="by day or hour, not by client"):
        served(ledger, By.CLIENT)


def test_a_span_has_the_intervals_that_begin_in_it(ledger: Ledger) -> None:
    serving = Serving()
    for at_s in (0.0, 10.0, DAY_S, 2 * DAY_S):
        ledger.write(serving.read(at_s))
    by_day = {line.name: line for line in cost(ledger, By.DAY)}
    assert list(by_day) == ["2024-10-04", "2024-10-05"]
    (second,) = cost(ledger, By.DAY, Span(BEGIN_S + DAY_S, BEGIN_S + 2 * DAY_S))
    assert second == by_day["2024-10-05"]
    assert cost(ledger, By.OPERATOR, Span(BEGIN_S + 9 * DAY_S)) == ()


def test_a_writer_that_is_killed_before_its_transaction_ends_counts_nothing_twice(
    url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving()
    ledger.write(serving.read(0.0))
    begun = serving.sent_bytes
    with monkeypatch.context() as patch:
        patch.setattr("jellybean.ledger.ledger.reading_to_text", lambda _reading: 1 / 0)  # after all lines
        with pytest.raises(ZeroDivisionError):
            ledger.write(serving.read(50.0))
    assert cost(ledger, By.DAY) == ()
    ledger.close()
    again = Ledger(url, "gateway")
    again.write(serving.read(60.0))
    expected = serving.usd(60.0) - begun / 2**30 * 9.0
    assert sum(line.usd for line in cost(again, By.OPERATOR)) == pytest.approx(expected, rel=1e-12)
    again.close()


def test_workers_that_did_not_answer_for_a_while_are_not_counted_again(ledger: Ledger) -> None:
    serving = Serving()
    first = serving.read(0.0)
    ledger.write(first)
    for at_s in (10.0, 20.0, 30.0):
        reading = serving.read(at_s)
        away = replace(reading, work={}, sent={}, is_first=True)  # as of a gateway that was started again
        ledger.write(away if at_s == 20.0 else reading)
    done = {line.name: line.done for line in cost(ledger, By.OPERATOR)}
    total = sum(work.completed for work in reading.work.values()) - sum(work.completed for work in first.work.values())
    assert sum(done.values()) == total
    traffic = sum(line.traffic_usd for line in cost(ledger, By.LINK))
    begun = sum(sent.sent_bytes for sent in first.sent.values())
    assert traffic == pytest.approx((serving.sent_bytes - begun) / 2**30 * 9.0)


def test_two_gateways_write_beside_each_other(url: str, ledger: Ledger) -> None:
    other, mine, theirs = Ledger(url, "other"), Serving(1), Serving(2)
    for at_s in (0.0, 30.0):
        ledger.write(mine.read(at_s))
        other.write(replace(theirs.read(at_s), run="theirs"))
    assert {run for (run,) in _rows(ledger, select(tables.intervals.c.run))} == {"run", "theirs"}
    workers_usd = sum(line.workers_usd for line in cost(other, By.WORKER))
    assert workers_usd == pytest.approx(2 * 30 * (0.36 + 3.6) / 3600)
    other.close()


@pytest.mark.slow
def test_old_intervals_become_hours_and_days_with_the_same_sums(ledger: Ledger) -> None:
    serving = Serving()
    times_s = [0.0, *itertools.accumulate([300.0] * 400), 20 * DAY_S, 90 * DAY_S, 90 * DAY_S + 60]
    for at_s in times_s:
        ledger.write(serving.read(at_s))
    before = {by: cost(ledger, by) for by in By if by is not By.HOUR}
    latencies = _rows(ledger, select(func.sum(tables.latencies.c.answers)))
    now_s = BEGIN_S + 90 * DAY_S + 120
    assert compact(ledger, now_s) > 300
    assert compact(ledger, now_s) == 0
    for by, lines in before.items():
        after = {line.name: line for line in cost(ledger, by)}
        assert after.keys() == {line.name for line in lines}
        for line in lines:
            assert after[line.name].usd == pytest.approx(line.usd, rel=1e-9), by
            assert (after[line.name].done, after[line.name].failed) == (line.done, line.failed)
    lengths = [length for (length,) in _rows(ledger, select(tables.intervals.c.length))]
    assert {length: lengths.count(length) for length in set(lengths)} == {"day": 3, "live": 1}
    assert _rows(ledger, select(func.sum(tables.latencies.c.answers))) == latencies


def test_events_are_what_readings_tell(ledger: Ledger) -> None:
    serving = Serving()
    other = replace(PLAN, hash="p2")
    for reading in (
        replace(serving.read(0.0), is_first=True),
        serving.read(10.0),
        replace(serving.read(20.0), is_first=True, note="7 requests in flight were lost"),
        replace(serving.read(30.0), plans=(PLAN, other)),
        replace(serving.read(40.0), plans=(other,), serving="p2"),
        replace(serving.read(50.0), plans=(other,), serving="p2", is_last=True),
        replace(serving.read(900.0), plans=(other,), serving="p2", is_first=True, run="next"),
    ):
        ledger.write(reading)
    assert [(event.kind, event.at_unix_s - BEGIN_S, event.plan, event.note) for event in all_events(ledger)] == [
        (EventKind.UP, 0.0, "p1", ""),
        (EventKind.RESTART, 20.0, "p1", "7 requests in flight were lost"),
        (EventKind.PLAN, 40.0, "p2", "in place of p1"),
        (EventKind.DOWN, 50.0, "p2", ""),
        (EventKind.UP, 900.0, "p2", ""),
    ]
    assert cost(ledger, By.PLAN, Span(BEGIN_S + 50.0))[0].workers_usd == 0.0  # between the runs


def test_events_that_come_again_within_a_minute_are_all_told(ledger: Ledger) -> None:
    """A gateway that crashes again and again, and plans that take turns."""
    serving = Serving()
    other = replace(PLAN, hash="p2")
    ledger.write(replace(serving.read(0.0), is_first=True))
    for number in range(3):
        ledger.write(replace(serving.read(10.0 + number), is_first=True))
    for number, plan in enumerate((other, PLAN, other)):
        ledger.write(replace(serving.read(20.0 + number), plans=(plan,), serving=plan.hash))
    assert [(event.kind.value, event.plan) for event in all_events(ledger)] == [
        ("up", "p1"), *[("restart", "p1")] * 3, ("plan", "p2"), ("plan", "p1"), ("plan", "p2"),
    ]  # fmt: skip


def test_a_reading_beside_one_that_tells_events_tells_none(ledger: Ledger) -> None:
    ledger.write(replace(Serving().read(0.0), is_first=True, tells_events=False))
    assert all_events(ledger) == ()


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100, encoding="utf-8")
    with pytest.raises(LedgerError, match="file is not a database"):
        cost(Ledger(f"sqlite:///{tmp_path / 'text'}"), By.DAY)
    with pytest.raises(LedgerError, match="Check the file"):
        Ledger("no://url")
    with pytest.raises(LedgerError, match="unable to open"):
        cost(Ledger(f"{tmp_path}/none/ledger.db"), By.DAY)


def test_a_file_that_cannot_be_used_is_closed(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100, encoding="utf-8")
    with pytest.raises(LedgerError) as caught:
        all_events(Ledger(str(tmp_path / "text")))
    assert caught.value.__traceback__ is not None  # which has the connection
    assert str(tmp_path / "text") not in {file.path for file in psutil.Process().open_files()}


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
def test_processes_that_open_a_new_ledger_at_once_all_can(url: str) -> None:
    run_at_once("tests.unit.ledger.opening", 3, url)


def test_a_path_may_hold_what_means_something_in_a_url(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c%20 d.db"
    ledger = Ledger(str(path), "gateway")
    ledger.write(Serving().read(0.0))
    ledger.close()
    assert path.exists()


@pytest.mark.parametrize("lost", ["ledger.db", "ledger.db*"])
def test_a_file_that_is_removed_is_written_again_with_all_that_was_in_it(tmp_path: Path, lost: str) -> None:
    path, serving = tmp_path / "ledger.db", Serving()
    ledger, reader = Ledger(str(path), "gateway"), Ledger(str(path))
    ledger.write(serving.read(0.0))
    ledger.write(serving.read(10.0))
    before = cost(reader, By.DAY)
    for file in tmp_path.glob(lost):
        file.unlink()
    ledger.write(serving.read(20.0))
    after = cost(reader, By.DAY)
    assert after[0].usd > before[0].usd
    reader.close()
    ledger.close()
    with closing(Ledger(str(path))) as again:
        assert cost(again, By.DAY) == after


@pytest.mark.parametrize("busy", [1, 2, 5])
def test_a_file_that_is_removed_while_connections_are_in_use_loses_nothing(tmp_path: Path, busy: int) -> None:
    """A connection that is opened then is to a new file, which is empty."""
    path, serving = tmp_path / "ledger.db", Serving()
    ledger = Ledger(str(path), "gateway")
    ledger.write(serving.read(0.0))
    ledger.write(serving.read(10.0))
    before = cost(ledger, By.DAY)
    with ExitStack() as questions:
        for _ in range(busy):
            questions.enter_context(ledger.reading())
        path.unlink()
        ledger.write(serving.read(20.0))
    assert cost(ledger, By.DAY)[0].usd > before[0].usd
    ledger.close()
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [name for name in opened if name.startswith(str(path))] == [], "those in use have closed, too"


def test_who_asks_a_ledger_whose_file_is_removed_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(str(path), "gateway")
    ledger.write(replace(Serving().read(0.0), is_first=True))
    path.unlink()
    assert all_events(ledger) != ()
    ledger.close()
    assert path.exists()


def test_another_ledger_that_somebody_puts_in_its_place_is_used(tmp_path: Path) -> None:
    path, serving = tmp_path / "ledger.db", Serving()
    ledger = Ledger(str(path), "gateway")
    ledger.write(serving.read(0.0))
    path.rename(tmp_path / "old.db")
    other = Ledger(str(tmp_path / "new.db"), "gateway")
    other.write(serving.read(0.0))
    other.close()
    (tmp_path / "new.db").rename(path)
    ledger.write(serving.read(10.0))
    ledger.close()
    with closing(Ledger(str(path))) as again:
        assert cost(again, By.DAY)


def test_a_damaged_reading_is_told_with_what_to_do(ledger: Ledger) -> None:
    ledger.write(Serving().read(0.0))
    with ledger.changing() as connection:
        connection.execute(tables.cursor.update().values(reading="{"))
    with pytest.raises(LedgerError, match=r"is damaged .*delete its row"):
        ledger.write(Serving().read(10.0))


@pytest.mark.slow
def test_two_gateways_that_add_up_the_same_intervals_do_it_once(url: str, ledger: Ledger) -> None:
    serving = Serving()
    for number in range(200):
        ledger.write(serving.read(number * 10.0))
    before = sum(line.usd for line in cost(ledger, By.DAY))
    other = Ledger(url, "other")
    now_s = BEGIN_S + 30 * DAY_S
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(compact, one, now_s) for one in (ledger, other)]:
            done.result()
    assert sum(line.usd for line in cost(ledger, By.DAY)) == pytest.approx(before)
    other.close()


def test_what_a_change_has_read_is_not_changed_by_another_gateway_meanwhile(url: str, ledger: Ledger) -> None:
    ledger.write(Serving().read(0.0))
    other = Ledger(url, "other")
    count = select(func.count()).select_from(tables.cursor)
    with ThreadPoolExecutor(1) as thread:
        with ledger.changing() as connection:
            connection.execute(select(tables.cursor.c.gateway).with_for_update()).all()
            done = thread.submit(_remove_cursors, other)
            with pytest.raises(TimeoutError):
                done.result(0.3)
            assert connection.execute(count).scalar() == 1
        done.result(10)
    with ledger.reading() as connection:
        assert connection.execute(count).scalar() == 0
    other.close()


def _remove_cursors(ledger: Ledger) -> None:
    with ledger.changing() as connection:
        connection.execute(tables.cursor.delete())


def _rows(ledger: Ledger, query) -> list:
    with ledger.reading() as connection:
        return connection.execute(query).all()
