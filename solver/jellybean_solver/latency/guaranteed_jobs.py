"""The jobs of a request that a lower bound on the p99 latency may count: more than 1 % of the requests bring them.

A request brings no job to an operator behind a fan-out without children, so that what few requests visit does not
change the p99. How many requests have how many children is that of the simulator (`child_distribution`), with the
variant that has the fewest.

The children of a request are processed in a pipeline: one operator works on the first child's output while another
works on the next child. So their times do not add up: between a fan-out and the gather that closes it, one operator
counts for all children, and the others for one child.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.latency.plan_arrivals import jobs_at_once
from jellybean_solver.model.distributions import child_distribution, least_s
from jellybean_solver.model.flows import link_s
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.streams import request_streams, visits_per_request
from jellybean_solver.model.workflow import Edge, EdgeKind, Operator, Times

# Share of a workflow's requests from which an operator counts. Above 1 %, because a p99 latency is predicted from 2,000
# requests: that at most 20 of them visit an operator which 3 % visit has a chance below 1e-8.
LEAST_SHARE = 0.03
CHILDREN_SHARE = 0.1  # of the outputs: a number of children counts if so many have it; smaller shares leave less below


@dataclass(frozen=True, slots=True)
class _Visits:
    """What is certain of an operator's visits.

    `share` of the workflow's requests that bring at least these jobs there. `jobs`: by open fan-out, outermost first,
    those of one request, after 1 for the request itself; 0 if so few have any that none count. `region`: name of the
    outermost open fan-out; empty if none is open.
    """

    share: float
    jobs: tuple[int, ...] = (1,)
    region: str = ""

    @property
    def count(self) -> int:
        """Jobs of a request; 0 if so few requests have any that none count."""
        return self.jobs[-1] if all(self.jobs) else 0


def guaranteed_jobs(problem: Problem) -> Mapping[str, float]:
    """Operator -> its jobs that a lower bound on the p99 latency may count one after the other: 0, 1 or more.

    At most the mean number of jobs of the requests that have any.
    """
    visits = _visits(problem)
    found = {name: float(min(1, one.count)) for name, one in visits.items() if name in problem.operator_by_name}
    if problem.may_mix:  # plans that mix variants spread the children over workers
        return found
    mean = visits_per_request(problem)
    slowest: dict[str, tuple[float, str, float]] = {}  # region -> seconds more than for one child, operator, jobs
    for operator in problem.operators:
        own = visits[operator.name]
        jobs = min(float(own.count), jobs_at_once(mean[operator.name]))
        more_s = _fastest_s(problem, operator, jobs) - _fastest_s(problem, operator, 1.0) if jobs > 1.0 else 0.0
        if more_s > 0.0:
            slowest[own.region] = max(slowest.get(own.region, (0.0, "", 0.0)), (more_s, operator.name, jobs))
    return found | {name: jobs for _, name, jobs in slowest.values()}


def least_run_s(times: Times, jobs: float) -> float:
    """The least seconds that the runs of so many jobs of one request take on a worker, in batches of any size."""
    if jobs == 0.0:
        return 0.0
    least = {size: least_s(time) for size, time in times.items()}
    return max(min(least.values()), jobs * min(seconds / size for size, seconds in least.items()))


def least_link_s(
    problem: Problem, edge: Edge, tiers: tuple[str, str], message_bytes: float, jobs: Mapping[str, float]
) -> float:
    """The least seconds of one message of an edge between two tiers; 0 where `guaranteed_jobs` counts no message."""
    counts = jobs[edge.downstream] > 0.0 and jobs.get(edge.upstream, 1.0) > 0.0
    return link_s(problem, tiers, message_bytes) if counts else 0.0


def _visits(problem: Problem) -> Mapping[str, _Visits]:
    """Source or operator -> what is certain of its visits."""
    streams = request_streams(problem)
    in_all: dict[str, float] = {}  # workflow -> requests per second
    for stream in streams:
        in_all[stream.workflow] = in_all.get(stream.workflow, 0.0) + stream.rate_per_s
    found = {source.name: _Visits(0.0, (0,)) for source in problem.sources}
    for stream in streams:
        share = stream.rate_per_s / in_all[stream.workflow] if in_all[stream.workflow] > 0.0 else 0.0
        own = _Visits(share, (1 if share >= LEAST_SHARE else 0,))
        found.update({source.name: own for source in stream.sources})
    for operator in problem.operators:
        inputs = [_behind(problem, edge, found[edge.upstream]) for edge in operator.inputs]
        regions = sorted({one.region for one in inputs})
        if len(regions) > 1:  # a join makes one region of two
            merged = {name: replace(own, region=regions[0]) for name, own in found.items() if own.region in regions}
            found.update(merged)
        jobs = tuple(min(counts) for counts in zip(*(one.jobs for one in inputs), strict=False))
        found[operator.name] = _Visits(min(one.share for one in inputs), jobs, regions[0])
    return found


def _behind(problem: Problem, edge: Edge, upstream: _Visits) -> _Visits:
    """What is certain of the visits behind an edge."""
    if edge.kind is EdgeKind.GATHER:
        jobs = upstream.jobs[:-1] or (0,)
        return replace(upstream, jobs=jobs, region=upstream.region if len(jobs) > 1 else "")
    if edge.kind is EdgeKind.EACH:
        return upstream
    region = upstream.region or edge.upstream
    children, share, least = _children(problem, edge, upstream.share) if upstream.count else (0, 0.0, 0)
    if not children:
        return replace(upstream, jobs=(*upstream.jobs, 0), region=region)
    count = max(children, upstream.jobs[-1] * least)  # of one parent, or of all
    return _Visits(upstream.share * share, (*upstream.jobs, count), region)


def _children(problem: Problem, edge: Edge, share: float) -> tuple[int, float, int]:
    """Children of one output, the share of outputs that have so many or more, and the number that each output has.

    The most children that enough of the requests have, of which a share `share` brings such an output; 0 if not even
    one child counts.
    """
    distributions = _distributions(problem, edge)
    counts = {count for one in distributions for count in one if count > 1}
    least = min(min(one) for one in distributions)
    for children in (*sorted(counts, reverse=True), 1):
        having = min(sum(part for count, part in one.items() if count >= children) for one in distributions)
        if share * having >= LEAST_SHARE and (having >= CHILDREN_SHARE or children == 1):
            return children, having, least
    return 0, 0.0, 0


def _distributions(problem: Problem, edge: Edge) -> Sequence[Mapping[int, float]]:
    """The distribution of the number of children of an output, by variant of the upstream operator."""
    operator = problem.operator_by_name.get(edge.upstream)
    if operator is None:
        return [child_distribution(edge.ratio)]
    return [child_distribution(v.ratios.get(edge.downstream, edge.ratio), v.children) for v in operator.variants]


def _fastest_s(problem: Problem, operator: Operator, jobs: float) -> float:
    """The least seconds of so many jobs, with any variant in any pool."""
    times = (problem.times(operator.name, variant, pool) for variant in operator.variants for pool in variant.service)
    return min((least_run_s(one, jobs) for one in times if one), default=math.inf)
