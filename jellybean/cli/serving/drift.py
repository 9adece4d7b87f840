"""`report --drift`: what has left its prediction while it was served."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Table

from jellybean.bench.heldout import read_array
from jellybean.cli.console import EXIT_MISSED, out, print_json, say, warn
from jellybean.cli.serving.cost import parse_time
from jellybean.display import formats
from jellybean.documents import load_project
from jellybean.errors import InputError, JellyBeanError
from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.questions import Span, last_plan
from jellybean.report import Store
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.drift_watch import Drifted, DriftWatch
from jellybean.report.served_audits import watched_agreement
from jellybean.report.served_figures import observations
from jellybean.report.served_values import value_observations
from jellybean_agent import Array
from jellybean_solver import from_document

_YEAR_S = 365.25 * 86_400.0


def show_drift(directory: Path, url: str | None, since: str, *, json: bool) -> None:
    """Print what is off in the plan that was served last. Exit status 5 if anything is. `url`: of the ledger."""
    span = Span(parse_time(since))
    with opened_ledger(directory, url) as ledger:
        plan_hash = None if ledger is None else last_plan(ledger)
        if ledger is None or plan_hash is None:
            raise InputError(f"nothing was served yet: jellybean up {directory}")
        snapshot = Store.of(directory).latest(plan_hash)
        if snapshot is None:
            raise InputError(f"the plan that was served last, {plan_hash[:HASH_DIGITS]}, is not in the report store")
        plan = from_document(snapshot.document)
        seen = observations(ledger, plan, plan_hash, span)
        seen += value_observations(ledger, _held_out(directory), plan_hash, span)
        agreement = watched_agreement(ledger, plan, plan_hash, span)
    drifted = (*(agreement.drifted if agreement is not None else ()), *DriftWatch().see_all(seen).drifted)
    count = len({one.name for one in seen}) + (agreement is not None)
    if json:
        print_json({"plan": plan_hash, "figures": count, "drifted": [one.to_json() for one in drifted]})
    elif drifted:
        out.print(_table(drifted))
    else:
        figures = formats.count(count, "figure")
        say(f"{figures} of plan {plan_hash[:HASH_DIGITS]} as predicted" if count else "too little was served to tell")
    if drifted:
        raise typer.Exit(EXIT_MISSED)


def _held_out(directory: Path) -> dict[str, Array]:
    """Source -> held-out requests of the project in a folder; without sources that have none."""
    try:
        project = load_project(directory, profiles=False, files=False)
    except JellyBeanError:
        return {}  # a folder with a plan alone
    sources = project.workflow.sources
    found = {name: source.inputs for name, source in sources.items() if source.inputs is not None}
    rows: dict[str, Array] = {}
    for name, reference in found.items():
        try:
            rows[name] = read_array(directory, reference)
        except JellyBeanError as error:
            warn(f"the inputs of {name} cannot be compared: {error}")
    return rows


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
