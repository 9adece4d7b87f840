"""Lower bounds on the latency of any plan, and on the cost of plans that meet a p99 latency target.

Both assume zero queueing delay, and count what more than 1 % of the requests visit (guaranteed_jobs.py); that on the
cost may count queues at single workers besides (late_counts.py). The latency bound needs no program, so an impossible
target is refused before a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jellybean_solver.deadline.late_counts import NO_COUNTS, LateCounts
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.dispatch import is_large
from jellybean_solver.fleet.joint_lp import RelaxedLp
from jellybean_solver.fleet.proposal import exact_milp
from jellybean_solver.fleet.relaxation import Relaxation
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.guaranteed_jobs import guaranteed_jobs, least_link_s, least_run_s
from jellybean_solver.model.critical_path import earliest_completion_times
from jellybean_solver.model.forms import choices, in_forms, number_of_choices
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.variant_ratios import plain
from jellybean_solver.model.workflow import Edge, Variant
from jellybean_solver.outcome import ACCURACY_SLACK

MOST_CHOICES = 64
LATENCY_TOLERANCE = 1e-6  # relative: a bound exceeds a deadline only if it is above it by more than this


def least_latency_s(problem: Problem) -> float:
    """A lower bound in seconds on the p99 latency of every plan, over its shares of the deadline.

    It is one on `latency.Latency.unqueued_s`, too. Shares: see `deadline_shares.py`. A relaxation: each edge chooses
    variants and tiers independently, among the variants with which the accuracy target can be reached. 0 for more than
    `MOST_CHOICES` choices of forms.
    """
    if problem.has_forms:
        every = choices(problem) if number_of_choices(problem) <= MOST_CHOICES else ()
        formed = (own for choice in every if (own := in_forms(problem, choice)) is not None)
        return min(map(least_latency_s, formed), default=0.0)
    network, jobs = Network(problem), guaranteed_jobs(problem)
    fastest_s: dict[str, dict[str, float]] = {}
    for operator in problem.operators:
        by_tier = fastest_s[operator.name] = {}
        for variant in filter(partial(_accurate, problem, operator.name), operator.variants):
            for pool in network.demand({operator.name: variant.name}).workers[operator.name]:
                tier, times = network.tier_of[pool], problem.times(operator.name, variant, pool)
                by_tier[tier] = min(least_run_s(times, jobs[operator.name]), by_tier.get(tier, math.inf))

    def transfer_s(edge: Edge, upstream_tier: str, downstream_tier: str) -> float:
        if not problem.can_flow(upstream_tier, downstream_tier):
            return math.inf
        return least_link_s(problem, edge, (upstream_tier, downstream_tier), _least_message_bytes(problem, edge), jobs)

    sources = {source.name: source.tier for source in problem.sources}
    completed_s = earliest_completion_times(problem.operators, fastest_s, transfer_s, sources)
    least_s = 0.0
    for name in problem.operator_by_name:
        share = problem.deadline_share(name)
        if share is not None:
            out_s = min(completed_s[name].values(), default=math.inf) + 2.0 * problem.hop_s
            least_s = max(least_s, out_s / share)
    return least_s


def least_latency_by_variant(problem: Problem) -> Mapping[tuple[str, str], float]:
    """The lower bound of `least_latency_s` for plans in which all requests get a variant: (operator, variant) -> it."""
    found: dict[tuple[str, str], float] = {}
    for number, operator in enumerate(problem.operators):
        for variant in operator.variants:
            operators = list(problem.operators)
            operators[number] = replace(operator, variants=(variant,))
            found[operator.name, variant.name] = least_latency_s(replace(problem, operators=tuple(operators)))
    return found


def least_cost_in_time(
    problem: Problem, deadline_s: float, first: Plan, limits: SearchLimits, late: LateCounts = NO_COUNTS
) -> float:
    """Lower bound in USD per hour on plans whose unqueued latency is within a deadline; inf if there are none.

    From the exact MILP (fleet/exact_milp.py) with the deadline on the mean unqueued delay of all requests, so that it
    holds for plans whose routes all are in time; `late` raises it by what queues rule out. For large problems from the
    relaxation of the joint LP. 0 (no bound) if the cheapest plan `first` meets that deadline.
    """
    late = NO_COUNTS if problem.varying else late  # whose plans are of another problem than the program's
    problem = plain(problem)
    pace, target = Pace(deadline_s - 2.0 * problem.hop_s), problem.accuracy_target
    if pace.left_s <= 0:
        return math.inf
    network = Network(problem)
    large = is_large(network)
    if (large or not late.most) and pace.of_plan(problem, first) <= pace.left_s:
        return 0.0
    if not large:
        milp = exact_milp(network, target, limits, deadline_s=deadline_s)
        return math.inf if milp is None else late.least_cost(milp, limits)
    joint_lp = RelaxedLp(network, target, {}, pace)
    if not joint_lp.possible:
        return math.inf
    relaxation = Relaxation(joint_lp, limits.clock)
    try:
        point = relaxation.solve(relaxation.everything())
    except OutOfTimeError:
        return 0.0
    return math.inf if point is None else point.bound


def _accurate(problem: Problem, operator: str, variant: Variant) -> bool:
    """True if a selection with the variant may reach the accuracy target."""
    target = problem.accuracy_target
    if target is None:
        return True
    reached = problem.accuracy.upper_bound({operator: variant.name})
    return reached is not None and reached >= target - ACCURACY_SLACK


def _least_message_bytes(problem: Problem, edge: Edge) -> float:
    """Size of one message on an edge, with the upstream variant that sends the fewest bytes."""
    source = problem.source_by_name.get(edge.upstream)
    if source is not None:
        return source.message_bytes
    return min(v.message_bytes[edge.downstream] for v in problem.operator_by_name[edge.upstream].variants)
