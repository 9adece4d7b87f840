"""What serving cost and how it went, for notebooks: tables of a project's ledger and report store.

Every function returns a pandas DataFrame where pandas is installed, otherwise a list with a dict for each row.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.questions import By, all_events
from jellybean.ledger.questions import cost as cost_lines
from jellybean.ledger.questions import served as served_lines
from jellybean.ledger.span import Span
from jellybean.report import Store
from jellybean.report.history import history as history_of

Rows = Any  # a DataFrame, or a list of dicts


def cost(directory: str | Path, by: str = "day", span: Span = Span(), ledger: str | None = None) -> Rows:
    """What serving cost, as `jellybean cost`: `name`, `usd`, `workers_usd`, `traffic_usd`, `done`, `failed`.

    `by`: day, hour, workflow, plan, operator, variant, worker, tier, site, link or client. `span`: Unix times between
    which intervals begin. `ledger`: URL, if it is not the project's own file.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        lines = () if opened is None else cost_lines(opened, By(by), span)
    return _table([{**asdict(line), "usd": line.usd} for line in lines])


def served(directory: str | Path, by: str = "day", span: Span = Span(), ledger: str | None = None) -> Rows:
    """How requests went by day or hour: numbers by outcome, and latencies p50, p90 and p99 in seconds.

    Latencies are from a histogram, accurate to 15 %; None without an answer.
    """
    with opened_ledger(Path(directory), ledger) as opened:
        lines = () if opened is None else served_lines(opened, By(by), span)
    return _table([asdict(line) | dict(line.ends) for line in lines], without=("ends",))


def history(directory: str | Path, ledger: str | None = None) -> Rows:
    """What was planned, simulated, served and measured, as `jellybean history`: `at_unix_s`, `what`, `plan`, `text`."""
    with opened_ledger(Path(directory), ledger) as opened:
        events = () if opened is None else all_events(opened)
    return _table([entry.to_json() for entry in history_of(Store.of(Path(directory)).history(), events)])


def _table(rows: Sequence[dict[str, Any]], without: Sequence[str] = ()) -> Rows:
    kept = [{key: value for key, value in row.items() if key not in without} for row in rows]
    if importlib.util.find_spec("pandas") is None:
        return kept
    return importlib.import_module("pandas").DataFrame(kept)
