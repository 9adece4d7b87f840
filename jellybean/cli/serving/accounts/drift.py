"""`report --drift`: what has left its prediction while it was served."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Table

from jellybean.cli.command_resources import open_for_command
from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.exit_status import EXIT_MISSED
from jellybean.cli.serving.accounts.cost import parse_time
from jellybean.cli.serving.accounts.ledger_source import nothing_served, open_ledger_source
from jellybean.cli.serving.project_copy import project_copy
from jellybean.cli.serving.remote_store import shown_store
from jellybean.display import formats
from jellybean.errors import InputError
from jellybean.ledger.span import Span
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.drift.drift_watch import Drifted
from jellybean.report.drift.project_drift import project_drift
from jellybean.report.drift.served_figures import TIME_OF
from jellybean.report.records import record_once
from jellybean.serving.client import served_document
from jellybean.serving.endpoint import Endpoint
from jellybean.serving.errors import RequestError

_YEAR_S = 365.25 * 86_400.0


def show_drift(directory: Path, url: str | None, since: str, endpoint: Endpoint | None, *, json: bool) -> None:
    """Print what is off in the plan that was served last. Exit status 5 if anything is.

    `url`: of the ledger; `endpoint`: a gateway that is asked about its own.
    """
    if endpoint is not None:
        record_once(directory, served_document(endpoint))
    documents = _documents_of(directory, endpoint)
    with open_ledger_source(directory, url, endpoint) as source:
        found = project_drift(shown_store(directory, endpoint), source, Span(parse_time(since)), documents, warn)
    if found is None:
        raise InputError(nothing_served(directory, endpoint))
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
        if endpoint is None and any(TIME_OF in one.name for one in drifted):
            warn(
                "workers that `up` emulates on this machine take longer than their devices while it is too busy or too "
                "slow for them, and times may be off for that: the caveats of `jellybean bench` say whether it is"
            )
        raise typer.Exit(EXIT_MISSED)


def _documents_of(directory: Path, endpoint: Endpoint | None) -> Path | None:
    """The folder with the held-out requests: DIR, or a copy of the gateway's project if DIR has no documents."""
    try:
        return open_for_command(project_copy(directory, endpoint)) or directory
    except RequestError as error:
        warn(f"inputs are not compared with held-out ones: {error.reason}")
        return None


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
