"""Command label: labels that come after the answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import print_json, say, warn
from jellybean.cli.exit_status import EXIT_BAD_INPUT
from jellybean.cli.serving.accounts.cost import LedgerAt
from jellybean.cli.serving.accounts.ledger_source import nothing_served, open_ledger_source
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    OfWorkflow,
    chosen_workflow,
    takes_gateway,
)
from jellybean.cli.serving.project_settings import label_rules
from jellybean.documents import Project, load_any_project
from jellybean.errors import InputError
from jellybean.ledger.labels import LabelOutcome, LaterLabel, read_labels
from jellybean.ledger.ledger import ledger_url

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
@takes_gateway
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
    workflow: OfWorkflow = "",
    json: Json = False,
    ledger: LedgerAt = None,
    at: GatewayOptions = GatewayOptions(),
) -> None:
    """Give the right answers of earlier requests, by request id: `jellybean accuracy` judges by them.

    Answers that have an id are kept for 30 days, if they are small.
    """
    if (file is None) == (request is None) or (request is None) != (value is None):
        raise typer.BadParameter("give a FILE, or --id and --label of one request")
    endpoint = at.endpoint(directory)
    labels = read_labels(file) if file is not None else (LaterLabel(request or "", value or "", client),)
    outcomes = _labelled(directory, ledger, endpoint, workflow, labels)
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
        hint = f"; see `jellybean accuracy {at.arguments(directory)}`" if verdicts else ""
        say(f"{len(verdicts)} labelled{share}{hint}")
    if problems:
        raise typer.Exit(EXIT_BAD_INPUT)


def _labelled(
    directory: Path, ledger: str | None, endpoint: Endpoint | None, workflow: str, labels: Sequence[LaterLabel]
) -> tuple[LabelOutcome, ...]:
    """What becomes of the labels. A gateway judges by the metrics of its workflows, so DIR needs no documents."""
    if endpoint is not None:
        with open_ledger_source(directory, ledger, endpoint) as source:
            return source.label(workflow, labels)
    project = load_any_project(directory, profiles=False)
    names = (project.workflow.name,) if isinstance(project, Project) else tuple(project.workflows)
    name = chosen_workflow(names, workflow)
    if ledger is None and not Path(ledger_url(directory)).exists():
        raise InputError(nothing_served(directory, None))
    with open_ledger_source(directory, ledger, None, rules=label_rules(project)) as source:
        return source.label(name, labels)
