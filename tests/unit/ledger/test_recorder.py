"""Readings while the ledger cannot be written, and a plan that changes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from jellybean.ledger import (
    COLUMNS,
    AuditLine,
    By,
    Interval,
    KeptAnswer,
    Ledger,
    Moment,
    Port,
    Reading,
    all_events,
    cost,
    tables,
)
from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.accounting.recorder import Recorder
from jellybean.serving.gateway.accounting.serving_log import ServingLog
from jellybean.serving.gateway.plans.cost_so_far import CostAccount
from jellybean_agent import LiveCounters, PlanView, encode_tensor, plan_view
from tests.support.tiny_models import chain

VALUES = tables.values.name


@dataclass(frozen=True)
class Served:
    """A plan whose workers say nothing."""

    view: PlanView

    async def metrics(self) -> dict[str, bytes]:
        return {}


@dataclass
class Plans:
    """The part of `CurrentPlan` that the recorder reads."""

    served: Served
    costs: CostAccount = field(default_factory=CostAccount)

    async def read(self, plan: Served) -> dict[str, bytes]:
        return await plan.metrics()

    @property
    def billed(self) -> tuple[Served, ...]:
        return (self.served,)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [0.0]
    monkeypatch.setattr(Moment, "now", classmethod(lambda cls: cls(1e9 + now[0], now[0], "boot")))
    yield now


def test_an_outage_of_the_database_over_a_change_of_plans_costs_what_each_plan_costs(
    tmp_path: Path, clock: list[float]
) -> None:
    one, two = (plan_view(chain(tmp_path, workers=("edge-1", name))) for name in ("cloud-1", "cloud-2"))
    plans = Plans(Served(one))
    path = tmp_path / "away" / "ledger.db"
    log = ServingLog(LiveCounters(tmp_path / "live", COLUMNS), one.name)
    recorder = Recorder(Ledger(str(path), "g"), log, "run", plans)  # type: ignore[arg-type]

    async def run() -> None:
        for at_s in (0.0, 10.0, 20.0):
            clock[0] = at_s
            log.received("")
            log.ended(OutcomeKind.ANSWERED, 0.1, "")
            await recorder.write()  # the folder is not there
        plans.served = Served(two)
        for at_s in (30.0, 40.0, 3600.0):
            clock[0] = at_s
            await recorder.write()
        path.parent.mkdir()
        clock[0] = 3610.0
        await recorder.write(is_last=True)
        await recorder.end(has_kept=False)

    asyncio.run(run())
    ledger = Ledger(str(path))
    by_plan = {line.name: line for line in cost(ledger, By.PLAN)}
    assert by_plan[one.hash].workers_usd == pytest.approx(0.2 / 3600 * 30.0)  # two workers at 0.1 USD/h
    assert by_plan[two.hash].workers_usd == pytest.approx(0.2 / 3600 * 3580.0)
    assert sum(line.done or 0 for line in cost(ledger, By.CLIENT)) == 2  # the first reading only begins the count
    assert [event.kind.value for event in all_events(ledger)] == ["up", "plan", "down"]
    assert not (tmp_path / "live").exists()  # all that it counted is in the ledger
    ledger.close()


def test_of_the_workflows_of_a_process_the_first_one_tells_events(tmp_path: Path, clock: list[float]) -> None:
    view = plan_view(chain(tmp_path))
    other = replace(view, hash="another")
    served: list[Recorder | None] = []

    def begin() -> list[Recorder]:
        """The recorders of a process that has just begun."""
        found = [
            Recorder(
                Ledger(str(tmp_path / "ledger.db"), name),
                ServingLog(LiveCounters(tmp_path / name, COLUMNS), name),
                "run",
                Plans(Served(view)),  # type: ignore[arg-type]
            )
            for name in ("shop", "yard")
        ]
        for one in found:
            one.of_process = lambda: served
        served[:] = found
        return found

    async def write(*, is_last: bool = False) -> None:
        clock[0] += 1.0
        for one in both:
            await one.write(is_last=is_last)

    async def end() -> None:
        for one in both:
            await one.end(has_kept=False)

    async def run() -> None:
        await write()
        await write()
        served.pop(0)  # the next plan leaves the first one out
        both[1]._plans.served = Served(other)
        await write()
        await write(is_last=True)

    both = begin()
    asyncio.run(run())
    asyncio.run(end())
    both = begin()
    for one in both:
        one.log.received("")
        one.lose({})
    asyncio.run(write())
    asyncio.run(end())
    with contextlib.closing(Ledger(str(tmp_path / "ledger.db"))) as ledger:
        told = [(event.kind.value, event.plan, event.note) for event in all_events(ledger)]
    assert told == [
        ("up", view.hash, ""),
        ("plan", "another", f"in place of {view.hash}"),
        ("down", "another", ""),
        ("restart", view.hash, "2 requests in flight were lost"),
    ]


def test_metrics_say_what_each_client_and_operator_costs_and_what_waits(tmp_path: Path, clock: list[float]) -> None:
    view = plan_view(chain(tmp_path))
    log = ServingLog(LiveCounters(tmp_path / "live", COLUMNS), view.name)
    recorder = Recorder(Ledger(str(tmp_path / "ledger.db"), "g"), log, "run", Plans(Served(view)))  # type: ignore[arg-type]
    asyncio.run(recorder.write())
    for client, requests in (("alice", 3), ("bob", 1)):
        for _ in range(requests):
            log.received(f"jellybean://w/client/{client}")
    clock[0] = 3_600.0
    asyncio.run(recorder.write())
    paid = sum(worker.price_usd_per_h for worker in view.serving)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in recorder.metrics.collect(True)
        for sample in metric.samples
    }
    assert found["jellybean_ledger_client_cost_usd_total", "alice"] == pytest.approx(0.75 * paid)
    assert found["jellybean_ledger_client_cost_usd_total", "bob"] == pytest.approx(0.25 * paid)
    assert "alice" not in str(list(recorder.metrics.collect(False)))  # on ports that strangers may read
    by_operator = [value for key, value in found.items() if key[0] == "jellybean_ledger_operator_cost_usd_total"]
    assert sum(by_operator) == pytest.approx(paid)
    assert found["jellybean_ledger_unwritten",] == 0
    assert found["jellybean_ledger_written_timestamp_seconds",] == 1e9 + 3_600.0
    asyncio.run(recorder.end(has_kept=False))


def test_a_cancelled_write_ends_before_the_last_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a write cannot be cancelled: two at once would write the same readings."""
    plans, began, may_end = Plans(Served(plan_view(chain(tmp_path)))), threading.Event(), threading.Event()
    log = ServingLog(LiveCounters(tmp_path / "live", COLUMNS), "tiny")
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    recorder = Recorder(ledger, log, "run", plans)  # type: ignore[arg-type]
    write, under_way, most = ledger.write, [0], [0]

    def slowly(reading: Reading) -> Interval | None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        began.set()
        assert may_end.wait(30.0)
        try:
            return write(reading)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(ledger, "write", slowly)

    async def run() -> None:
        recorder.start()
        log.received("")
        log.ended(OutcomeKind.ANSWERED, 0.1, "")
        await asyncio.to_thread(began.wait, 30.0)
        closing = asyncio.create_task(recorder.close())
        for _ in range(10):  # the write is cancelled, and the last one waits for it
            await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        await closing
        await recorder.end(has_kept=False)

    asyncio.run(run())
    assert most == [1]
    assert not (tmp_path / "live").exists(), "all of it is in the ledger"


