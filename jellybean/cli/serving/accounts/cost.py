"""Command cost: what serving has cost, by what, from the ledger."""

from __future__ import annotations

import csv
import datetime
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.serving.accounts.ledger_source import full_disk, nothing_served, open_ledger_source
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    takes_gateway,
)
from jellybean.ledger.amounts import apportioned_table, decimals_for
from jellybean.ledger.queries.questions import By, CostLine
from jellybean.ledger.span import Span

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(min|h|d|w)")
_AGE_S = {"min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_NOBODY = {
    By.CLIENT: "(no certificate, or no requests)",
    By.SITE: "(not at a site)",
    By.WORKER: "(sources)",
    By.LINK: "(workers)",
}
_DONE = {By.LINK: "", **dict.fromkeys((By.DAY, By.HOUR, By.WORKFLOW, By.PLAN, By.CLIENT), "answered")}


def parse_time(text: str) -> float:
    """Unix time of `7d` (seven days ago) or of a date or time in UTC, `2026-11-20` or `2026-11-20T15:30`."""
    found = _AGE.fullmatch(text.strip())
    if found is not None:
        return time.time() - float(found[1]) * _AGE_S[found[2]]
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no time: write an age (90min, 12h, 7d, 4w), a date (2026-11-20) or a time (2026-11-20T15:30)"
        ) from error
    return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()


Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="From then on: an age (90min, 12h, 7d, 4w), or a date or time in UTC; else all."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Up to then, written likewise; else up to now.")]
LedgerAt = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="Database of the ledger, if it is not the project's own file."),
]


@app.command(
    epilog=example(
        "jellybean cost my-digits",
        "jellybean cost my-digits --by operator --since 7d",
        "jellybean cost my-digits --by client --since 2026-11-01 --until 2026-12-01 --csv",
        "jellybean cost . --gateway gateway.example:8001 --tls admin",
        "jellybean cost my-digits --context fleet --namespace digits",
    )
)
@takes_gateway
def cost(
    directory: Directory,
    by: Annotated[By, typer.Option(help="What the cost is divided by.")] = By.DAY,
    since: Since = None,
    until: Until = None,
    json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print lines of comma-separated values.")] = False,
    ledger: LedgerAt = None,
    at: GatewayOptions = GatewayOptions(),
) -> None:
    """Show what serving cost: workers at their prices, and bytes over links, as recorded meanwhile.

    Days and hours are in UTC. Requires a run since; its last seconds are recorded when it ends.
    """
    if json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    limits = ((since, -math.inf), (until, math.inf))
    span = Span(*(otherwise if text is None else parse_time(text) for text, otherwise in limits))
    if span.since_s > span.until_s:
        raise typer.BadParameter(f"--since {since} is after --until {until}")
    endpoint = at.endpoint(directory)
    with open_ledger_source(directory, ledger, endpoint) as source:
        lines = source.cost(by, span)
    if lines and endpoint is None and ledger is None and (full := full_disk(directory)):
        warn(full)
    if json:
        items = [_item(line, by) for line in lines]
        print_json({"by": by.value, "usd": math.fsum(line.usd for line in lines), "lines": items})
    elif as_csv:
        _print_csv(lines, by)
    elif not lines:
        say(nothing_served(directory, endpoint, ledger, in_span=bool(since or until)))
    else:
        out.print(_table(lines, by))


def _item(line: CostLine, by: By) -> dict[str, object]:
    done = {} if line.done is None else {_DONE.get(by, "completed"): line.done, "failed": line.failed}
    return {
        by.value: line.name, "usd": line.usd, "workers_usd": line.workers_usd, "traffic_usd": line.traffic_usd, **done
    }  # fmt: skip


def _print_csv(lines: Sequence[CostLine], by: By) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    items = [_item(line, by) for line in lines]
    writer.writerow(items[0] if items else (by.value, "usd", "workers_usd", "traffic_usd"))
    writer.writerows(item.values() for item in items)


def _table(lines: Sequence[CostLine], by: By) -> Table:
    """The lines and their sum, in USD, rounded so that they add up."""
    total = math.fsum(line.usd for line in lines)
    decimals = decimals_for(total)
    parts = apportioned_table([(line.workers_usd, line.traffic_usd) for line in lines], decimals)
    done = _DONE.get(by, "completed")
    split = by is not By.CLIENT  # a client's part is one amount
    columns = [by.value, "USD", *(("workers", "traffic") if split else ()), *((done, "failed") if done else ())]
    table = Table(columns[0], title="cost", title_justify="left")
    for name in columns[1:]:
        table.add_column(name, justify="right")
    if done == "answered":
        table.add_column("USD per 1,000", justify="right")
    for line, (workers, traffic) in zip(lines, parts, strict=True):
        cells = _cells(workers, traffic, decimals, split=split)
        counts = [] if not done else [f"{line.done:,}", f"{line.failed:,}"]
        table.add_row(line.name or _NOBODY.get(by, ""), *cells, *counts, *_per_thousand(line.usd, line.done, done))
    if len(lines) > 1:
        answered, failed = (sum(getattr(line, name) or 0 for line in lines) for name in ("done", "failed"))
        workers, traffic = (sum(column) for column in zip(*parts, strict=True))
        cells = _cells(workers, traffic, decimals, split=split)
        counts = [f"{answered:,}", f"{failed:,}"] if done else []
        table.add_section()
        table.add_row("all", *cells, *counts, *_per_thousand(total, answered, done))
    return table


def _cells(workers: int, traffic: int, decimals: int, *, split: bool) -> list[str]:
    """Amounts in units of the last decimal as text: their sum, and where they are told apart each."""
    amounts = [workers + traffic, *((workers, traffic) if split else ())]
    return [f"{amount / 10**decimals:,.{decimals}f}" for amount in amounts]


def _per_thousand(usd: float, done: int | None, kind: str) -> list[str]:
    if kind != "answered":
        return []
    return [f"{1_000 * usd / done:.3g}" if done else ""]
