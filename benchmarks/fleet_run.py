"""One plan: `python -m benchmarks.fleet_run SEED OPERATORS WORKERS SHARING GAP LIMIT_S P99 LIMITS SITES CLOCK`.

P99: the latency target in seconds (`5s`), or as a share of the cheapest plan's p99; if that is infinite because a link
is saturated, of the cheapest plan with a tenth of the links free; 0 for none. It binds if the cheapest plan misses it.
LIMITS: 1 to find out whether memory and links bind. A limit binds if a plan without it costs less than the lower bound
with it; if no such plan is found in time, it is not reported to bind. CLOCK: `wall`, or `cpu` for processor seconds of
all threads, on a machine that is busy with other programs.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from dataclasses import replace
from functools import partial

from benchmarks.fleet import Size, fleet
from jellybean_solver import Plan, Problem, Sharing, SolverError, solve
from jellybean_solver.deadline.restriction import Restriction
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.stated_figures import with_figures
from tests.plan_check import complaints

BATCHES = (1, 2, 4, 8)

seed, operators, workers, sharing, gap, limit_s, share, limits, sites, clock = sys.argv[1:]
size = Size(
    operators=int(operators),
    workers=int(workers),
    pools=min(100, int(workers) // 10),
    sharing=Sharing(sharing),
    batches=BATCHES,
    sites=int(sites),
)
problem = fleet(int(seed), size)
now = time.process_time if clock == "cpu" else time.monotonic
solved = partial(solve, gap=float(gap), time_limit_s=float(limit_s), clock=now, explained=False)


def plan_of(asked: Problem) -> Plan | None:
    """The cheapest plan found in time, or None."""
    try:
        return solved(asked).plan
    except SolverError:
        return None


def asked() -> tuple[float | None, bool]:
    """The p99 target and whether it binds; None if there is no plan to derive it from."""
    cheapest = plan_of(problem) if share != "0" else None
    if share.endswith("s"):
        return float(share[:-1]), cheapest is not None and not latency(cheapest).meets(float(share[:-1]))
    if cheapest is None:
        return None, False
    found = latency(cheapest)
    if math.isfinite(found.p99_s):
        free_s = found.p99_s
    else:
        roomy = plan_of(Restriction(links=0.9).network(problem).problem)
        if roomy is None:
            return None, False
        free_s = latency(with_figures(problem, roomy)).p99_s
    return float(share) * free_s, not found.meets(float(share) * free_s)


p99_s, p99_binds = asked()
began = now()
try:
    plan = solved(problem, p99_s=p99_s).plan
except SolverError:  # no plan within the time limit
    plan = None
seconds = now() - began
megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
certificate = plan.certificate if plan is not None else None
roomy = replace(problem, pools=tuple(replace(pool, memory_bytes=None) for pool in problem.pools))
wide = replace(problem, links=tuple(replace(link, bandwidth_bytes_per_s=None) for link in problem.links))


def binds(without: Problem) -> bool:
    """True if the plan without a limit costs less than the lower bound with it."""
    if limits == "0" or certificate is None:
        return False
    try:
        other = solved(without, p99_s=p99_s).plan
    except SolverError:
        return False
    return other is not None and other.cost.total_usd_per_h < certificate.bound


found = {
    "seconds": seconds,
    "megabytes": megabytes,
    "gap": certificate.gap if certificate is not None else 1.0,
    "cost_usd_per_h": certificate.objective if certificate is not None else None,
    "memory_binds": binds(roomy),
    "links_bind": binds(wide),
    "p99_binds": p99_binds,
    "complaints": 1 if plan is None else len(complaints(problem, plan)),
}
print(json.dumps(found))
