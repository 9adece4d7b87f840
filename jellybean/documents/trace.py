"""A rate trace: CSV with the header `time_s,source,rate_per_s`; a row's rate holds from its time to the source's next.

Read like the other documents: every problem at once, each with file, line and column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jellybean.documents.schema.units import close, shown
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_agent import describe_error
from jellybean_solver import Plan, Problem, RateTrace, Source, rate_trace, request_streams

HEADER = ("time_s", "source", "rate_per_s")
MAX_BYTES = 64 * 2**20
ALONE_S = 60.0  # length of a trace with one time only
_MAX_PROBLEMS = 100
_MOST_PER_S = 1e6  # more is a mistake, as no simulation of it would end


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace with the time at which it starts, in the file's own seconds."""

    path: Path
    origin_s: float
    trace: RateTrace


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    time_s: float
    rate_per_s: float


@dataclass
class _Reading:
    """What was read of a file so far, and what is wrong with it."""

    file: str
    sources: Mapping[str, Source]
    rows: dict[str, list[_Row]] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)

    def problem(self, line: int, column: int, message: str, hint: str = "") -> None:
        self.problems.append(DocumentProblem(self.file, line, column, "", message, hint))

    def check(self) -> None:
        """DocumentError if anything is wrong so far, the first hundred problems of it."""
        if self.problems:
            raise DocumentError(self.problems[:_MAX_PROBLEMS])


def read_trace(path: Path, plan: Plan | Problem) -> TraceFile:
    """The trace for the sources of a plan or a problem. A source that it does not name keeps its own rate throughout.

    It starts at its first time; its last rates hold as long as those before them (60 s when there is one time only).
    Sources of one stream of requests must have equal rates at all times. DocumentError lists every problem.
    """
    reading = _Reading(str(path), {source.name: source for source in plan.sources})
    lines = _lines(path, reading)
    reading.check()
    _read_rows(lines, reading)
    reading.check()
    times = sorted({row.time_s for rows in reading.rows.values() for row in rows})
    in_force = {name: _in_force(reading.rows.get(name, []), source, times) for name, source in reading.sources.items()}
    for stream in request_streams(plan):
        sites = {source.name: plan.sites.get(source.tier, 1) for source in stream.sources}
        _check_equal(sites, in_force, times, reading)
    if all(row.rate_per_s == 0 for rows in in_force.values() for row in rows):
        reading.problem(2, 1, "no request would arrive: every rate is 0", "give a source a rate")
    reading.check()
    last_s = times[-1] - times[-2] if len(times) > 1 else ALONE_S
    starts = [time - times[0] for time in times]
    rates = {name: [row.rate_per_s for row in rows] for name, rows in in_force.items()}
    return TraceFile(path, times[0], rate_trace(starts, starts[-1] + last_s, rates))


def _lines(path: Path, reading: _Reading) -> list[str]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            reading.problem(1, 1, f"the file has {size / 2**20:,.0f} MiB, more than {MAX_BYTES // 2**20}")
            return []
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        reading.problems.append(
            DocumentProblem(
                reading.file,
                None,
                None,
                "",
                f"cannot be read: {describe_error(error)}",
                f"its header is {','.join(HEADER)}",
            )
        )
    except UnicodeDecodeError as error:
        reading.problem(1, 1, f"is not UTF-8 text: {error.reason} at byte {error.start}")
    return []


def _read_rows(lines: Sequence[str], reading: _Reading) -> None:
    if not lines or tuple(cell.strip() for cell in _cells(lines[0])) != HEADER:
        found = shown(lines[0]) if lines else "nothing"
        reading.problem(1, 1, f"the header is {found}", f"write {','.join(HEADER)}")
        return
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            _read_row(number, line, reading)
        if len(reading.problems) > _MAX_PROBLEMS:
            return
    if not reading.rows and not reading.problems:
        hint = f"add for example 0,{next(iter(reading.sources))},40"
        reading.problem(1, 1, "there is no row under the header", hint)


def _cells(line: str) -> list[str]:
    """The fields of one line; a quoted one cannot go on in the next."""
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        return [line]


def _read_row(number: int, line: str, reading: _Reading) -> None:
    cells = _cells(line)
    if len(cells) != len(HEADER):
        reading.problem(
            number, 1, f"there are {len(cells)} fields instead of 3: {shown(line)}", "write time,source,rate"
        )
        return
    columns = _columns(line, cells)
    time_s = _number("time", cells[0], "seconds", number, columns[0], reading)
    rate = _number("rate", cells[2], "requests per second", number, columns[2], reading)
    name = cells[1].strip()
    if name not in reading.sources:
        hint = close(name, list(reading.sources)) or f"sources: {', '.join(reading.sources)}"
        reading.problem(number, columns[1], f"the workflow has no source {shown(name)}", hint)
        return
    if rate is not None and rate > _MOST_PER_S:
        reading.problem(number, columns[2], f"a rate of {rate:g}/s cannot be replayed", f"at most {_MOST_PER_S:g}")
        return
    if time_s is None or rate is None:
        return
    rows = reading.rows.setdefault(name, [])
    if rows and time_s <= rows[-1].time_s:
        text = f"{name} already has a rate from {rows[-1].time_s:g} s on (line {rows[-1].line})"
        reading.problem(number, columns[0], text, "the times of a source must ascend")
        return
    rows.append(_Row(number, time_s, rate))


def _columns(line: str, cells: Sequence[str]) -> Sequence[int]:
    """Where each field starts; the line's start for all of them where quotes make that unclear."""
    if '"' in line:
        return [1] * len(cells)
    starts = [1]
    for cell in cells[:-1]:
        starts.append(starts[-1] + len(cell) + 1)
    return starts


def _number(name: str, text: str, unit: str, line: int, column: int, reading: _Reading) -> float | None:
    try:
        value = float(text)
    except ValueError:
        reading.problem(line, column, f"{shown(text.strip())} is no {name}", f"write a plain number of {unit}")
        return None
    if not math.isfinite(value) or value < 0:
        reading.problem(line, column, f"a {name} must be finite and not negative, not {text.strip()}")
        return None
    return value


def _in_force(rows: Sequence[_Row], source: Source, times: Sequence[float]) -> list[_Row]:
    """The row that holds at each time; line 0 is the workflow's own rate, which holds before a source's first row."""
    found: list[_Row] = []
    current, coming = _Row(0, 0.0, source.rate_per_s), iter(rows)
    following = next(coming, None)
    for time in times:
        if following is not None and following.time_s <= time:
            current, following = following, next(coming, None)
        found.append(current)
    return found


def _check_equal(
    sites: Mapping[str, int], in_force: Mapping[str, Sequence[_Row]], times: Sequence[float], reading: _Reading
) -> None:
    """One request takes a message of every source of its stream, so their rates in all `sites` are one rate."""
    first, *others = sites
    for other in others:
        told: set[tuple[int, int]] = set()
        for time, one, two in zip(times, in_force[first], in_force[other], strict=True):
            lines = (one.line, two.line)
            if lines in told or math.isclose(
                one.rate_per_s * sites[first], two.rate_per_s * sites[other], rel_tol=1e-9
            ):
                continue
            told.add(lines)
            both = f"{_told(first, one)} but {_told(other, two)}"
            text = f"from {time:g} s on {both}; every request needs a message of both"
            reading.problem(max(lines), 1, text, "give both the same rate at every time")


def _told(name: str, row: _Row) -> str:
    where = f"line {row.line}" if row.line else "the workflow's own rate, as no row gives one yet"
    return f"{name} has {row.rate_per_s:g}/s ({where})"
