"""A linear program that HiGHS re-solves from the last basis while bounds change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np

from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.milp.highs_program import INFEASIBLE, Floats, Indices, Program, SolveLimits
from jellybean_solver.outcome import Clock

AT_A_TIME = 2_000  # simplex iterations between two readings of the clock; a count keeps the pivots reproducible


@dataclass(frozen=True, slots=True)
class Optimum:
    """Optimal objective `value`, with `values` per column and `duals` per row."""

    value: float
    values: Floats
    duals: Floats


class Linear:
    """The linear relaxation of a `Program`. Costs are not negative, so it is never unbounded.

    `clock` limits the time of all solves together.
    """

    def __init__(self, program: Program, clock: Clock) -> None:
        # Without presolve: a run that ends at the iteration limit within it would begin anew for ever.
        self._highs, self.clock = program.model(SolveLimits(presolve=False), relaxed=True), clock
        self._highs.setOptionValue("simplex_iteration_limit", AT_A_TIME)

    def limit(self, columns: Indices, high: Floats, low: Floats | None = None) -> None:
        """Set column bounds; `low` is 0 by default."""
        low = np.zeros(len(columns)) if low is None else low
        self._highs.changeColsBounds(len(columns), columns.astype(np.int32), low, high)

    def limit_rows(self, rows: Indices, high: float) -> None:
        """Set the upper side of these rows to `high`; they have no lower side."""
        for row in rows.tolist():
            self._highs.changeRowBounds(row, -math.inf, high)

    def solve(self) -> Optimum | None:
        """The optimum; None if infeasible. OutOfTimeError, or SolverError on a numerical failure."""
        status = self._run()
        if status not in (highspy.HighsModelStatus.kOptimal, *INFEASIBLE):
            self._highs.clearSolver()  # from scratch
            status = self._run()
        if status in INFEASIBLE:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            ended = self._highs.modelStatusToString(status)
            raise SolverError(f"HiGHS ended with {ended} on a relaxation; please report this problem")
        solution = self._highs.getSolution()
        value = float(self._highs.getInfo().objective_function_value)
        return Optimum(value, np.array(solution.col_value), np.array(solution.row_dual))

    def _run(self) -> highspy.HighsModelStatus:
        while True:
            if self.clock.left() == 0.0:
                raise OutOfTimeError("time ended in a relaxation; allow more time")
            left_s = self.clock.left()
            if left_s is not None:  # HiGHS counts the time of all runs of a model
                self._highs.setOptionValue("time_limit", self._highs.getRunTime() + left_s)
            self._highs.run()
            status: highspy.HighsModelStatus = self._highs.getModelStatus()
            if status == highspy.HighsModelStatus.kTimeLimit:
                raise OutOfTimeError("time ended in a relaxation; allow more time")
            if status != highspy.HighsModelStatus.kIterationLimit:
                return status
