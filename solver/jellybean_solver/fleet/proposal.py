"""A selection and its pools from the exact MILP, where the MILP models the cost or the deadline only in part.

With a running plan it has a lower bound on the migration cost; with a deadline it has no queueing delay
(deadline/late_counts.py adds some). So its lower bound is valid, and its solution is a proposal: callers assign the
selection exactly over the pools that it uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import is_accurate_enough
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import ProgramSolution, SolveLimits

MOST_MISSES = 50  # most selections excluded because the accuracy rows overestimated their accuracy
MOST_PACKED = 2_000  # (choice, worker class) pairs up to which memory is limited worker by worker, not in total


@dataclass(frozen=True, slots=True)
class Proposal:
    """`bound`: lower bound on the cost of all plans, USD per hour; inf if there is no plan.

    `selection` is None when no point was found in time; `pairs` are the (operator, pool) pairs that the point uses.
    """

    bound: float
    selection: Mapping[str, str] | None = None
    pairs: frozenset[tuple[str, str]] = frozenset()


def propose(
    network: Network,
    target: float | None,
    limits: SearchLimits,
    *,
    fixed: Mapping[str, str] | None = None,
    running: RunningPlan | None = None,
) -> Proposal:
    """Solve the exact MILP to a relative gap; the proposed selection reaches the accuracy `target` in percent.

    `limits.budget` (USD per hour) excludes migration; with a `running` plan the objective includes a lower bound on the
    migration cost.
    """
    milp = exact_milp(network, target, limits, fixed=fixed)
    if milp is None:
        return Proposal(math.inf)
    if running is not None:
        milp.add_migration(running)
    answer, staff = solve_accurately(milp, target, limits)
    if answer.values is None or staff is None:
        return Proposal(max(0.0, answer.bound))
    return Proposal(max(0.0, answer.bound), staff.selection, staff.pairs)


def exact_milp(
    network: Network,
    target: float | None,
    limits: SearchLimits,
    *,
    fixed: Mapping[str, str] | None = None,
    deadline_s: float | None = None,
) -> ExactMilp | None:
    """The exact MILP of a network within a budget; None if no selection is possible.

    `deadline_s`: limit on a request's latency with zero queueing delay.
    """
    pace = None if deadline_s is None else Pace(deadline_s - 2.0 * network.problem.hop_s)
    if pace is not None and pace.left_s <= 0.0:
        return None
    joint_lp = JointLp(network, target, fixed or {}, pace)
    if not joint_lp.possible:
        return None
    milp = ExactMilp(joint_lp, packed=int(joint_lp.open.sum()) <= MOST_PACKED)
    milp.program.limit_cost(limits.budget)
    return milp


def solve_accurately(
    milp: ExactMilp, target: float | None, limits: SearchLimits
) -> tuple[ProgramSolution, Staff | None]:
    """Solve, and exclude selections whose measured accuracy misses the target, until one reaches it.

    Returns the last solution and its workers; None in place of the workers if no selection was found. The solution's
    bound holds for all plans, as only selections that miss the target are excluded.
    """
    problem = milp.joint_lp.network.problem
    for _ in range(MOST_MISSES):
        answer = milp.program.solve(SolveLimits(limits.gap, limits.clock.left()))
        staff = None if answer.values is None else milp.staff(answer.values)
        if staff is None or is_accurate_enough(problem, target, staff.selection):
            break
        milp.exclude(staff.selection)
        staff = None
    return answer, staff
