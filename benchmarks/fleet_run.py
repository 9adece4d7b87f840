"""`python -m benchmarks.fleet_run SEED OPERATORS WORKERS SHARING GAP LIMIT_S P99`: one plan, its figures as JSON.

P99: the latency asked for, as a share of the cheapest plan's; 0 asks for none. Four batch sizes then.

A limit binds when a plan without it is cheaper than any plan with it can be (its cost lies below the bound).
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
from jellybean_solver.latency import latency
from tests.plan_check import complaints

seed, operators, workers, sharing, gap, limit_s, share = sys.argv[1:]
size = Size(
    operators=int(operators),
    workers=int(workers),
    pools=min(100, int(workers) // 10),
    sharing=Sharing(sharing),
    batches=(1, 2, 4, 8) if float(share) > 0 else (1,),
)
problem = fleet(int(seed), size)
solved = partial(solve, gap=float(gap), time_limit_s=float(limit_s), clock=time.monotonic, explained=False)
p99_s = None
if float(share) > 0 and (untimed := solved(problem).plan) is not None:
    p99_s = float(share) * latency(untimed).p99_s
began = time.monotonic()
solution = solved(problem, p99_s=p99_s)
seconds = time.monotonic() - began
megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
roomy = replace(problem, pools=tuple(replace(pool, memory_bytes=None) for pool in problem.pools))
wide = replace(problem, links=tuple(replace(link, bandwidth_bytes_per_s=None) for link in problem.links))


def binds(without: Problem) -> bool:
    """Whether the plan without a limit costs less than the bound with it."""
    plan = solved(without, p99_s=p99_s).plan
    if plan is None or solution.certificate is None:
        return False
    return plan.cost.total_usd_per_h < solution.certificate.bound


found = {
    "status": solution.status,
    "seconds": seconds,
    "megabytes": megabytes,
    "gap": solution.certificate.gap if solution.certificate is not None else 1.0,
    "cost_usd_per_h": solution.certificate.objective if solution.certificate is not None else None,
    "memory_binds": binds(roomy),
    "links_bind": binds(wide),
    "complaints": 1 if solution.plan is None else len(complaints(problem, solution.plan)),
}
print(json.dumps(found))
