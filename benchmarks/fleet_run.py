"""`python -m benchmarks.fleet_run SEED OPERATORS WORKERS SHARING GAP LIMIT_S`: one plan, its figures as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time

from benchmarks.fleet import Size, fleet
from jellybean_solver import Sharing, solve
from tests.plan_check import complaints

seed, operators, workers, sharing, gap, limit_s = sys.argv[1:]
size = Size(
    operators=int(operators), workers=int(workers), pools=min(100, int(workers) // 10), sharing=Sharing(sharing)
)
problem = fleet(int(seed), size)
began = time.monotonic()
solution = solve(problem, gap=float(gap), time_limit_s=float(limit_s), clock=time.monotonic)
seconds = time.monotonic() - began
found = {
    "status": solution.status,
    "seconds": seconds,
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "gap": solution.certificate.gap if solution.certificate is not None else 1.0,
    "cost_usd_per_h": solution.certificate.objective if solution.certificate is not None else None,
    "complaints": 1 if solution.plan is None else len(complaints(problem, solution.plan)),
}
print(json.dumps(found))
