"""`report --drift`: what has left its prediction while it was served."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Table

from jellybean.cli.console import EXIT_MISSED, out, print_json, say, warn
from jellybean.cli.serving.cost import parse_time
from jellybean.display import formats
from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.span import Span
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.drift_watch import Drifted
from jellybean.report.project_drift import project_drift

_YEAR_S = 365.25 * 86_400.0


def show_drift(directory: Path, url: str | None, since: str, *, json: bool) -> None:
    """Print what is off in the plan that was served last. Exit status 5 if anything is. `url`: of the ledger."""
    with opened_ledger(directory, url) as ledger:
        found = project_drift(directory, ledger, Span(parse_time(since)), warn)
    drifted = found.drifted
    if json:
        items = [one.to_json() for one in drifted]
        print_json({"plan": found.plan, "figures": found.figures, "drifted": items})
    elif drifted:
        out.print(_table(drifted))
    else:
        figures = formats.count(found.figures, "figure")
        known = f"{figures} of plan {found.plan[:HASH_DIGITS]} as predicted"
        say(known if found.figures else "too little was served to tell")
    if drifted:
        raise typer.Exit(EXIT_MISSED)


def _table(drifted: Sequence[Drifted]) -> Table:
    table = Table(title="not as predicted", title_justify="left")
    table.add_column("what", overflow="fold")
    for name in ("difference", "since (UTC)", "once by chance in"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in drifted:
        since = datetime.datetime.fromtimestamp(one.since_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(one.name, _distance(one), since, _rarely(one.once_in_s))
    return table


def _distance(one: Drifted) -> str:
    return f"{1 + one.distance:.2f} times" if one.is_relative else f"{one.distance:+.1f} std. dev."


def _rarely(seconds: float) -> str:
    if seconds > 100 * _YEAR_S:
        return "over 100 years"
    if seconds > _YEAR_S:
        return f"{seconds / _YEAR_S:.0f} years"
    return f"{seconds / 86_400:.1f} days"
