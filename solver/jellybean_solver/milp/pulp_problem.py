"""A program as a PuLP problem: the worker assignment is solved through PuLP, by HiGHS or any other solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pulp

from jellybean_solver.errors import SolverError
from jellybean_solver.milp.highs_program import (
    BAD_NUMBERS,
    NO_LIMITS,
    Program,
    ProgramSolution,
    SolveLimits,
    run,
)


def pulp_problem(program: Program) -> pulp.LpProblem:
    """The program in PuLP's objects; variables are named so that their order by name is that of the columns."""
    matrix = program.matrix()
    problem = pulp.LpProblem("assignment", pulp.LpMinimize)
    kinds = np.where(np.concatenate(program.integer), pulp.LpInteger, pulp.LpContinuous)
    limits = [None if np.isinf(most) else most for most in matrix.most.tolist()]
    columns = [
        problem.add_variable(f"x{number:08}", 0, most, str(kind))
        for number, (most, kind) in enumerate(zip(limits, kinds, strict=True))
    ]
    problem.setObjective(pulp.LpAffineExpression(list(zip(columns, matrix.cost.tolist(), strict=True))))
    terms: list[dict[Any, float]] = [{} for _ in matrix.low]
    entries = zip(matrix.rows.tolist(), matrix.columns.tolist(), matrix.values.tolist(), strict=True)
    for row, column, value in entries:
        terms[row][columns[column]] = terms[row].get(columns[column], 0.0) + value
    for row, (low, high) in enumerate(zip(matrix.low.tolist(), matrix.high.tolist(), strict=True)):
        ranged = (pulp.LpConstraintGE, low), (pulp.LpConstraintLE, high)
        for sense, side in ranged if low < high else [(pulp.LpConstraintEQ, low)]:
            if np.isfinite(side):
                expression = pulp.LpAffineExpression(list(terms[row].items()))
                problem.addConstraint(pulp.LpConstraint(expression, sense, f"r{row}_{sense + 1}", side))
    return problem


def solve_with_pulp(program: Program, limits: SolveLimits = NO_LIMITS) -> ProgramSolution:
    """As `Program.solve`, through PuLP. SolverError on numbers that the solver refuses, and on a numerical failure."""
    problem = pulp_problem(program)
    problem.solve(_Highs(program, limits))
    return program.answer(problem.solverModel, cutoff=limits.cutoff)


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS interface with the options, interrupts and second tries of `Program`, which reads the answer."""

    def __init__(self, program: Program, limits: SolveLimits) -> None:
        super().__init__(msg=False)
        self._program, self._limits = program, limits

    def createAndConfigureSolver(self, lp: Any) -> None:
        """Make the HiGHS model."""
        lp.solverModel = self._program.empty_model(self._limits)

    def callSolver(self, lp: Any) -> None:
        """Run HiGHS; a signal stops it."""
        if lp.solverModel.getNumRow() != lp.numConstraints():  # HiGHS drops rows whose numbers it does not take
            raise SolverError(BAD_NUMBERS)
        run(lp.solverModel)

    def findSolutionValues(self, lp: Any) -> tuple[int, int]:
        """PuLP's view of the status: none, as `Program.answer` reads the model."""
        return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
