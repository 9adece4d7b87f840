"""`python -m benchmarks.fleet_run SEED OPERATORS WORKERS SHARING GAP LIMIT_S P99 LIMITS SITES`: one plan's figures.

P99: the latency asked for, as a share of what the cheapest plan with a tenth of the links free has (a full link's
queue has no end); 0 asks for none. LIMITS: 1 to tell whether memory and links bind: a limit does when a plan without it
is cheaper than any plan with it can be (its cost lies below the bound).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from functools import partial

from benchmarks.fleet import Size, fleet
from jellybean_solver import Problem, Sharing, solve
from jellybean_solver.errors import SolverError
from jellybean_solver.headroom import Room, in_own_figures, with_headroom
from jellybean_solver.latency import latency
from tests.plan_check import complaints

BATCHES = (1, 2, 4, 8)

seed, operators, workers, sharing, gap, limit_s, share, limits, sites = sys.argv[1:]
size = Size(
    operators=int(operators),
    workers=int(workers),
    pools=min(100, int(workers) // 10),
    sharing=Sharing(sharing),
    batches=BATCHES,
    sites=int(sites),
)
problem = fleet(int(seed), size)
solved = partial(solve, gap=float(gap), time_limit_s=float(limit_s), clock=time.monotonic, explained=False)
p99_s = None
if float(share) > 0 and (untimed := solved(with_headroom(problem, Room(links=0.9))).plan) is not None:
    p99_s = float(share) * latency(in_own_figures(problem, untimed)).p99_s
began = time.monotonic()
try:
    solution = solved(problem, p99_s=p99_s)
except SolverError:  # no plan in time
    solution = None
seconds = time.monotonic() - began
megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
plan = solution.plan if solution is not None else None
certificate = plan.certificate if plan is not None else None
roomy = replace(problem, pools=tuple(replace(pool, memory_bytes=None) for pool in problem.pools))
wide = replace(problem, links=tuple(replace(link, bandwidth_bytes_per_s=None) for link in problem.links))


def binds(without: Problem) -> bool:
    """Whether the plan without a limit costs less than the bound with it."""
    if limits == "0" or certificate is None:
        return False
    other = solved(without, p99_s=p99_s).plan
    return other is not None and other.cost.total_usd_per_h < certificate.bound


found = {
    "seconds": seconds,
    "megabytes": megabytes,
    "gap": certificate.gap if certificate is not None else 1.0,
    "cost_usd_per_h": certificate.objective if certificate is not None else None,
    "memory_binds": binds(roomy),
    "links_bind": binds(wide),
    "complaints": 1 if plan is None else len(complaints(problem, plan)),
}
print(json.dumps(found))