@pytest.mark.parametrize("table", [tables.answers.name, tables.audits.name, VALUES])
def test_what_a_table_does_not_take_is_given_back(tmp_path: Path, table: str) -> None:
    path = tmp_path / "ledger.db"
    plans = Plans(Served(plan_view(chain(tmp_path))))
    log = ServingLog(LiveCounters(tmp_path / "live", COLUMNS), "tiny")
    recorder = Recorder(Ledger(str(path), "g"), log, "run", plans)  # type: ignore[arg-type]
    kept = KeptAnswer("", "a", time.time(), "tiny", "plan", "", "", b"")
    audit = AuditLine(time.time(), 10.0, "tiny", "plan", "", 3, 2.5, 1, 0)

    def rename(before: str, after: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute(f"alter table {before} rename to {after}")

    async def run() -> None:
        await recorder.write()
        recorder.answers.give_back([kept])
        recorder.audits.give_back([audit])
        recorder.values.see(plans.served.view, Port.SOURCE, {"x": encode_tensor(np.ones((1, 4), np.float32))})
        rename(table, "away")
        await recorder.write()
        rename("away", table)
        await recorder.write(is_last=True)
        await recorder.end(has_kept=False)

    asyncio.run(run())
    with contextlib.closing(sqlite3.connect(path)) as database:
        (rows,) = database.execute(f"select count(*) from {table}").fetchone()
    assert rows == (2 if table == VALUES else 1)  # figures of one tensor: its mean and its spread
