"""Plans whose latency is low, whatever they cost within the budget: where a search for the least p99 latency starts.

The exact MILP with a limit on the latency without queues gives the variants and pools of the fastest path; bisection
finds the least limit that has a plan. Queues are short where workers and links have capacity to spare, so this is done
for several margins of capacity, and a caller compares the plans' predicted p99 latencies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jellybean_solver.deadline.lower_bound import least_latency_s
from jellybean_solver.deadline.restriction import with_margin, without_margin
from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.ratio_options import ratio_representatives
from jellybean_solver.errors import SolverError
from jellybean_solver.fleet.dispatch import DEFAULT_GAP, has_many_places
from jellybean_solver.fleet.proposal import Proposal, propose
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.outcome import Clock
from jellybean_solver.planning.solver import cheapest, finish
from jellybean_solver.small.objectives import Fleet

MARGINS = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2)  # usable shares of the capacity of workers and links
STEPS = 6  # bisections of the latency limit for each margin
MOST_RATIOS = 8  # combinations of fan-out ratios that are tried; each takes as long as a problem with fixed ratios
NEAR = 1.05  # two limits within this factor count as equal
ANY_GAP = 1.0  # relative: the latency limit decides, not the cost


def fast_plans(problem: Problem, clock: Clock) -> Iterator[Plan]:
    """The plan of least latency without queues for each margin of capacity that has one, within accuracy and budget.

    Fan-outs that depend on variants are fixed, one combination of their ratios after the other, at most `MOST_RATIOS`
    of them. None for fleets: their programs take too long.
    """
    if has_many_places(Network(problem)):
        return
    variants = {operator.name: [variant.name for variant in operator.variants] for operator in problem.operators}
    choices = ratio_representatives(problem, variants)
    for chosen in itertools.islice(itertools.product(*choices.values()), MOST_RATIOS):
        yield from _fast_plans(settled(problem, dict(zip(choices, chosen, strict=True))), clock)


def _fast_plans(problem: Problem, clock: Clock) -> Iterator[Plan]:
    """As `fast_plans`, for a problem whose ratios do not depend on variants."""
    least_s = least_latency_s(problem)
    for share in MARGINS:
        if clock.left() == 0.0:
            return
        tight = with_margin(problem, {pool.name: share for pool in problem.pools}, share)
        proposal = _fastest(tight, least_s, clock)
        if proposal is None:
            return  # with less capacity there is none either
        plan = _assigned(tight, proposal, clock)
        if plan is not None:
            yield without_margin(problem, plan)


def _fastest(problem: Problem, least_s: float, clock: Clock) -> Proposal | None:
    """The proposal under the least latency limit that has one; None if there is none without a limit."""
    network, limits = Network(problem), SearchLimits(ANY_GAP, clock, problem.slo.budget_usd_per_h or math.inf)
    low_s, high_s, limit_s = least_s, math.inf, NEAR * least_s
    found: Proposal | None = None
    for _ in range(STEPS):
        proposal = propose(network, problem.accuracy_target, limits, deadline_s=limit_s)
        if proposal.selection is not None:
            found, high_s = proposal, limit_s
        else:
            low_s = limit_s
        if high_s <= NEAR * low_s:
            break
        limit_s = 4.0 * low_s if math.isinf(high_s) else math.sqrt(low_s * high_s)
    return found


def _assigned(problem: Problem, proposal: Proposal, clock: Clock) -> Plan | None:
    """The cheapest plan with the proposal's selection on the pools that it uses."""
    operators = tuple(
        replace(
            operator,
            variants=tuple(
                replace(
                    variant,
                    service={p: t for p, t in variant.service.items() if (operator.name, p) in proposal.pairs},
                )
                for variant in operator.variants
            ),
        )
        for operator in problem.operators
    )
    fleet = Fleet(Network(replace(problem, operators=operators)))
    budget = problem.slo.budget_usd_per_h or math.inf
    try:
        outcome = cheapest(
            fleet, problem.accuracy_target, fixed=proposal.selection, gap=DEFAULT_GAP, clock=clock, budget=budget
        )
        if outcome.found is None:
            return None
        plan, evaluation = finish(fleet.network, outcome)
    except SolverError:  # a candidate only: without it the search goes on from the others
        return None
    return None if evaluation.complaints else plan
