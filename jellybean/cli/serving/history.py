"""Command history: what happened to a project, in order."""

from __future__ import annotations

import datetime
import math
from typing import Annotated

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import out, print_json, say
from jellybean.cli.serving.cost import LedgerAt, Since, parse_time
from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.questions import all_events
from jellybean.report import Store
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.history import HistoryEntry
from jellybean.report.history import history as history_of


@app.command(epilog=example("jellybean history my-digits", "jellybean history my-digits --since 2d --json"))
def history(
    directory: Directory,
    since: Since = None,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="Only of plans whose hash begins so.")] = None,
    json: Json = False,
    ledger: LedgerAt = None,
) -> None:
    """Show when what was planned, simulated, served and measured. Times are in UTC."""
    begin_s = -math.inf if since is None else parse_time(since)
    with opened_ledger(directory, ledger) as opened:
        events = () if opened is None else all_events(opened)
    entries = [
        entry
        for entry in history_of(Store.of(directory).history(), events)
        if entry.at_unix_s >= begin_s and entry.plan.startswith(plan or "")
    ]
    if json:
        print_json([entry.to_json() for entry in entries])
    elif not entries:
        say(f"nothing happened yet: jellybean plan {directory}" if since is None and plan is None else "nothing")
    else:
        out.print(_table(entries))


def _table(entries: list[HistoryEntry]) -> Table:
    table = Table("when", "what", "plan", "", title="history", title_justify="left")
    for entry in entries:
        when = datetime.datetime.fromtimestamp(entry.at_unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(when, entry.what, entry.plan[:HASH_DIGITS], entry.text)
    return table
