"""The cheapest plan that meets a p99 latency target in simulation, by enumeration.

Enumerated are selections that reach the accuracy, one pool for each operator, the operators of a shared pool in any
grouping by worker, and all counts of workers. Operators that are split over pools are left out, so a solver may find a
cheaper plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean.planning.predicted_latency import judge
from jellybean_solver import Pool, Problem, Sharing, evaluate
from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.memory import fits
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.plan import Certificate
from jellybean_solver.outcome import Termination
from jellybean_solver.small.assignment import Assignment, Group
from jellybean_solver.small.routes import build_plan

FAR = 3.0  # closed-form p99 latencies above the target by this factor are not simulated
PROOF = Certificate.of(0.0, 0.0, Termination.GAP)  # of enumerated plans, which nobody asks for a proof


@dataclass(frozen=True)
class Truth:
    """The cheapest enumerated plan that meets the target, if any; the counts say how much work it was."""

    usd_per_h: float | None
    enumerated: int
    simulated: int


def cheapest_in_time(problem: Problem, most_simulated: int = 2_000) -> Truth | None:
    """The truth about a problem with a p99 latency target; None if it takes too many simulations."""
    drafts = sorted(_drafts(problem), key=lambda draft: draft[0])
    simulated = 0
    for _, network, selection, assignment in drafts:
        plan = build_plan(network, selection, assignment, PROOF)
        evaluation = evaluate(problem, plan)
        if evaluation.complaints:
            continue
        target_s = problem.slo.latency_p99_s or math.inf
        known = latency(plan)
        if known.unqueued_s > target_s or known.p99_s > FAR * target_s:
            continue
        if simulated == most_simulated:
            return None
        simulated += 1
        judged = judge(replace(plan, slo=problem.slo))
        if judged is None or judged.kept:
            return Truth(evaluation.cost.total_usd_per_h, len(drafts), simulated)
    return Truth(None, len(drafts), simulated)


def _drafts(problem: Problem) -> Iterator[tuple[float, Network, Mapping[str, str], Assignment]]:
    target = problem.accuracy_target
    for variants in itertools.product(*([v.name for v in o.variants] for o in problem.operators)):
        selection = {o.name: v for o, v in zip(problem.operators, variants, strict=True)}
        reached = problem.accuracy.value(selection)
        if target is None or (reached is not None and reached >= target - 1e-9):
            network = Network(problem).settled(selection)
            yield from ((c, network, selection, a) for c, a in _assignments(network, selection))


def _assignments(network: Network, selection: Mapping[str, str]) -> Iterator[tuple[float, Assignment]]:
    demand = network.demand(selection)
    able = [[pool for pool in network.pools if pool.name in demand.workers[name]] for name in network.names]
    for pools in itertools.product(*able):
        place = dict(zip(network.names, pools, strict=True))
        tier_of = {name: pool.tier for name, pool in place.items()}
        bags = tuple({tuple(tier_of[name] for name in bag.operators): 1.0} for bag in network.bags)
        by_pool = [[n for n in network.names if place[n] is pool] for pool in network.pools]
        options = [
            list(_staffed(network, selection, pool, names))
            for pool, names in zip(network.pools, by_pool, strict=True)
            if names
        ]
        for groups in itertools.product(*options):
            every = tuple(group for own in groups for group in own)
            cost = sum(group.count * network.usd_per_h[group.pool] for group in every)
            yield cost, Assignment(cost, bags, every)


def _staffed(
    network: Network, selection: Mapping[str, str], pool: Pool, names: Sequence[str]
) -> Iterator[tuple[Group, ...]]:
    """Groups of operators on the workers of a pool, with all counts that carry the load."""
    problem, demand = network.problem, network.demand(selection)
    partitions = [[[name] for name in names]] if pool.sharing is Sharing.EXCLUSIVE else list(_partitions(list(names)))
    for parts in partitions:
        needs = []
        for part in parts:
            memory = sum(
                problem.operator_by_name[n].variant(selection[n]).memory_bytes.get(pool.name, 0.0) for n in part
            )
            if not fits(memory, pool.memory_bytes):
                break
            needs.append(max(1, math.ceil(sum(demand.workers[n][pool.name] for n in part) - 1e-7)))
        else:
            for counts in itertools.product(*(range(need, pool.count + 1) for need in needs)):
                if sum(counts) <= pool.count:
                    yield tuple(
                        Group(pool.name, dict.fromkeys(part, 1.0), count)
                        for part, count in zip(parts, counts, strict=True)
                    )


def _partitions(names: list[str]) -> Iterator[list[list[str]]]:
    if not names:
        yield []
        return
    first, rest = names[0], names[1:]
    for parts in _partitions(rest):
        yield [[first], *parts]
        for index, part in enumerate(parts):
            yield [*parts[:index], [first, *part], *parts[index + 1 :]]
