"""A mixed-integer program built variable by variable and row by row (PuLP), solved by HiGHS."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import highspy
import pulp

from jellybean_solver.errors import SolverError
from jellybean_solver.milp.interruptible_run import run_interruptibly

FEASIBILITY_TOLERANCE = 1e-7  # of rows and integers. 1e-6 rounds small operators away; at 1e-9 HiGHS cuts optima off
PRESOLVE_FAILURES = (  # texts of HiGHS' failures in presolve: one small program in thousands, with nearly tight rows
    highspy.HighsModelStatus.kPresolveError,
    highspy.HighsModelStatus.kSolveError,
    highspy.HighsModelStatus.kPostsolveError,
    highspy.HighsModelStatus.kUnknown,
)
ENDED = (
    highspy.HighsModelStatus.kOptimal,
    highspy.HighsModelStatus.kTimeLimit,
    highspy.HighsModelStatus.kSolutionLimit,  # of nodes
    highspy.HighsModelStatus.kObjectiveTarget,
    highspy.HighsModelStatus.kObjectiveBound,
    highspy.HighsModelStatus.kInterrupt,
)

LinearTerms = Sequence[tuple[Any, float]]


class PulpProgram:
    """A program to be minimised. Subclasses add variables and rows."""

    def __init__(self, what: str) -> None:
        self.what, self.problem = what, pulp.LpProblem("minimise", pulp.LpMinimize)
        self.rows = 0

    def variable(self, name: str, high: float | None = None, category: str = pulp.LpContinuous) -> Any:
        """Add a variable from 0 to `high`."""
        return self.problem.add_variable(name, 0, high, category)

    def add(self, terms: LinearTerms, sense: int, right: float) -> Any:
        """Add a row: sum of coefficient x variable, sense, right-hand side."""
        row = pulp.LpConstraint(pulp.LpAffineExpression(list(terms)), sense, f"r{self.rows}", right)
        self.problem.addConstraint(row)
        self.rows += 1
        return row

    def solve(
        self,
        *,
        integer: bool,
        time_limit_s: float | None,
        gap: float = 0.0,
        most_nodes: int | None = None,
        cutoff: float = math.inf,
    ) -> tuple[float | None, float] | None:
        """(Objective, lower bound), the objective None if no point was found; None if proven that none is in `cutoff`.

        `gap`: relative. The cutoff prunes the search as an incumbent does; a row would make the relaxations degenerate.
        SolverError on a numerical failure.
        """
        cutoff += FEASIBILITY_TOLERANCE * max(1.0, abs(cutoff)) if math.isfinite(cutoff) else 0.0
        options = {
            "mip": integer,
            "msg": False,
            "threads": 1,
            "gapRel": gap,
            "gapAbs": 0.0,
            "timeLimit": time_limit_s,
            "random_seed": 0,
            "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "dual_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "mip_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "objective_bound": cutoff,
            **({} if most_nodes is None else {"mip_max_nodes": most_nodes}),
        }
        self.problem.solve(_Highs(**options))
        if self.problem.solverModel.getModelStatus() in PRESOLVE_FAILURES:
            self.problem.solve(_Highs(presolve="off", **options))
        model = self.problem.solverModel
        status, info = model.getModelStatus(), model.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return None
        if status not in ENDED:
            ended = model.modelStatusToString(status)
            raise SolverError(f"HiGHS ended with {ended} on {self.what}; please report this problem")
        value = float(info.objective_function_value)
        # PuLP reports "Optimal" for an incumbent at the time limit; HiGHS' own status is right.
        bound = float(info.mip_dual_bound) if integer else value
        if info.primal_solution_status == highspy.kSolutionStatusFeasible and value <= cutoff:
            return value, bound
        return None if bound > cutoff or status == highspy.HighsModelStatus.kObjectiveBound else (None, bound)


def summed(*parts: LinearTerms) -> list[tuple[Any, float]]:
    """Terms with each variable once, as PuLP needs them."""
    found: dict[Any, float] = {}
    for variable, value in itertools.chain(*parts):
        found[variable] = found.get(variable, 0.0) + value
    return list(found.items())


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS interface, with interrupts, and the status of a search that ends at its node limit."""

    def callSolver(self, lp: Any) -> None:
        """Run HiGHS; a signal stops it."""
        run_interruptibly(lp.solverModel)

    def findSolutionValues(self, lp: Any) -> tuple[int, int]:
        """Status and solution status; variables get their values in every case."""
        try:
            found: tuple[int, int] = super().findSolutionValues(lp)
        except KeyError:
            if lp.solverModel.getModelStatus() != highspy.HighsModelStatus.kSolutionLimit:
                raise
            return pulp.LpStatusNotSolved, pulp.LpSolutionIntegerFeasible
        except IndexError as error:  # HiGHS has taken none of the program's rows
            raise SolverError(
                "HiGHS does not take the numbers of this problem: a price, time, size or rate is so large or so small "
                "that it must be a mistake; check its unit"
            ) from error
        return found
