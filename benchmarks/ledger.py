"""What the ledger costs: requests per second with and without it, space, and time of questions about a year."""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.overhead.load import Connect, measure
from benchmarks.stages import chain_client, chain_project
from jellybean.ledger.columns import COLUMNS, KINDS, LATENCIES, RECEIVED
from jellybean.ledger.compaction import compact
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.questions import By, cost
from jellybean.ledger.readings import BilledPlan, BilledWorker, Moment, Reading, RequestKey, Work, WorkKey
from jellybean.serving.local import launcher
from jellybean.serving.local.settings import NO_LEDGER, LaunchSettings
from jellybean.serving.run_state import GATEWAY_NAME
from jellybean_solver import to_document

CLIENTS, ROUNDS, SLICE_S, WARMUP_S = 8, 20, 3.0, 0.3
DAY_S, BEGIN_S = 86_400.0, 20_000 * 86_400.0
YEAR_INTERVAL_S, OPERATORS, WORKERS = 300.0, 100, 20
MILLION_INTERVAL_S, PER_INTERVAL = 10.0, 500


@benchmark
def ledger(smoke: bool) -> Result:
    """Two gateways, with and without a ledger, measured in turn; a year and a million requests, written and asked."""
    rounds, slice_s = (1, 0.5) if smoke else (ROUNDS, SLICE_S)
    with _up("") as with_ledger, _up(NO_LEDGER) as without:
        pairs = [_pair(with_ledger, without, slice_s, reverse=bool(number % 2)) for number in range(rounds)]
    rows = [
        _row("requests per second", [(one.per_s, other.per_s) for one, other in pairs], "{:,.0f}/s"),
        _row("CPU time of the gateway per request", [(one.cpu_us, other.cpu_us) for one, other in pairs], "{:.1f} us"),
    ]
    days = 2 if smoke else 365
    return Result(
        title="The ledger",
        topic=Topic.SERVING,
        method=f"Requests per second: one stage, {CLIENTS} closed-loop clients, medians of {rounds} alternating slices "
        f"of {slice_s:g} s. Space and questions: made-up readings, written and added up as a gateway does.",
        reference="the same gateway without a ledger; for space and time what an SRE would put up with: 20 MB, 1 s.",
        tables=(
            Table.of(("", "with the ledger", "without", "share"), rows, "Speed"),
            Table.of(
                ("ledger", "lines as written", "size", "slowest question", "of all kinds"),
                [_year(days), _million(50_000 if smoke else 1_000_000)],
                "Space and questions",
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Gateway:
    """A gateway that is up: its process, and connections to it."""

    process: psutil.Process
    connect: Connect

    def cpu_s(self) -> float:
        """CPU time that it has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class _Speed:
    """Requests per second, and microseconds of the gateway's CPU time for each."""

    per_s: float
    cpu_us: float


def _pair(one: _Gateway, other: _Gateway, slice_s: float, *, reverse: bool) -> tuple[_Speed, _Speed]:
    """Both measured one after the other, in this order or the other one."""
    if reverse:
        second, first = _speed(other, slice_s), _speed(one, slice_s)
        return first, second
    return _speed(one, slice_s), _speed(other, slice_s)


def _speed(gateway: _Gateway, slice_s: float) -> _Speed:
    before_s = gateway.cpu_s()
    found = measure(gateway.connect, CLIENTS, slice_s, WARMUP_S)
    requests = found.rate_per_s * (slice_s + WARMUP_S)  # those of the warm-up are not counted, but took time
    return _Speed(found.rate_per_s, 1e6 * (gateway.cpu_s() - before_s) / requests)


def _row(label: str, pairs: Sequence[tuple[float, float]], show: str) -> list[str]:
    medians = [show.format(statistics.median(column)) for column in zip(*pairs, strict=True)]
    return [label, *medians, f"{100 * statistics.median(one / other for one, other in pairs):.1f} %"]


@contextlib.contextmanager
def _up(url: str) -> Iterator[_Gateway]:
    """A running plan of one stage with the ledger at `url`."""
    with chain_project((1,), None) as (folder, plan):
        settings = LaunchSettings(port=0, insecure=True, ledger=url)
        running = launcher.up(folder, to_document(plan), settings)
        try:
            (pid,) = [one.pid for one in running.state.processes if one.name == GATEWAY_NAME]
            port = int(running.state.clients_address.rpartition(":")[2])
            yield _Gateway(psutil.Process(pid), chain_client(port))
        finally:
            running.down()


def _year(days: int) -> list[str]:
    """Intervals of five minutes of 100 operators on 20 workers."""
    label = f"{days} days, {OPERATORS} operators, an interval each {YEAR_INTERVAL_S:g} s"
    return _written(label, int(days * DAY_S / YEAR_INTERVAL_S), YEAR_INTERVAL_S, _Fleet(OPERATORS, WORKERS), 300)


def _million(requests: int) -> list[str]:
    """So many requests at 50 per second, an interval each ten seconds, of three operators."""
    label = (
        f"{requests:,} requests at {PER_INTERVAL / MILLION_INTERVAL_S:g}/s, an interval each {MILLION_INTERVAL_S:g} s"
    )
    return _written(label, requests // PER_INTERVAL, MILLION_INTERVAL_S, _Fleet(3, 3), PER_INTERVAL)


def _written(label: str, intervals: int, seconds: float, fleet: _Fleet, requests: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="jellybean-ledger-") as name:
        path, lines = Path(name) / "ledger.db", 0
        opened = Ledger(f"sqlite:///{path}", "gateway")
        for number in range(intervals + 1):
            reading = fleet.read(number * seconds, requests)
            found = opened.write(reading)
            lines += 0 if found is None else len(found.work) + len(found.requests)
            if number % 288 == 0:
                compact(opened, reading.at.unix_s)
        compact(opened, reading.at.unix_s)
        asked = {by: _seconds(opened, by) for by in By}
        opened.close()
        size = sum(file.stat().st_size for file in Path(name).iterdir())
    slowest = max(asked, key=asked.__getitem__)
    total_s = sum(asked.values())
    return [label, f"{lines:,}", f"{size / 1e6:.1f} MB", f"{asked[slowest]:.2f} s (by {slowest})", f"{total_s:.2f} s"]


def _seconds(opened: Ledger, by: By) -> float:
    began = time.perf_counter()
    cost(opened, by)
    return time.perf_counter() - began


class _Fleet:
    """Counters that grow by chance."""

    def __init__(self, operators: int, workers: int) -> None:
        self._rng = random.Random(0)
        names = [f"operator-{number}" for number in range(operators)]
        self._keys = [WorkKey("0" * 64, name, "v", f"box-{place % workers}") for place, name in enumerate(names)]
        own = {
            f"box-{number}": [key for key in self._keys if key.worker == f"box-{number}"] for number in range(workers)
        }
        billed = (
            BilledWorker(
                name, "edge", "", 0.1, {key.operator: 0.1 for key in keys}, {key.operator: "v" for key in keys}
            )
            for name, keys in own.items()
        )
        self._plan = BilledPlan("0" * 64, "flow", tuple(billed), {})
        self._done = 0
        self._rows = {RequestKey("flow", name): [0] * COLUMNS for name in ("ann", "bob", "carol")}

    def read(self, at_s: float, requests: int) -> Reading:
        """The reading at so many seconds after the begin; since the last one so many requests were answered."""
        self._done += requests
        for _ in range(requests):
            row = self._rows[RequestKey("flow", self._rng.choice(("ann", "bob", "carol")))]
            row[RECEIVED] += 1
            row[KINDS["answered"]] += 1
            row[LATENCIES + min(45, int(self._rng.lognormvariate(2.5, 0.3)))] += 1
        work = {
            key: Work(float(self._done), 0.0, 0.01 * self._done + index, "s") for index, key in enumerate(self._keys)
        }
        counts = {key: tuple(row) for key, row in self._rows.items()}
        moment = Moment(BEGIN_S + at_s, at_s, "boot")
        return Reading(moment, "run", (self._plan,), "0" * 64, work, {}, counts, "file")
