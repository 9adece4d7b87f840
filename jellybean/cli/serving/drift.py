"""`report --drift`: what has left its prediction while it was served."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Table

from jellybean.bench.heldout import read_array
from jellybean.cli.command_resources import open_for_command
from jellybean.cli.console import EXIT_MISSED, out, print_json, say, warn
from jellybean.cli.serving.cost import parse_time
from jellybean.cli.serving.ledger_source import nothing_served, open_ledger_source
from jellybean.cli.serving.project_copy import project_copy
from jellybean.display import formats
from jellybean.documents import load_project
from jellybean.errors import InputError, JellyBeanError
from jellybean.ledger.questions import Span
from jellybean.report import Store
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.drift_watch import Drifted, DriftWatch
from jellybean.report.records import record_once
from jellybean.report.served_figures import observations
from jellybean.report.served_values import value_observations
from jellybean.serving.client import served_document
from jellybean.serving.endpoint import Endpoint
from jellybean.serving.errors import RequestError
from jellybean_agent import Array
from jellybean_solver import from_document

_YEAR_S = 365.25 * 86_400.0


def show_drift(directory: Path, url: str | None, since: str, endpoint: Endpoint | None, *, json: bool) -> None:
    """Print what is off in the plan that was served last. Exit status 5 if anything is.

    `url`: of the ledger; `endpoint`: a gateway that is asked about its own.
    """
    span = Span(parse_time(since))
    with open_ledger_source(directory, url, endpoint) as source:
        counts = source.counts(None, span)
    if counts is None:
        raise InputError(nothing_served(directory, endpoint))
    plan_hash = counts.plan
    if endpoint is not None:
        record_once(directory, served_document(endpoint))
    snapshot = Store.of(directory).latest(plan_hash)
    if snapshot is None:
        raise InputError(f"the plan that was served last, {plan_hash[:HASH_DIGITS]}, is not in the report store")
    seen = observations(counts, from_document(snapshot.document))
    seen += value_observations(counts.values, _held_out_of(directory, endpoint), span)
    drifted = DriftWatch().see_all(seen).drifted
    if json:
        items = [one.to_json() for one in drifted]
        print_json({"plan": plan_hash, "figures": len({one.name for one in seen}), "drifted": items})
    elif drifted:
        out.print(_table(drifted))
    else:
        figures = formats.count(len({one.name for one in seen}), "figure")
        say(f"{figures} of plan {plan_hash[:HASH_DIGITS]} as predicted" if seen else "too little was served to tell")
    if drifted:
        raise typer.Exit(EXIT_MISSED)


def _held_out_of(directory: Path, endpoint: Endpoint | None) -> dict[str, Array]:
    """The held-out requests of DIR, or those of the gateway's project if DIR has no documents."""
    try:
        copy = open_for_command(project_copy(directory, endpoint))
    except RequestError as error:
        warn(f"inputs are not compared with held-out ones: {error.reason}")
        return {}
    return _held_out(copy or directory)


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
