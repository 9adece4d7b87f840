"""The solver's accuracy model, from the accuracies of the profiles."""

from __future__ import annotations

from jellybean.documents.schema.profiles import (
    AccuracyProfile,
)
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean_solver import (
    AccuracyModel,
    AccuracyRow,
    EndToEnd,
    Independent,
    PerOperator,
)


def accuracy_model(profile: AccuracyProfile | None, workflow: WorkflowDocument) -> AccuracyModel:
    """The solver's accuracy model; an empty one without an accuracy section."""
    if profile is None:
        return EndToEnd((), {})
    if profile.end_to_end is not None:
        return _end_to_end(profile, workflow)
    if profile.per_operator is not None:
        tables = {
            operator: {
                variant: tuple(AccuracyRow(point.inputs, point.output) for point in points)
                for variant, points in variants.items()
                if variant in workflow.operators[operator].variants
            }
            for operator, variants in profile.per_operator.items()
        }
        inputs = {
            operator: tuple(edge.upstream for edge in workflow.operators[operator].inputs if edge.upstream in tables)
            for operator in tables
        }
        return PerOperator(inputs, tables)
    return Independent(
        {
            operator: {
                name: percent for name, percent in variants.items() if name in workflow.operators[operator].variants
            }
            for operator, variants in (profile.independent or {}).items()
        }
    )


def _end_to_end(profile: AccuracyProfile, workflow: WorkflowDocument) -> EndToEnd:
    """The measured accuracies, keyed by the chosen variants of those operators that have more than one variant."""
    choices = tuple(name for name, spec in workflow.operators.items() if len(spec.variants) > 1)
    table: dict[tuple[str, ...], float] = {}
    for row in profile.end_to_end or ():
        if all(variant in workflow.operators[name].variants for name, variant in row.selection.items()):
            table[tuple(row.selection[name] for name in choices)] = row.accuracy
    return EndToEnd(choices, table)
