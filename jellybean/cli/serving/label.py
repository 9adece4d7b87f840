"""Commands label and accuracy: labels that come after the answers, and how many answers are right by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import EXIT_BAD_INPUT, EXIT_MISSED, out, print_json, say, warn
from jellybean.cli.serving.cost import LedgerAt, Since, Until, parse_time
from jellybean.cli.serving.gateway_options import (
    AdminTls,
    AtContext,
    AtKubeconfig,
    AtNamespace,
    GatewayAt,
    InCluster,
    given_endpoint,
)
from jellybean.cli.serving.ledger_source import nothing_served, open_ledger_source
from jellybean.documents import load_project
from jellybean.errors import InputError
from jellybean.ledger.answers import LabelledBy, ServedAccuracy
from jellybean.ledger.labels import LabelOutcome, LaterLabel, label_rule, read_labels
from jellybean.ledger.ledger import ledger_url
from jellybean.ledger.questions import Span
from jellybean.report import Store

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint

_SHOWN_PROBLEMS = 5


@app.command(
    epilog=example(
        "jellybean label my-digits labels.csv",
        "jellybean label my-digits --id order-17 --label 7",
        "jellybean accuracy my-digits",
    )
)
def label(
    directory: Directory,
    file: Annotated[
        Path | None, typer.Argument(help="CSV file with the columns id and label, and perhaps client.")
    ] = None,
    request: Annotated[str | None, typer.Option("--id", help="Id of one request.")] = None,
    value: Annotated[
        str | None,
        typer.Option("--label", help="Its label: a number, a list of numbers, or text, as the metric has it."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Whose request it was, if several clients used the id.")] = None,
    json: Json = False,
    ledger: LedgerAt = None,
    gateway: GatewayAt = None,
    tls: AdminTls = None,
    context: AtContext = None,
    namespace: AtNamespace = None,
    kubeconfig: AtKubeconfig = None,
) -> None:
    """Say what was right of answers given earlier, by request id: `jellybean accuracy` then knows.

    Answers to requests with an id are kept for 30 days, if they are small.
    """
    if (file is None) == (request is None) or (request is None) != (value is None):
        raise typer.BadParameter("give a FILE, or --id and --label of one request")
    endpoint = given_endpoint(directory, gateway, tls, InCluster(context, namespace, kubeconfig))
    labels = read_labels(file) if file is not None else (LaterLabel(request or "", value or "", client),)
    outcomes = _labelled(directory, ledger, endpoint, labels)
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
    problems = [
        f"{label.where}{outcome.problem}" for label, outcome in zip(labels, outcomes, strict=True) if outcome.problem
    ]
    if json:
        print_json({"labelled": len(verdicts), "right": math.fsum(verdicts), "problems": problems})
    else:
        for problem in problems[:_SHOWN_PROBLEMS]:
            warn(problem)
        if len(problems) > _SHOWN_PROBLEMS:
            warn(f"and {len(problems) - _SHOWN_PROBLEMS} others")
        share = f": {math.fsum(verdicts):g} right" if verdicts else ""
        say(f"{len(verdicts)} labelled{share}; see `jellybean accuracy {directory}`")
    if problems:
        raise typer.Exit(EXIT_BAD_INPUT)


def _labelled(
    directory: Path, ledger: str | None, endpoint: Endpoint | None, labels: Sequence[LaterLabel]
) -> tuple[LabelOutcome, ...]:
    """What becomes of the labels. A gateway judges by the metric of its workflow, so DIR needs no documents."""
    if endpoint is not None:
        with open_ledger_source(directory, ledger, endpoint) as source:
            return source.label(labels)
    project = load_project(directory, profiles=False)
    if ledger is None and not Path(ledger_url(directory)).exists():
        raise InputError(nothing_served(directory, None))
    name = project.workflow.name
    with open_ledger_source(directory, ledger, None, workflow=name, rule=label_rule(project)) as source:
        return source.label(labels)


@app.command(epilog=example("jellybean accuracy my-digits --since 7d", "jellybean accuracy my-digits --by selection"))
def accuracy(
    directory: Directory,
    by: Annotated[LabelledBy, typer.Option(help="What answers are grouped by.")] = LabelledBy.ALL,
    since: Since = None,
    until: Until = None,
    json: Json = False,
    ledger: LedgerAt = None,
    gateway: GatewayAt = None,
    tls: AdminTls = None,
    context: AtContext = None,
    namespace: AtNamespace = None,
    kubeconfig: AtKubeconfig = None,
) -> None:
    """Show the accuracy of what was served, by labels that came later, with 95 % intervals.

    Exit status 5 if the answers of the newest plan are worse than it predicted: its accuracy is above their interval.
    """
    endpoint = given_endpoint(directory, gateway, tls, InCluster(context, namespace, kubeconfig))
    plan = _newest_plan(directory, endpoint)
    limits = ((since, -math.inf), (until, math.inf))
    span = Span(*(otherwise if text is None else parse_time(text) for text, otherwise in limits))
    with open_ledger_source(directory, ledger, endpoint, workflow=str(plan["name"])) as source:
        found = source.accuracy(by, span)
        by_plan = source.accuracy(LabelledBy.PLAN, span).lines
    lines, waiting = tuple(line for line in found.lines if line.labels), found.waiting
    planned = None if plan.get("accuracy") is None else float(plan["accuracy"])
    if json:
        items = [{by.value: line.name, "labels": line.labels, **_figures(line)} for line in lines]
        print_json({"by": by.value, "planned": planned, "lines": items, "waiting_for_labels": waiting})
    elif not lines:
        say(f"no labels yet; {waiting} answers wait for theirs: jellybean label {directory} FILE")
    else:
        out.print(_table(lines, by, planned))
    of_newest = next((line for line in by_plan if line.name == plan["hash"] and line.labels), None)
    if planned is not None and of_newest is not None and of_newest.high < planned:
        if not json:
            shown = f"{of_newest.low:.2f} to {of_newest.high:.2f} % by {of_newest.labels:,} labels"
            warn(f"the newest plan is worse than planned ({planned:.2f} %): {shown}")
        raise typer.Exit(EXIT_MISSED)


def _newest_plan(directory: Path, endpoint: Endpoint | None) -> Mapping[str, Any]:
    """The document of the project's newest plan, or of the one that a gateway serves. InputError if there is none."""
    if endpoint is not None:
        from jellybean.serving.client import served_document

        return served_document(endpoint)
    snapshot = Store.of(directory).latest()
    if snapshot is None:
        raise InputError(f"no plan was made yet: jellybean plan {directory}")
    return {**snapshot.document, "hash": snapshot.plan_hash}


def _figures(line: ServedAccuracy) -> dict[str, float]:
    return {"accuracy": line.accuracy, "low": line.low, "high": line.high}


def _table(lines: tuple[ServedAccuracy, ...], by: LabelledBy, planned: float | None) -> Table:
    title = "accuracy of what was served" + (f"; planned {planned:.2f} %" if planned is not None else "")
    table = Table("workflow" if by is LabelledBy.ALL else by.value, title=title, title_justify="left")
    for name in ("labels", "right", "95 % interval"):
        table.add_column(name, justify="right")
    for line in lines:
        interval = f"{line.low:.2f} to {line.high:.2f} %"
        table.add_row(line.name or "(all alike)", f"{line.labels:,}", f"{line.accuracy:.2f} %", interval)
    return table
