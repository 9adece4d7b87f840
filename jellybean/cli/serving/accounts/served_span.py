"""`report --between` and `--plan`: what was served in a span of time, or by one plan."""

from __future__ import annotations

from typing import Annotated

import typer

from jellybean.cli.console import out, say
from jellybean.cli.serving.accounts.cost import parse_time
from jellybean.ledger.queries.source import LedgerSource
from jellybean.ledger.span import Span
from jellybean.report import Report, Store
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.served.served import Served, ServedQuestion, last_days, served
from jellybean.report.served.served_prediction import planned_figures
from jellybean.report.served.served_table import served_table

Between = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--between",
        metavar="TIME TIME",
        help="What was served from one time to another, written as of `cost`: curves, cost, counts, labels.",
    ),
]


def asked_span(between: tuple[str, str] | None, plan_hash: str, now_unix_s: float) -> Span:
    """The span of `--between`; without it all that a plan served, or of all plans the last days. Empty hash: all plans.

    BadParameter if it ends before it begins.
    """
    if between is None:
        return Span(plan=plan_hash) if plan_hash else last_days(now_unix_s)
    since_s, until_s = (parse_time(text) for text in between)
    if since_s >= until_s:
        raise typer.BadParameter(f"--between {between[0]} {between[1]} ends before it begins: write the earlier first")
    return Span(since_s, until_s, plan=plan_hash)


def ask_served(ledger: LedgerSource, store: Store, report: Report, span: Span) -> Served | None:
    """What was served in a span, beside what the plans of a store predicted; None if nothing was."""
    time = ledger.served_time(span)
    if time is None:
        return None
    plan = report.plan
    names = tuple(workflow.name for workflow in plan.workflows) or (plan.name,)
    planned = planned_figures(store, time.plans)
    return served(ledger, ServedQuestion(span, names, planned))


def nothing_served(span: Span, between: tuple[str, str] | None) -> str:
    """That nothing was served in a span that was asked for; empty if none was."""
    whose = f"plan {span.plan[:HASH_DIGITS]} served nothing" if span.plan else "nothing was served"
    if between is not None:
        return f"{whose} from {between[0]} to {between[1]}"
    return f"{whose} yet" if span.plan else ""


def print_served(served: Served | None, nothing: str, asked: str) -> None:
    """Print what was served, or that nothing was where it was asked for. `asked`: arguments of a further command."""
    if served is not None:
        out.print(served_table(served))
    elif nothing:
        say(f"{nothing}; see `jellybean history {asked}`")
