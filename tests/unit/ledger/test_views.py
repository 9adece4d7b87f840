"""SQL views for other programs, in SQLite and PostgreSQL: they say what the questions say."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from jellybean.ledger import By, LabelledBy, Ledger, all_events, compact, cost, served, served_accuracy
from jellybean.ledger.views import VIEWS
from tests.support.made_up_run import BEGIN_S, DAY_S
from tests.support.two_plans_run import keep_labelled, write_two_plans

FIRST, SECOND = "a" * 64, "b" * 64
DOCS = (Path(__file__).parents[3] / "docs/ledger.md").read_text(encoding="utf-8")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres")())


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    found = Ledger(url, "gateway")
    write_two_plans(found, FIRST, SECOND)
    keep_labelled(found, "flow", FIRST, BEGIN_S, [True, True, False], 10.0)
    keep_labelled(found, "flow", SECOND, BEGIN_S + DAY_S, [False], 10.0)
    yield found
    found.close()


def rows(ledger: Ledger, view: str) -> list[Mapping[str, Any]]:
    with ledger.reading() as connection:
        return [dict(row) for row in connection.execute(text(f"SELECT * FROM {view}")).mappings()]


def summed(found: Sequence[Mapping[str, Any]], key: str, *names: str) -> dict[str, list[float]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(names))
    for row in found:
        for place, name in enumerate(names):
            sums[str(row[key])][place] += float(row[name])
    return dict(sums)


@pytest.mark.parametrize("is_compact", [False, True], ids=["as written", "compacted"])
def test_views_of_cost_sum_to_what_the_questions_say(ledger: Ledger, is_compact: bool) -> None:
    if is_compact:
        compact(ledger, BEGIN_S + 90 * DAY_S)
    for view, key, by in (
        ("jellybean_cost_by_day", "day", By.DAY),
        ("jellybean_cost_by_day", "plan", By.PLAN),
        ("jellybean_cost_by_operator", "operator", By.OPERATOR),
        ("jellybean_cost_by_operator", "tier", By.TIER),
        ("jellybean_cost_by_operator", "site", By.SITE),
        ("jellybean_cost_by_worker", "worker", By.WORKER),
    ):
        expected = {line.name: [line.workers_usd, line.traffic_usd, line.usd] for line in cost(ledger, by)}
        found = summed(rows(ledger, view), key, "workers_usd", "traffic_usd", "usd")
        assert found.keys() == expected.keys(), (view, key)
        for name, amounts in expected.items():
            assert found[name] == pytest.approx(amounts), (view, key)
    requests = summed(rows(ledger, "jellybean_requests_by_day"), "client", "answered", "failed", "usd")
    for line in cost(ledger, By.CLIENT):
        assert requests[line.name] == pytest.approx([line.done, line.failed, line.usd])
    (line,) = served(ledger, By.DAY)
    answers = sum(row["answers"] for row in rows(ledger, "jellybean_latency_by_day"))
    assert answers == line.ends["answered"]


def test_latencies_are_the_bounds_of_the_histogram(url: str) -> None:
    ledger = Ledger(url, "gateway")
    write_two_plans(ledger, FIRST, FIRST)
    (row,), (line,) = rows(ledger, "jellybean_latency_by_day"), served(ledger, By.DAY)
    ledger.close()
    assert [float(row[name]) for name in ("p50_s", "p90_s", "p99_s")] == pytest.approx(
        [line.latency_p50_s, line.latency_p90_s, line.latency_p99_s]
    )


def test_accuracy_and_events_are_those_of_the_questions(ledger: Ledger) -> None:
    found = {row["plan"]: row for row in rows(ledger, "jellybean_accuracy_by_day")}
    expected = {line.name: line for line in served_accuracy(ledger, "flow", LabelledBy.PLAN)}
    for plan, line in expected.items():
        assert (found[plan]["labels"], float(found[plan]["accuracy"])) == (line.labels, pytest.approx(line.accuracy))
    assert [str(found[plan]["day"]) for plan in (FIRST, SECOND)] == ["2024-10-04", "2024-10-05"]
    happened = sorted(rows(ledger, "jellybean_events"), key=lambda row: row["at_s"])
    assert [(row["kind"], row["plan"]) for row in happened] == [(one.kind, one.plan) for one in all_events(ledger)]


@pytest.mark.slow
def test_a_ledger_of_an_earlier_version_gets_its_views_from_who_writes(url: str) -> None:
    ledger = Ledger(url, "gateway")
    write_two_plans(ledger, FIRST, SECOND)
    with ledger.changing() as connection:
        for view in VIEWS:
            connection.execute(text(f"DROP VIEW {view.name}"))
    ledger.close()
    ledger = Ledger(url, "gateway")
    cost(ledger, By.DAY)  # only reads
    with ledger.reading() as connection:
        assert inspect(connection).get_view_names() == []
    write_two_plans(ledger, FIRST, SECOND)
    with ledger.reading() as connection:
        assert set(inspect(connection).get_view_names()) == {view.name for view in VIEWS}
    ledger.close()


def test_a_user_of_postgresql_who_may_only_read_has_the_views_and_the_questions(postgres) -> None:
    url = postgres()
    ledger = Ledger(url, "gateway")
    write_two_plans(ledger, FIRST, SECOND)
    reader = f"reader_{url[-12:]}"
    with ledger.changing() as connection:
        connection.execute(text(f"CREATE ROLE {reader} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}"))
    lines = cost(ledger, By.DAY)
    ledger.close()
    as_reader = Ledger(re.sub(r"//\w+@", f"//{reader}@", url))
    assert cost(as_reader, By.DAY) == lines
    assert sum(row["usd"] for row in rows(as_reader, "jellybean_cost_by_day")) == pytest.approx(lines[0].usd)
    as_reader.close()


def test_another_program_reads_the_views_of_a_file(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger.db"), "gateway")
    write_two_plans(ledger, FIRST, SECOND)
    (line,) = cost(ledger, By.DAY)
    ledger.close()
    connection = sqlite3.connect(f"file:{tmp_path / 'ledger.db'}?mode=ro", uri=True)
    ((day, usd),) = connection.execute("SELECT day, SUM(usd) FROM jellybean_cost_by_day GROUP BY day").fetchall()
    connection.close()
    assert (day, usd) == (line.name, pytest.approx(line.usd))


def test_the_documentation_has_every_view_with_its_columns(ledger: Ledger) -> None:
    for view in VIEWS:
        (line,) = [line for line in DOCS.splitlines() if line.startswith(f"| `{view.name}`")]
        assert set(re.findall(r"`(\w+)`", line)) - {view.name} == set(view.columns)
        with ledger.reading() as connection:
            assert tuple(column["name"] for column in inspect(connection).get_columns(view.name)) == view.columns
