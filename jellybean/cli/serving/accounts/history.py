"""Command history: what happened to a project, in order."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import out, print_json, say
from jellybean.cli.serving.accounts.cost import LedgerAt, Since, parse_time
from jellybean.cli.serving.accounts.ledger_source import nothing_served, open_ledger_source
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    takes_gateway,
)
from jellybean.cli.serving.remote_store import shown_store
from jellybean.folders import shell_text
from jellybean.ledger.span import Span
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.history import HistoryEntry
from jellybean.report.history import history as history_of

_MOST_PLANS = 3


@app.command(epilog=example("jellybean history my-digits", "jellybean history my-digits --since 2d --json"))
@takes_gateway
def history(
    directory: Directory,
    since: Since = None,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="Only of plans whose hash begins so.")] = None,
    json: Json = False,
    ledger: LedgerAt = None,
    at: GatewayOptions = GatewayOptions(),
) -> None:
    """Show when which plan was made, simulated, served and measured. Times are in UTC.

    Of a gateway elsewhere: also what was planned and measured in its project.
    """
    begin_s = -math.inf if since is None else parse_time(since)
    endpoint = at.endpoint(directory)
    with open_ledger_source(directory, ledger, endpoint) as source:
        events = source.events(Span(begin_s))
    known = history_of(shown_store(directory, endpoint).history(), events)
    entries = [entry for entry in known if entry.at_unix_s >= begin_s and entry.plan.startswith(plan or "")]
    if json:
        print_json([entry.to_json() for entry in entries])
    elif not entries:
        first = (
            f"nothing happened yet: jellybean plan {shell_text(directory)}"
            if endpoint is None
            else nothing_served(directory, endpoint)
        )
        say(first if since is None and plan is None else _nothing(since, plan, known))
    else:
        out.print(_table(entries))


def _nothing(since: str | None, plan: str | None, known: Sequence[HistoryEntry]) -> str:
    """What was asked for and is not there, and which plans there are."""
    asked = ("" if plan is None else f" of a plan {plan}") + ("" if since is None else f" since {since}")
    hashes = dict.fromkeys(entry.plan[:HASH_DIGITS] for entry in reversed(known) if entry.plan)
    return f"nothing{asked}" + (f"; the newest plans are {', '.join(list(hashes)[:_MOST_PLANS])}" if hashes else "")


def _table(entries: list[HistoryEntry]) -> Table:
    table = Table("when", "what", "plan", "", title="history", title_justify="left")
    for entry in entries:
        when = datetime.datetime.fromtimestamp(entry.at_unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(when, entry.what, entry.plan[:HASH_DIGITS], entry.text)
    return table
