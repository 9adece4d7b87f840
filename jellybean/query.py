"""What serving cost and how it went, for notebooks: tables of a project's ledger and report store.

Every function returns a pandas DataFrame where pandas is installed, otherwise a list with a dict for each row. Times
are Unix times in seconds. `span` restricts a question to a time and a plan: `Span(since_s, until_s, plan=...)`.
`ledger` is the URL of a database, if it is not the project's own file.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from jellybean.errors import InputError
from jellybean.folders import shell_text
from jellybean.ledger.answers import LabelledBy, ServedAccuracy, served_accuracy
from jellybean.ledger.columns import ENDS
from jellybean.ledger.interval_rows import IntervalRow, interval_rows
from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.queries.accuracy_timeline import accuracy_timeline
from jellybean.ledger.queries.questions import By, TimelinePoint, all_events
from jellybean.ledger.queries.questions import cost as cost_lines
from jellybean.ledger.queries.questions import served as served_lines
from jellybean.ledger.queries.questions import timeline as timeline_points
from jellybean.ledger.queries.source import OpenedLedger
from jellybean.ledger.span import Span
from jellybean.report import Store
from jellybean.report.drift.project_drift import project_drift
from jellybean.report.history import HistoryEntry
from jellybean.report.history import history as history_of
from jellybean_solver import from_document

Rows = Any  # a DataFrame, or a list of dicts
_ACCURACY = ("labels", "accuracy", "low", "high")


def cost(directory: str | Path, by: str = "day", span: Span = Span(), ledger: str | None = None) -> Rows:
    """What serving cost, as `jellybean cost`: `name`, `usd`, `workers_usd`, `traffic_usd`, `done`, `failed`.

    `by`: day, hour, workflow, plan, operator, variant, worker, tier, site, link or client.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        lines = () if opened is None else cost_lines(opened, By(by), span)
    columns = ("name", "usd", "workers_usd", "traffic_usd", "done", "failed")
    return _table([{**asdict(line), "usd": line.usd} for line in lines], columns)


def served(directory: str | Path, by: str = "day", span: Span = Span(), ledger: str | None = None) -> Rows:
    """How requests went by day or hour: numbers by outcome, and latencies p50, p90 and p99 in seconds.

    Latencies are from a histogram, accurate to 15 %; None without an answer.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        lines = () if opened is None else served_lines(opened, By(by), span)
    columns = ("name", "received", *ENDS, "latency_p50_s", "latency_p90_s", "latency_p99_s")
    return _table([asdict(line) | dict(line.ends) for line in lines], columns)


def accuracy(directory: str | Path, by: str = "all", span: Span = Span(), ledger: str | None = None) -> Rows:
    """Accuracy by labels that came later, as `jellybean accuracy`, in percent with its 95 % interval `low` to `high`.

    `by`: all, day, hour, plan, selection, site or client.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        lines = [
            {"workflow": workflow, "name": line.name, **_accuracy(line)}
            for workflow in _workflows(directory)
            for line in (() if opened is None else served_accuracy(opened, workflow, LabelledBy(by), span))
            if line.labels
        ]
    return _table(lines, ("workflow", "name", *_ACCURACY))


def accuracy_over_time(
    directory: str | Path, piece_s: int = 86_400, span: Span = Span(), ledger: str | None = None
) -> Rows:
    """Accuracy by labels in pieces of time of `piece_s` seconds, which begin at `begin_s`; figures as of `accuracy`."""
    with opened_ledger(Path(directory), ledger) as opened:
        points = [
            {"workflow": workflow, "begin_s": point.begin_s, **_accuracy(point.accuracy)}
            for workflow in _workflows(directory)
            for point in (() if opened is None else accuracy_timeline(opened, workflow, piece_s, span))
        ]
    return _table(points, ("workflow", "begin_s", *_ACCURACY))


def intervals(directory: str | Path, span: Span = Span(), ledger: str | None = None) -> Rows:
    """The intervals that the ledger has: their begin and end, plan, seconds that were paid for, USD and requests.

    They are ten seconds long, and later added up to five minutes, hours and days.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        rows = () if opened is None else interval_rows(opened, span)
    return _table(map(asdict, rows), _names(IntervalRow))


def timeline(directory: str | Path, piece_s: int = 3_600, span: Span = Span(), ledger: str | None = None) -> Rows:
    """Cost, answers, failures and p99 in pieces of time of `piece_s` seconds, as the report's page draws them."""
    with opened_ledger(Path(directory), ledger) as opened:
        points = () if opened is None else timeline_points(opened, piece_s, span)
    return _table(map(asdict, points), _names(TimelinePoint))


def drift(directory: str | Path, span: Span = Span(), ledger: str | None = None) -> Rows:
    """What has left its prediction while the last plan was served, as `jellybean report --drift`.

    `name`; `since_s`; `ratio` to the prediction, or the distance in `standard_deviations`; `by_chance_once_in_s`.
    InputError if nothing was served.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        found = project_drift(Store.of(Path(directory)), OpenedLedger(opened), span, Path(directory))
    if found is None:
        raise InputError(f"nothing was served yet: jellybean up {shell_text(directory)}")
    columns = ("name", "since_s", "ratio", "standard_deviations", "by_chance_once_in_s")
    return _table([one.to_json() for one in found.drifted], columns)


def history(directory: str | Path, ledger: str | None = None) -> Rows:
    """What was planned, simulated, served and measured, as `jellybean history`: `at_unix_s`, `what`, `plan`, `text`."""
    with opened_ledger(Path(directory), ledger) as opened:
        events = () if opened is None else all_events(opened)
    entries = history_of(Store.of(Path(directory)).history(), events)
    return _table([entry.to_json() for entry in entries], _names(HistoryEntry))


def _workflows(directory: str | Path) -> tuple[str, ...]:
    """The workflows of the newest plan. InputError if there is none."""
    snapshot = Store.of(Path(directory)).latest()
    if snapshot is None:
        raise InputError(f"no plan was made yet: jellybean plan {shell_text(directory)}")
    plan = from_document(snapshot.document)
    return tuple(workflow.name for workflow in plan.workflows) or (plan.name,)


def _accuracy(line: ServedAccuracy) -> dict[str, float]:
    return {name: getattr(line, name) for name in _ACCURACY}


def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def _table(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> Rows:
    """The rows with these columns, which an empty table has, too."""
    kept = [{name: row.get(name) for name in columns} for row in rows]
    if importlib.util.find_spec("pandas") is None:
        return kept
    return importlib.import_module("pandas").DataFrame(kept, columns=list(columns))
