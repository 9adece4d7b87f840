"""What no plan can be faster than: every operator at its fastest, in the tier that helps it most, and nothing waits.

Costs no program, so a deadline that nothing keeps is refused before any plan is sought.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from jellybean_solver.demand.demand import Network
from jellybean_solver.joint.deadline_rows import link_s, modes, visits_per_request
from jellybean_solver.latency.stations import jobs
from jellybean_solver.model.deadline_shares import deadline_share
from jellybean_solver.model.problem import Edge, Problem, Variant
from jellybean_solver.outcome import ACCURACY_SLACK

LATENCY_TOLERANCE = 1e-6  # relative: further above a deadline than rounding


def least_latency_s(problem: Problem) -> float:
    """A bound in seconds on `latency.Latency.unqueued_s` of every plan, by deadlines as `deadlines.py` has them.

    Below what `latency_rows.py` proves: variants and tiers are chosen edge by edge, each variant among all that may
    reach the accuracy.
    """
    network, visits = Network(problem), visits_per_request(problem)
    ready_s: dict[str, dict[str, float]] = {source.name: {source.tier: 0.0} for source in problem.sources}
    least_s = 0.0
    for operator in problem.operators:
        name = operator.name
        fastest_s: dict[str, float] = {}
        for variant in filter(partial(_accurate, problem, name), operator.variants):
            for mode in modes(network, name, variant.name, visits[name]):
                tier = network.tier_of[mode.pool]
                fastest_s[tier] = min(mode.job_s, fastest_s.get(tier, math.inf))
        ready_s[name] = {
            tier: own_s + max(_sent_s(problem, edge, tier, jobs(visits[name]), ready_s) for edge in operator.inputs)
            for tier, own_s in fastest_s.items()
        }
        share = deadline_share(problem, name)
        if share is not None:
            out_s = min(ready_s[name].values(), default=math.inf) + 2.0 * problem.hop_s
            least_s = max(least_s, out_s / share)
    return least_s


def _accurate(problem: Problem, operator: str, variant: Variant) -> bool:
    """Whether some selection with the variant may reach the accuracy asked for."""
    target = problem.accuracy_target
    if target is None:
        return True
    reached = problem.accuracy.upper_bound({operator: variant.name})
    return reached is not None and reached >= target - ACCURACY_SLACK


def _sent_s(problem: Problem, edge: Edge, tier: str, sent: float, ready_s: Mapping[str, Mapping[str, float]]) -> float:
    """When an input can be in a tier; inf where nothing leads there."""
    source = problem.source_by_name.get(edge.upstream)
    if source is not None:
        size = source.message_bytes
    else:
        size = min(v.message_bytes[edge.downstream] for v in problem.operator_by_name[edge.upstream].variants)
    return min(
        (
            at_s + link_s(problem, (up, tier), sent * size)
            for up, at_s in ready_s[edge.upstream].items()
            if problem.can_flow(up, tier)
        ),
        default=math.inf,
    )
