"""Commands label and accuracy: labels that come after the answers, and how many answers are right by them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from jellybean.bench.later_labels import LaterLabel, label_answers, read_labels
from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import EXIT_BAD_INPUT, EXIT_MISSED, out, print_json, say, warn
from jellybean.cli.serving.audited import audit_table, audit_warnings, audits_of
from jellybean.cli.serving.cost import LedgerAt, Since, Until, parse_time
from jellybean.documents import load_project
from jellybean.errors import InputError
from jellybean.ledger.answers import LabelledBy, ServedAccuracy, served_accuracy, waiting_answers
from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.questions import Span
from jellybean.report import Store
from jellybean.report.store import Snapshot

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
) -> None:
    """Say what was right of answers given earlier, by request id: `jellybean accuracy` then knows.

    Answers to requests with an id are kept for 30 days, if they are small.
    """
    if (file is None) == (request is None) or (request is None) != (value is None):
        raise typer.BadParameter("give a FILE, or --id and --label of one request")
    project = load_project(directory, profiles=False)
    labels = read_labels(file) if file is not None else (LaterLabel(request or "", value or "", client),)
    with opened_ledger(directory, ledger) as opened:
        if opened is None:
            raise InputError(f"nothing was served yet: jellybean up {directory}")
        found = label_answers(opened, project, labels)
    if json:
        print_json(
            {"labelled": len(found.verdicts), "right": math.fsum(found.verdicts), "problems": list(found.problems)}
        )
    else:
        for problem in found.problems[:_SHOWN_PROBLEMS]:
            warn(problem)
        if len(found.problems) > _SHOWN_PROBLEMS:
            warn(f"and {len(found.problems) - _SHOWN_PROBLEMS} others")
        share = f": {math.fsum(found.verdicts):g} right" if found.verdicts else ""
        say(f"{len(found.verdicts)} labelled{share}; see `jellybean accuracy {directory}`")
    if found.problems:
        raise typer.Exit(EXIT_BAD_INPUT)


@app.command(epilog=example("jellybean accuracy my-digits --since 7d", "jellybean accuracy my-digits --by selection"))
def accuracy(
    directory: Directory,
    by: Annotated[LabelledBy, typer.Option(help="What answers are grouped by.")] = LabelledBy.ALL,
    since: Since = None,
    until: Until = None,
    json: Json = False,
    ledger: LedgerAt = None,
) -> None:
    """Show the accuracy of what was served, by labels that came later and by audits, with 95 % intervals.

    Exit status 5 if the answers of the newest plan are worse than it predicted: its accuracy is above their interval.
    """
    snapshot = Store.of(directory).latest()
    if snapshot is None:
        raise InputError(f"no plan was made yet: jellybean plan {directory}")
    workflow = str(snapshot.document["name"])
    limits = ((since, -math.inf), (until, math.inf))
    span = Span(*(otherwise if text is None else parse_time(text) for text, otherwise in limits))
    with opened_ledger(directory, ledger) as opened:
        lines = () if opened is None else served_accuracy(opened, workflow, by, span)
        by_plan = () if opened is None else served_accuracy(opened, workflow, LabelledBy.PLAN, span)
        waiting = 0 if opened is None else waiting_answers(opened, workflow)
        audited = None if opened is None else audits_of(opened, snapshot, span)
    lines = tuple(line for line in lines if line.labels)
    planned = _planned_accuracy(snapshot)
    if json:
        items = [{by.value: line.name, "labels": line.labels, **_figures(line)} for line in lines]
        audits = None if audited is None else audited.to_json()
        print_json(
            {"by": by.value, "planned": planned, "lines": items, "waiting_for_labels": waiting, "audits": audits}
        )
    else:
        if lines:
            out.print(_table(lines, by, planned))
        elif audited is None or waiting:
            say(f"no labels yet; {waiting} answers wait for theirs: jellybean label {directory} FILE")
        if audited is not None:
            out.print(audit_table(audited))
    of_newest = next((line for line in by_plan if line.name == snapshot.plan_hash and line.labels), None)
    worse = [*_by_labels(of_newest, planned), *audit_warnings(audited)]
    if worse:
        for text in () if json else worse:
            warn(text)
        raise typer.Exit(EXIT_MISSED)


def _by_labels(of_newest: ServedAccuracy | None, planned: float | None) -> Iterator[str]:
    """That the newest plan is worse than planned by its labels, if it is."""
    if planned is not None and of_newest is not None and of_newest.high < planned:
        shown = f"{of_newest.low:.2f} to {of_newest.high:.2f} % by {of_newest.labels:,} labels"
        yield f"the newest plan is worse than planned ({planned:.2f} %): {shown}"


def _planned_accuracy(snapshot: Snapshot) -> float | None:
    """The accuracy that a plan was predicted to have."""
    found = snapshot.document.get("accuracy")
    return None if found is None else float(found)


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
