"""Read a rate trace: CSV with the header `time_s,source,rate_per_s`.

A rate holds from its row's time until the source's next row. All problems are reported at once, with line and column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jellybean.documents.csv_lines import cell_columns, cells_of, read_lines
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.quantities import decimal_number, did_you_mean, quoted
from jellybean_solver import Plan, Problem, RateTrace, Source, rate_text, rate_trace, served_streams

HEADER = ("time_s", "source", "rate_per_s")
SINGLE_TIME_LENGTH_S = 60.0  # length of a trace that has one time only
_MAX_PROBLEMS = 100
_MAX_RATE_PER_S = 1e6  # a larger rate is a mistake: its simulation would never finish


@dataclass(frozen=True, slots=True)
class RateTraceFile:
    """A rate trace. `origin_s`: time of its first row as written in the file, in seconds."""

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
    """State of reading a trace: rows by source, and problems, found so far."""

    file: str
    sources: Mapping[str, Source]
    rows: dict[str, list[_Row]] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)

    def problem(self, line: int, column: int, message: str, hint: str = "") -> None:
        self.problems.append(DocumentProblem(self.file, line, column, "", message, hint))

    def check(self) -> None:
        """DocumentError with the first hundred problems, if there are any."""
        if self.problems:
            raise DocumentError(self.problems[:_MAX_PROBLEMS])


def read_rate_trace(path: Path, plan: Plan | Problem) -> RateTraceFile:
    """Read a rate trace for the sources of `plan`. A source without rows keeps the workflow's rate.

    The rates of the last time hold as long as those of the time before it (60 s if the trace has only one time).
    Sources that are joined into one stream of requests must have equal rates at all times. DocumentError lists all
    problems.
    """
    sources = {source.name: source for source in plan.sources if not plan.is_of_audit(source.name)}
    reading = _Reading(str(path), sources)
    lines = _lines(path, reading)
    reading.check()
    _read_rows(lines, reading)
    reading.check()
    times = sorted({row.time_s for rows in reading.rows.values() for row in rows})
    in_force = {name: _in_force(reading.rows.get(name, []), source, times) for name, source in reading.sources.items()}
    for stream in served_streams(plan):
        sites = {source.name: plan.sites.get(source.tier, 1) for source in stream.sources}
        _check_equal(sites, in_force, times, reading)
    if all(row.rate_per_s == 0 for rows in in_force.values() for row in rows):
        reading.problem(2, 1, "no request would arrive: every rate is 0", "give a source a rate")
    reading.check()
    last_s = times[-1] - times[-2] if len(times) > 1 else SINGLE_TIME_LENGTH_S
    starts = [time - times[0] for time in times]
    rates = {name: [row.rate_per_s for row in rows] for name, rows in in_force.items()}
    return RateTraceFile(path, times[0], rate_trace(starts, starts[-1] + last_s, rates))


def _lines(path: Path, reading: _Reading) -> list[str]:
    lines = read_lines(path, f"its header is {','.join(HEADER)}")
    if isinstance(lines, DocumentProblem):
        reading.problems.append(lines)
        return []
    return lines


def _read_rows(lines: Sequence[str], reading: _Reading) -> None:
    if not lines or tuple(cell.strip() for cell in cells_of(lines[0])) != HEADER:
        header = quoted(lines[0]) if lines else "missing"
        reading.problem(1, 1, f"the header is {header}", f"write {','.join(HEADER)}")
        return
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            _read_row(number, line, reading)
        if len(reading.problems) > _MAX_PROBLEMS:
            return
    if not reading.rows and not reading.problems:
        hint = f"add for example 0,{next(iter(reading.sources))},40"
        reading.problem(1, 1, "the file has no rows below the header", hint)


def _read_row(number: int, line: str, reading: _Reading) -> None:
    cells = cells_of(line)
    if len(cells) != len(HEADER):
        reading.problem(number, 1, f"{len(cells)} fields instead of 3: {quoted(line)}", "write time,source,rate")
        return
    columns = cell_columns(line, cells)
    time_s = _number("time", cells[0], "seconds", number, columns[0], reading)
    rate = _number("rate", cells[2], "requests per second", number, columns[2], reading)
    name = cells[1].strip()
    if name not in reading.sources:
        hint = did_you_mean(name, list(reading.sources)) or f"sources: {', '.join(reading.sources)}"
        reading.problem(number, columns[1], f"the workflow has no source {quoted(name)}", hint)
        return
    if rate is not None and rate > _MAX_RATE_PER_S:
        reading.problem(
            number,
            columns[2],
            f"a rate of {rate_text(rate)} is too high to replay",
            f"at most {rate_text(_MAX_RATE_PER_S)}",
        )
        return
    if time_s is None or rate is None:
        return
    rows = reading.rows.setdefault(name, [])
    if rows and time_s <= rows[-1].time_s:
        text = f"{name} already has a row for {rows[-1].time_s:g} s (line {rows[-1].line})"
        reading.problem(number, columns[0], text, "the times of a source must increase")
        return
    rows.append(_Row(number, time_s, rate))


def _number(name: str, text: str, unit: str, line: int, column: int, reading: _Reading) -> float | None:
    try:
        value = decimal_number(text)
    except ValueError:
        reading.problem(line, column, f"{quoted(text.strip())} is not a {name}", f"write a plain number of {unit}")
        return None
    if not math.isfinite(value) or value < 0:
        reading.problem(line, column, f"a {name} must be finite and not negative, not {text.strip()}")
        return None
    return value


def _in_force(rows: Sequence[_Row], source: Source, times: Sequence[float]) -> list[_Row]:
    """The row in effect at each time; before a source's first row it is the workflow's rate, as line 0."""
    active: list[_Row] = []
    current, coming = _Row(0, 0.0, source.rate_per_s), iter(rows)
    following = next(coming, None)
    for time in times:
        if following is not None and following.time_s <= time:
            current, following = following, next(coming, None)
        active.append(current)
    return active


def _check_equal(
    sites: Mapping[str, int], in_force: Mapping[str, Sequence[_Row]], times: Sequence[float], reading: _Reading
) -> None:
    """Report sources of the same request stream whose total rates differ: a join needs equal rates.

    `sites`: source -> number of its sites; a total rate is the rate per site times the number of sites.
    """
    first, *others = sites
    for other in others:
        reported: set[tuple[int, int]] = set()
        for time, one, two in zip(times, in_force[first], in_force[other], strict=True):
            lines = (one.line, two.line)
            if lines in reported or math.isclose(
                one.rate_per_s * sites[first], two.rate_per_s * sites[other], rel_tol=1e-9
            ):
                continue
            reported.add(lines)
            both = f"{_describe_rate(first, one)} but {_describe_rate(other, two)}"
            text = f"from {time:g} s on, {both}; a request needs a message of both"
            reading.problem(max(lines), 1, text, "give both the same rate at every time")


def _describe_rate(name: str, row: _Row) -> str:
    where = f"line {row.line}" if row.line else "the workflow's rate, before the first row"
    return f"{name} has {rate_text(row.rate_per_s)} ({where})"
