"""What the ledger costs: requests per second with and without it, space, and time of questions about a year."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.ledger_made_up import BEGIN_S, DAY_S, FleetShape, MadeUpFleet, keep_labelled, plan_hash
from benchmarks.ledger_questions import REPEATS, all_questions, seconds_of
from benchmarks.overhead.load import Connect, measure
from benchmarks.stages import chain_client, chain_project
from jellybean.ledger.compaction import compact
from jellybean.ledger.ledger import Ledger
from jellybean.serving.local import launcher
from jellybean.serving.local.settings import NO_LEDGER, LaunchSettings
from jellybean.serving.run_processes import GATEWAY_NAME
from jellybean_solver import to_document

CLIENTS, STARTS, ROUNDS, SLICE_S, WARMUP_S = 8, 4, 5, 3.0, 0.3
YEAR_INTERVAL_S, OPERATORS, WORKERS, PER_YEAR_INTERVAL = 300.0, 100, 20, 300
MILLION_INTERVAL_S, PER_INTERVAL = 10.0, 500
ANSWERS = 200_000  # kept in a year, every second one with its label
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
REQUEST_ID = "order-17"
MESSAGE_ROWS = 1  # requests and answers of 1 KiB, which are small enough to be kept


@benchmark
def ledger(smoke: bool) -> Result:
    """Gateways with and without a ledger, measured in turn; a year and a million requests, written and asked."""
    starts, rounds, slice_s = (1, 1, 0.5) if smoke else (STARTS, ROUNDS, SLICE_S)
    pairs: list[tuple[_Speed, _Speed]] = []
    kept: list[tuple[_Speed, _Speed]] = []
    for start in range(starts):  # two processes of the same program may differ by more than the ledger costs
        with contextlib.ExitStack() as stack:
            urls = ("", NO_LEDGER) if start % 2 else (NO_LEDGER, "")
            up = {url: stack.enter_context(_up(url)) for url in urls}
            ours, without = up[""], up[NO_LEDGER]
            pairs += [_pair(ours, without, slice_s, reverse=bool(number % 2)) for number in range(rounds)]
            kept += [_pair(ours.with_ids, ours, slice_s, reverse=bool(number % 2)) for number in range(rounds)]
    load = os.getloadavg()[1]
    speeds = [*_speed_rows(pairs, "ledger"), *_speed_rows(kept, "ids")]
    year = _year(2 if smoke else 365, 2_000 if smoke else ANSWERS)
    million = _million(50_000 if smoke else 1_000_000)
    return Result(
        title="The ledger",
        topic=Topic.SERVING,
        method=f"Requests per second: one stage, requests and answers of 1 KiB, {CLIENTS} closed-loop clients, medians "
        f"of {starts * rounds} alternating slices of {slice_s:g} s, over {starts} starts of both gateways; the share "
        "is the median of the pairs', in brackets its quartiles. Space and questions: made-up readings, a new plan "
        f"each week, written and added up as a gateway does; medians of {REPEATS} times.",
        reference="the same gateway without a ledger, or the same requests without an id; for space and time what an "
        "SRE would put up with: 20 MB, 1 s.",
        tables=(
            Table.of(("", "with", "without", "share"), speeds, "Speed"),
            Table.of(
                ("ledger", "lines as written", "time to write an interval", "size"),
                [year.space_row, million.space_row],
                "Space",
            ),
            Table.of(("question", "slowest", "of all kinds"), _question_rows(year.asked), f"Questions: {year.label}"),
        ),
        notes=(
            f"The machine's load average was {load:.1f} on {os.cpu_count()} cores while requests were counted.",
            f"The size of the year is with {year.answers:,} kept answers, {year.bytes_per_answer:.0f} bytes each; an "
            "answer without an id is not kept.",
            "The year is written to a file system in memory, the million requests to disk.",
            "A question's time is without that of starting `jellybean`, about a second.",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Gateway:
    """A gateway that is up: its process, and connections to it; `ids`: whose requests have one."""

    process: psutil.Process
    port: int
    request_id: str = ""

    @property
    def connect(self) -> Connect:
        return chain_client(self.port, rows=MESSAGE_ROWS, request_id=self.request_id)

    @property
    def with_ids(self) -> _Gateway:
        """The same gateway, for requests whose answers are kept."""
        return _Gateway(self.process, self.port, REQUEST_ID)

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


def _speed_rows(pairs: Sequence[tuple[_Speed, _Speed]], what: str) -> list[list[str]]:
    """The rows of pairs with and without something."""
    return [
        _row(f"requests per second ({what})", [(one.per_s, other.per_s) for one, other in pairs], "{:,.0f}/s"),
        _row(f"gateway's CPU per request ({what})", [(one.cpu_us, other.cpu_us) for one, other in pairs], "{:.1f} us"),
    ]


def _row(label: str, pairs: Sequence[tuple[float, float]], show: str) -> list[str]:
    medians = [show.format(statistics.median(column)) for column in zip(*pairs, strict=True)]
    shares = [100 * one / other for one, other in pairs]
    low, middle, high = statistics.quantiles(shares, n=4) if len(shares) > 1 else 3 * shares
    return [label, *medians, f"{middle:.1f} % ({low:.1f} to {high:.1f})"]


@contextlib.contextmanager
def _up(url: str) -> Iterator[_Gateway]:
    """A running plan of one stage with the ledger at `url`."""
    with chain_project((1,), None, MESSAGE_ROWS) as (folder, plan):
        settings = LaunchSettings(port=0, insecure=True, ledger=url)
        running = launcher.up(folder, to_document(plan), settings)
        try:
            (pid,) = [one.pid for one in running.state.processes if one.name == GATEWAY_NAME]
            yield _Gateway(psutil.Process(pid), int(running.state.clients_address.rpartition(":")[2]))
        finally:
            running.down()


@dataclass(frozen=True, slots=True)
class _Written:
    """A ledger that was written: lines, seconds per interval, bytes, and question -> seconds."""

    label: str
    lines: int
    interval_s: float
    size: int
    asked: Mapping[str, float]
    answers: int = 0
    bytes_per_answer: float = 0.0

    @property
    def space_row(self) -> list[str]:
        return [self.label, f"{self.lines:,}", f"{1e3 * self.interval_s:.1f} ms", f"{self.size / 1e6:.1f} MB"]


def _year(days: int, answers: int) -> _Written:
    """Intervals of five minutes of 100 operators on 20 workers."""
    label = f"{days} days, {OPERATORS} operators, an interval each {YEAR_INTERVAL_S:g} s"
    intervals, fleet = int(days * DAY_S / YEAR_INTERVAL_S), MadeUpFleet(FleetShape(OPERATORS, WORKERS))
    return _written(label, intervals, YEAR_INTERVAL_S, fleet, PER_YEAR_INTERVAL, answers)


def _million(requests: int) -> _Written:
    """So many requests at 50 per second, an interval each ten seconds, of three operators."""
    label = (
        f"{requests:,} requests at {PER_INTERVAL / MILLION_INTERVAL_S:g}/s, an interval each {MILLION_INTERVAL_S:g} s"
    )
    fleet = MadeUpFleet(FleetShape(3, 3))
    return _written(label, requests // PER_INTERVAL, MILLION_INTERVAL_S, fleet, PER_INTERVAL, 0)


def _written(
    label: str, intervals: int, interval_s: float, fleet: MadeUpFleet, requests: int, answers: int
) -> _Written:
    """Write so many intervals and add them up as a gateway does, once a day.

    A ledger with answers is written in memory where that is possible: a hundred thousand commits to disk take longer
    than all else, and what they cost is seen in the other one.
    """
    a_day = int(DAY_S / interval_s)
    with tempfile.TemporaryDirectory(prefix="jellybean-ledger-", dir=IN_MEMORY if answers else None) as name:
        opened, lines, writing_s = Ledger(str(Path(name) / "ledger.db"), "gateway"), 0, 0.0
        for number in range(intervals + 1):
            reading = fleet.read(number * interval_s, requests)
            began = time.perf_counter()
            found = opened.write(reading)
            writing_s += time.perf_counter() - began
            lines += 0 if found is None else len(found.work) + len(found.sent) + len(found.requests)
            if number % a_day == 0:
                compact(opened, reading.at.unix_s)
        compact(opened, reading.at.unix_s)
        before = _size(name)
        if answers:
            keep_labelled(opened, answers, intervals * interval_s)
        now_s, middle = BEGIN_S + intervals * interval_s, plan_hash(intervals * interval_s / 2)
        asked = {text: seconds_of(opened, ask) for text, ask in all_questions(now_s, middle).items()}
        opened.close()
        size = _size(name)
    each = (size - before) / answers if answers else 0.0
    return _Written(label, lines, writing_s / intervals, size, asked, answers, each)


def _size(folder: str) -> int:
    """Bytes of a ledger's files, once what is in the write-ahead log is in the database."""
    with contextlib.closing(sqlite3.connect(Path(folder) / "ledger.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(file.stat().st_size for file in Path(folder).iterdir() if not file.name.endswith("-shm"))


def _question_rows(asked: Mapping[str, float]) -> list[list[str]]:
    """The slowest question of each command, and the sum of all of its questions."""
    commands: dict[str, list[str]] = {}
    for text in asked:
        commands.setdefault(text.partition(" ")[0].partition("(")[0], []).append(text)
    rows = []
    for command, texts in commands.items():
        slowest = max(texts, key=asked.__getitem__)
        option = slowest.removeprefix(command).strip()
        shown = f"{asked[slowest]:.3f} s" + (f" ({option})" if option and option[0] != "(" else f" {option}".rstrip())
        rows.append([f"`{command}`, {len(texts)} kinds" if len(texts) > 1 else f"`{command}`", shown,
                     f"{sum(asked[text] for text in texts):.3f} s"])  # fmt: skip
    return rows
