"""One run in a process of its own: `python -m benchmarks.middle.one SEED METHOD LIMIT_S`; METHOD: solver or milp.

Prints one line of JSON. Every plan is checked: scored by `evaluate`, and by the checker of the tests, which shares no
code with the solver.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.middle.joint_milp import THREADS, solve_milp
from benchmarks.middle.problems import middle_problem
from jellybean_solver import (
    Certificate,
    Network,
    OutOfTimeError,
    Plan,
    Problem,
    SolverError,
    Termination,
    evaluate,
    solve,
)
from jellybean_solver.small.routes import build_plan
from tests.plan_check import complaints


@dataclass(frozen=True)
class Run:
    """`value` (None: no plan) and `bound` in USD per hour; `status`: optimal, gap, time_limit, infeasible or error.

    `complaints`: what the checkers say of the plan.
    """

    value: float | None
    bound: float
    status: str
    seconds: float
    complaints: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether value and bound agree, or there is proven to be no plan."""
        return self.status in {"optimal", "infeasible"}


def run_solver(problem: Problem, limit_s: float) -> Run:
    """The project's solver with its defaults and a time limit; why there is no plan is not asked for."""
    began = time.monotonic()
    try:
        solution = solve(problem, time_limit_s=limit_s, clock=time.monotonic, explained=False)
    except OutOfTimeError as error:
        return Run(None, 0.0, "time_limit", time.monotonic() - began, error=str(error))
    except SolverError as error:
        return Run(None, 0.0, "error", time.monotonic() - began, error=str(error))
    seconds = time.monotonic() - began
    if solution.plan is None:
        return Run(None, math.inf, "infeasible", seconds)
    certificate = solution.plan.certificate
    return Run(certificate.objective, certificate.bound, solution.status, seconds, _checked(problem, solution.plan))


def run_milp(problem: Problem, limit_s: float, threads: int = THREADS) -> Run:
    """The plain joint MILP."""
    found = solve_milp(problem, time_limit_s=limit_s, threads=threads)
    if found.value is None or found.assignment is None or found.selection is None:
        return Run(None, found.bound, found.status, found.seconds)
    network = Network(problem).settled(found.selection)
    certificate = Certificate.of(found.value, found.bound, Termination.GAP)
    plan = build_plan(network, found.selection, found.assignment, certificate)
    cost = evaluate(problem, plan).cost.total_usd_per_h
    said = _checked(problem, plan)
    if abs(cost - found.value) > 1e-6 * max(1.0, found.value):
        said = (*said, f"the program says {found.value:.9g} USD/h, the evaluation {cost:.9g} USD/h")
    return Run(found.value, found.bound, found.status, found.seconds, said)


def _checked(problem: Problem, plan: Plan) -> tuple[str, ...]:
    return (*evaluate(problem, plan).complaints, *complaints(problem, plan))


METHODS = {"solver": run_solver, "milp": run_milp}

if __name__ == "__main__":
    seed, method, limit_s = sys.argv[1:]
    print(json.dumps(asdict(METHODS[method](middle_problem(int(seed)), float(limit_s)))))
