"""An accuracy target as rows of the joint program, with one formulation per accuracy model.

Every selection that reaches the target satisfies the rows. They may overestimate: if an operator's measured accuracy
falls while that of its inputs rises, the rows also admit the better point measured with the worse inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.milp.highs_program import Program
from jellybean_solver.model.accuracy import AccuracyModel, EndToEnd, Independent, Margins, PerOperator
from jellybean_solver.outcome import ACCURACY_SLACK

Chosen = Mapping[tuple[str, str], int]  # (operator, variant) -> binary column


def add_accuracy(program: Program, model: AccuracyModel, chosen: Chosen, target: float | None) -> bool:
    """Add rows that every selection with an accuracy of at least `target` satisfies; False if there is none."""
    if target is None:
        return True
    least = target - ACCURACY_SLACK
    if isinstance(model, Independent):
        return _independent(program, model, chosen, least)
    if isinstance(model, EndToEnd):
        return _end_to_end(program, model, chosen, least)
    if isinstance(model, PerOperator):
        return _per_operator(program, model, chosen, least)
    if isinstance(model, Margins):
        targets = model.targets.items()
        return all(add_accuracy(program, model.models[name], chosen, own + target) for name, own in targets)
    raise SolverError(f"the joint program knows no accuracy model {type(model).__name__}")


def _independent(program: Program, model: Independent, chosen: Chosen, least: float) -> bool:
    """A product is a sum of logarithms: sum of -log(percent / 100) <= -log(least / 100)."""
    if not model.table:
        return False
    row = program.row(-math.inf, -math.log(least / 100.0) if least > 0 else math.inf)
    for (name, variant), column in chosen.items():
        if name in model.table:
            percent = model.table[name].get(variant)
            if percent is None or (percent <= 0 and least > 0):
                program.row(0.0, 0.0, [column])
            elif percent > 0:
                program.fill([row], [column], -math.log(percent / 100.0))
    return True


def _end_to_end(program: Program, model: EndToEnd, chosen: Chosen, least: float) -> bool:
    """One column per measured selection of at least this accuracy; a variant's binary is the sum of its columns."""
    good = [
        row
        for row, accuracy in model.table.items()
        if accuracy >= least and all((name, v) in chosen for name, v in zip(model.operators, row, strict=True))
    ]
    if not good:
        return False
    columns = program.add_columns(np.zeros(len(good)), 1.0)
    program.row(1.0, 1.0, columns)
    for (name, variant), binary in chosen.items():
        if name in model.operators:
            at = model.operators.index(name)
            own = [int(column) for row, column in zip(good, columns, strict=True) if row[at] == variant]
            program.row(0.0, 0.0, [*own, binary], [*(1.0 for _ in own), -1.0])
    return True


def _per_operator(program: Program, model: PerOperator, chosen: Chosen, least: float) -> bool:
    """One binary per measured point: its output is the operator's accuracy, its inputs what upstreams must reach."""
    if not model.tables:
        return False
    reached: dict[str, tuple[list[int], list[float]]] = {}  # operator -> columns of its points, their outputs
    for name in model.order:
        columns: list[int] = []
        outputs: list[float] = []
        needed: list[tuple[float, ...]] = []
        for variant, rows in model.tables[name].items():
            if (name, variant) not in chosen:
                continue
            points = [program.column(0.0, 1.0, integer=True) for _ in rows]
            program.row(0.0, 0.0, [*points, chosen[name, variant]], [*(1.0 for _ in rows), -1.0])
            columns += points
            outputs += [point.output for point in rows]
            needed += [point.inputs for point in rows]
        for index, upstream in enumerate(model.inputs.get(name, ())):
            row = program.row(0.0, math.inf, *reached[upstream])
            program.fill([row] * len(columns), columns, [-inputs[index] for inputs in needed])
        reached[name] = columns, outputs
    for name in model.answers:
        program.row(least, math.inf, *reached[name])
    return True
