"""Command accuracy: how many answers are right by labels that came later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.exit_status import EXIT_MISSED
from jellybean.cli.serving.accounts.audited import audit_table, audit_warnings, audits_of
from jellybean.cli.serving.accounts.cost import LedgerAt, Since, Until, parse_time
from jellybean.cli.serving.accounts.ledger_source import open_ledger_source
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    OfWorkflow,
    chosen_workflow,
    takes_gateway,
)
from jellybean.errors import InputError
from jellybean.folders import shell_text
from jellybean.ledger.answers import LabelledBy, ServedAccuracy
from jellybean.ledger.queries.source import LedgerSource
from jellybean.ledger.span import Span
from jellybean.report import Store
from jellybean.report.drift.audited_accuracy import AuditedAccuracy
from jellybean_agent import plan_part
from jellybean_solver import from_document

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint


@app.command(epilog=example("jellybean accuracy my-digits --since 7d", "jellybean accuracy my-digits --by selection"))
@takes_gateway
def accuracy(
    directory: Directory,
    by: Annotated[LabelledBy, typer.Option(help="What answers are grouped by.")] = LabelledBy.ALL,
    since: Since = None,
    until: Until = None,
    workflow: OfWorkflow = "",
    json: Json = False,
    ledger: LedgerAt = None,
    at: GatewayOptions = GatewayOptions(),
) -> None:
    """Show the accuracy of what was served, by labels that came later and by audits, with 95 % intervals.

    Exit status 5 if the answers of the newest plan are worse than it predicted: its accuracy is above their interval.
    """
    endpoint = at.endpoint(directory)
    document = _newest_plan(directory, endpoint)
    plan = from_document(document)
    planned = {own.name: own.accuracy for own in plan.workflows} or {plan.name: plan.accuracy}
    several = len(planned) > 1 and not workflow
    wanted = tuple(planned) if several else (chosen_workflow(planned, workflow),)
    limits = ((since, -math.inf), (until, math.inf))
    span = Span(*(otherwise if text is None else parse_time(text) for text, otherwise in limits))
    with open_ledger_source(directory, ledger, endpoint) as source:
        parts = {name: from_document(plan_part(document, name)) if plan.workflows else plan for name in wanted}
        found = {
            name: replace(
                _ask(source, name, planned[name], str(document["hash"]), by, span),
                audited=audits_of(source, name, part, str(document["hash"]), span),
            )
            for name, part in parts.items()
        }
    if json:
        items = {name: {"by": by.value, **one.to_json(by)} for name, one in found.items()}
        print_json({"workflows": items} if several else items[wanted[0]])
    else:
        for name, one in found.items():
            _show(one, by, name if several else "", at.arguments(directory))
    worse = [f"{name}: {text}" if several else text for name, one in found.items() for text in one.warnings()]
    if worse:
        for text in () if json else worse:
            warn(text)
        raise typer.Exit(EXIT_MISSED)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of a workflow's answers. `newest`: those of the newest plan; None: none has a label.

    `audited`: what audits say of them; None: there are none.
    """

    planned: float | None
    lines: tuple[ServedAccuracy, ...]
    waiting: int
    newest: ServedAccuracy | None
    audited: AuditedAccuracy | None = None

    def warnings(self) -> Iterator[str]:
        """That the newest plan is worse than planned, by its labels and by its audits, if it is."""
        if self.planned is not None and self.newest is not None and self.newest.high < self.planned:
            shown = f"{self.newest.low:.2f} to {self.newest.high:.2f} % by {self.newest.labels:,} labels"
            yield f"the newest plan is worse than planned ({self.planned:.2f} %): {shown}"
        yield from audit_warnings(self.audited)

    def to_json(self, by: LabelledBy) -> dict[str, Any]:
        lines = [{by.value: line.name, "labels": line.labels, **_figures(line)} for line in self.lines]
        audits = None if self.audited is None else self.audited.to_json()
        return {"planned": self.planned, "lines": lines, "waiting_for_labels": self.waiting, "audits": audits}


def _ask(
    source: LedgerSource, workflow: str, planned: float | None, plan_hash: str, by: LabelledBy, span: Span
) -> _Found:
    found = source.accuracy(by, workflow, span)
    by_plan = source.accuracy(LabelledBy.PLAN, workflow, span).lines
    newest = next((line for line in by_plan if line.name == plan_hash and line.labels), None)
    return _Found(planned, tuple(line for line in found.lines if line.labels), found.waiting, newest)


def _show(found: _Found, by: LabelledBy, workflow: str, asked: str) -> None:
    """`workflow`: named where there are several; `asked`: arguments of a command that asks again."""
    whose = f"{workflow}: " if workflow else ""
    if found.lines:
        out.print(_table(found, by, whose))
    elif found.audited is None or found.waiting:
        named = f" --workflow {workflow}" if workflow else ""
        say(f"{whose}no labels yet; {found.waiting} answers wait for theirs: jellybean label {asked} FILE{named}")
    if found.audited is not None:
        out.print(audit_table(found.audited, whose))


def _newest_plan(directory: Path, endpoint: Endpoint | None) -> Mapping[str, Any]:
    """The document of the project's newest plan, or of the one that a gateway serves. InputError if there is none."""
    if endpoint is not None:
        from jellybean.serving.client import served_document

        return served_document(endpoint)
    snapshot = Store.of(directory).latest()
    if snapshot is None:
        raise InputError(f"no plan was made yet: jellybean plan {shell_text(directory)}")
    return {**snapshot.document, "hash": snapshot.plan_hash}


def _figures(line: ServedAccuracy) -> dict[str, float]:
    return {"accuracy": line.accuracy, "low": line.low, "high": line.high}


def _table(found: _Found, by: LabelledBy, whose: str) -> Table:
    title = f"{whose}accuracy of what was served"
    title += f"; planned {found.planned:.2f} %" if found.planned is not None else ""
    table = Table("workflow" if by is LabelledBy.ALL else by.value, title=title, title_justify="left")
    for name in ("labels", "right", "95 % interval"):
        table.add_column(name, justify="right")
    for line in found.lines:
        interval = f"{line.low:.2f} to {line.high:.2f} %"
        table.add_row(line.name or "(all alike)", f"{line.labels:,}", f"{line.accuracy:.2f} %", interval)
    return table
