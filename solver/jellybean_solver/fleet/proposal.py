"""A selection and its places from the exact MILP, for searches whose cost or deadline is no sum over worker classes.

Going on from a running plan, the MILP counts the least that models' loads can cost; under a deadline it knows no
queues. So its bound holds, and its point is a proposal, to be assigned exactly over the pools that it uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jellybean_solver.demand.demand import EdgeKey, Network, Tiers
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import is_accurate_enough
from jellybean_solver.fleet.joint_lp import USED, Skeleton
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import Floats, ProgramSolution

MOST_MISSES = 50  # selections that are less accurate than the accuracy rows take them for
MOST_PACKED = 2_000  # pairs of a choice and a worker class, up to which memory counts worker by worker

SPARE = 1e-9  # relative: rounding of times


@dataclass(frozen=True, slots=True)
class Proposal:
    """`bound`: USD per hour that no plan falls below (inf: there is none).

    `selection` is None when no point was found in time; `pairs` are the (operator, pool) pairs that the point uses,
    `flows` the pairs of tiers that each edge's data go between.
    """

    bound: float
    selection: Mapping[str, str] | None = None
    pairs: frozenset[tuple[str, str]] = frozenset()
    flows: frozenset[tuple[EdgeKey, Tiers]] = frozenset()


def propose(
    network: Network,
    target: float | None,
    limits: SearchLimits,
    *,
    fixed: Mapping[str, str] | None = None,
    running: RunningPlan | None = None,
    deadline_s: float | None = None,
) -> Proposal:
    """Solve the exact MILP to a relative gap; the proposal's selection reaches the accuracy `target`.

    `limits.budget` is on the running cost; with `running` the objective is that and the least migration cost.
    `deadline_s`: for a request with zero queueing delay.
    """
    pace = None if deadline_s is None else Pace(deadline_s - 2.0 * network.problem.hop_s)
    if pace is not None and pace.left_s <= 0.0:
        return Proposal(math.inf)
    skeleton = Skeleton(network, target, fixed or {}, pace, few_workers=0)
    if not skeleton.possible:
        return Proposal(math.inf)
    milp = ExactMilp(skeleton, packed=int(skeleton.open.sum()) <= MOST_PACKED)
    milp.program.limit_cost(limits.budget)
    if running is not None:
        milp.add_migration(running)
    answer, staff = solve_accurately(milp, target, limits)
    if answer.values is None or staff is None:
        return Proposal(max(0.0, answer.bound))
    flows = _flows(skeleton, answer.values)
    return Proposal(max(0.0, answer.bound), staff.selection, _pairs(staff, pace), flows)


def solve_accurately(
    milp: ExactMilp, target: float | None, limits: SearchLimits
) -> tuple[ProgramSolution, Staff | None]:
    """Solve until the selection reaches the target by the measured accuracies (accuracy_rows.py); None: there is none.

    Each bound holds: only selections that miss the target are excluded.
    """
    problem = milp.skeleton.network.problem
    for _ in range(MOST_MISSES):
        answer = milp.program.solve(gap=limits.gap, time_limit_s=limits.clock.left())
        staff = None if answer.values is None else milp.staff(answer.values)
        if staff is None or is_accurate_enough(problem, target, staff.selection):
            break
        milp.exclude(staff.selection)
        staff = None
    return answer, staff


def _pairs(staff: Staff, pace: Pace | None) -> frozenset[tuple[str, str]]:
    """The pairs used; under a deadline without those pools of a class that are slower than its bound assumes."""
    if pace is None:
        return staff.pairs
    problem, selection = staff.skeleton.network.problem, staff.selection
    class_of = {pool.name: kind for kind, one in enumerate(staff.skeleton.kinds.kinds) for pool in one.pools}
    taken_s = {(name, pool): pace.taken_s(problem, name, selection[name], pool) for name, pool in staff.pairs}
    fastest_s: dict[tuple[str, int], float] = {}
    for (name, pool), seconds in taken_s.items():
        key = name, class_of[pool]
        fastest_s[key] = min(seconds, fastest_s.get(key, math.inf))
    return frozenset(
        pair for pair, seconds in taken_s.items() if seconds <= fastest_s[pair[0], class_of[pair[1]]] * (1.0 + SPARE)
    )


def _flows(skeleton: Skeleton, values: Floats) -> frozenset[tuple[EdgeKey, Tiers]]:
    return frozenset(
        (key, tiers)
        for key, between in skeleton.flows.between.items()
        for tiers, columns in between.items()
        if float(np.sum(values[list(columns)])) > USED
    )
