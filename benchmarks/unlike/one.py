"""One plan: `python -m benchmarks.unlike.one sites|workflows SEED COUNT WORKERS LIMIT_S`; WORKERS only of workflows.

Prints seconds of `solve`, megabytes, gap, cost and what the independent checker has to say, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from benchmarks.unlike.sites import unlike_sites
from benchmarks.unlike.workflows import many_workflows
from jellybean_solver import SolverError, solve
from tests.plan_check import complaints

kind, seed, count, workers, limit_s = sys.argv[1:]
if kind == "sites":
    problem = unlike_sites(int(seed), int(count))
else:
    problem = many_workflows(int(seed), int(count), int(workers))
began = time.monotonic()
try:
    plan = solve(problem, time_limit_s=float(limit_s), clock=time.monotonic, explained=False).plan
except SolverError:  # no plan within the time limit
    plan = None
print(
    json.dumps(
        {
            "seconds": time.monotonic() - began,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "gap": None if plan is None else plan.certificate.gap,
            "cost_usd_per_h": None if plan is None else plan.cost.total_usd_per_h,
            "complaints": 0 if plan is None else len(complaints(problem, plan)),
        }
    )
)
