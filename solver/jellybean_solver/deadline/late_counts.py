"""Worker counts that leave only late plans, cut off from the program that bounds the cost of plans in time.

Queues are no linear function of a plan, but at the least worker counts nothing is left to choose. If a selection's
operators have one worker each, or several of an exclusive pool, which get equal shares in every plan of the solver,
then it has one plan, up to its batch sizes. The judge of the deadline search decides whether that plan meets its target
with any of them. If it does not, the program excludes this selection with these workers, and is solved again. It
excludes fewer workers too: they would be cheaper with the same routes, so they cannot carry the load or were excluded
before. The bound holds for the discipline of the agents, as it is their scheduler that the judge simulates. It ends
where operators can be divided in several ways, or the effort ends.

One more worker often costs as much as all before: on small problems whose target binds this closes most of the gap
(docs/design/solver.md, Ablation).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.proposal import solve_accurately
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.outcome import Termination
from jellybean_solver.small.routes import build_plan


@dataclass(frozen=True, slots=True)
class LateCounts:
    """`meets`: True if a plan meets its targets; `most`: plans that it is asked about at most.

    `enough`: bound in USD per hour at which the effort ends.
    """

    meets: Callable[[Plan], bool]
    most: int
    enough: float = math.inf

    def least_cost(self, milp: ExactMilp, limits: SearchLimits) -> float:
        """Lower bound in USD per hour on the plans of a program that meet their targets.

        `milp`, which is changed, has the deadline of plans with zero queueing delay. inf if it has none; where all that
        it has are late, the bound is the cost of the last one.
        """
        target, left, bound = milp.joint_lp.network.problem.accuracy_target, self.most, 0.0
        while True:
            answer, staff = solve_accurately(milp, target, limits)
            if answer.values is None or staff is None:
                return bound if left < self.most else max(0.0, answer.bound)
            bound = max(bound, answer.bound)
            counts = milp.only_counts(answer.values) if left and bound < self.enough else None
            plans = [] if counts is None else _only_plans(staff, counts, left)
            if counts is None or not plans or any(self.meets(plan) for plan in plans) or limits.clock.left() == 0.0:
                return bound
            left -= len(plans)
            milp.exclude_counts(answer.values, counts)


NO_COUNTS = LateCounts(lambda plan: True, 0)


def _only_plans(staff: Staff, counts: Mapping[tuple[int, int], int], most: int) -> list[Plan]:
    """The plans with one place for each operator, by batch sizes; empty if they are more than `most`, or not valid."""
    network, assignment = staff.joint_lp.network, staff.assignment()
    if assignment is None:
        return []
    # The assignment has no more exclusive workers than the load needs: those beyond are there to shorten queues.
    kinds, groups = staff.joint_lp.kinds, []
    kind_of = {pool.name: number for number, kind in enumerate(kinds.kinds) for pool in kind.pools}
    for group in assignment.groups:
        kind, operator = kind_of[group.pool], network.names.index(next(iter(group.shares)))
        groups.append(replace(group, count=counts[kind, operator]) if kinds.exclusive[kind] else group)
    assignment = replace(assignment, groups=tuple(groups))
    proof = Certificate.of(assignment.cost, 0.0, Termination.GAP)
    plan = build_plan(network, staff.selection, assignment, proof)
    evaluation = evaluate(network.problem, plan)
    sizes = math.prod(len(times) for operator in plan.operators for times in operator.service.values())
    if evaluation.complaints or sizes > most:
        return []
    return list(_with_batches(evaluation.stated(plan)))


def _with_batches(plan: Plan) -> Iterator[Plan]:
    """A plan of one place for each operator with all combinations of batch sizes, the largest first."""
    sizes = [
        [(pool, size) for pool, times in operator.service.items() for size in sorted(times, reverse=True)]
        for operator in plan.operators
    ]
    for batches in itertools.product(*sizes):
        operators = []
        for operator, (pool, batch) in zip(plan.operators, batches, strict=True):
            times = {size: time for size, time in operator.service[pool].items() if size <= batch}
            operators.append(replace(operator, batch={pool: batch}, service={pool: times}))
        yield replace(plan, operators=tuple(operators))
