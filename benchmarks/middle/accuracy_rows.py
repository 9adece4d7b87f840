"""An accuracy target as rows of the plain joint MILP, one way per accuracy model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from benchmarks.middle.rows import Rows, Terms, plus
from jellybean_solver import AccuracyModel, EndToEnd, Independent, PerOperator
from jellybean_solver.model.accuracy import Margins

SLACK = 1e-9  # percent points, as the solver's

Chosen = Mapping[tuple[str, str], int]  # (operator, variant) -> binary column


def add_accuracy(rows: Rows, z: Chosen, model: AccuracyModel, target: float) -> None:
    """The selection z reaches the target by the model.

    Raises:
        TypeError: the model is of no known kind.
    """
    least = target - SLACK
    if isinstance(model, Margins):
        for workflow, own in model.targets.items():
            add_accuracy(rows, z, model.models[workflow], own + target)
    elif isinstance(model, Independent):
        _independent(rows, z, model, least)
    elif isinstance(model, EndToEnd):
        _end_to_end(rows, z, model, least)
    elif isinstance(model, PerOperator):
        _per_operator(rows, z, model, least)
    else:
        raise TypeError(f"no rows for the accuracy model {type(model).__name__}")


def _independent(rows: Rows, z: Chosen, model: Independent, least: float) -> None:
    """The logarithm of the product."""
    terms = [
        (column, -math.log(model.table[name][variant] / 100.0))
        for (name, variant), column in z.items()
        if name in model.table
    ]
    rows.row(terms, high=-math.log(least / 100.0))


def _end_to_end(rows: Rows, z: Chosen, model: EndToEnd, least: float) -> None:
    """One column per measured selection that is accurate enough; z are its marginals."""
    columns = {row: rows.column() for row, accuracy in model.table.items() if accuracy >= least}
    rows.equal(plus(list(columns.values())), 1.0)
    for (name, variant), chosen in z.items():
        if name in model.operators:
            where = model.operators.index(name)
            own = [column for row, column in columns.items() if row[where] == variant]
            rows.equal([(chosen, -1.0), *plus(own)])


def _per_operator(rows: Rows, z: Chosen, model: PerOperator, least: float) -> None:
    """One binary per measured point. Exact for tables that do not fall where inputs rise."""
    output: dict[str, Terms] = {}
    for name in model.order:
        output[name] = []
        needed: dict[str, Terms] = defaultdict(list)
        for variant, points in model.tables[name].items():
            columns = [rows.column(integer=True) for _ in points]
            if (name, variant) in z:
                rows.equal([(z[name, variant], -1.0), *plus(columns)])
            else:
                rows.equal(plus(columns))
            for point, column in zip(points, columns, strict=True):
                output[name].append((column, point.output))
                for upstream, reached in zip(model.inputs.get(name, ()), point.inputs, strict=True):
                    needed[upstream].append((column, -reached))
        for upstream, terms in needed.items():
            rows.row([*output[upstream], *terms], 0.0, math.inf)
    for name in model.answers:
        rows.row(output[name], least, math.inf)
