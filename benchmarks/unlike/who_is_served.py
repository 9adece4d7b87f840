"""Which of many workflows are served: `python -m benchmarks.unlike.who_is_served SEED COUNT WORKERS LIMIT_S`.

The workers suffice for a part of the work; worths are drawn by seed. Prints seconds, megabytes, gap, how many are
served and what they are worth, and what the independent checker has to say, as JSON.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from dataclasses import replace

from benchmarks.unlike.workflows import many_workflows
from jellybean_solver import solve
from jellybean_solver.model.left_out import served
from tests.plan_check import complaints

SHARE = 1.2  # of the workers: what serving all of them would take

seed, count, workers, limit_s = (int(text) for text in sys.argv[1:])
problem = many_workflows(seed, count, workers, share=SHARE)
rng = random.Random(f"worth/{seed}")
price = sum(pool.count * pool.price_usd_per_h for pool in problem.pools) / count  # of an even share of the fleet
workflows = tuple(replace(one, worth_usd_per_h=price * rng.lognormvariate(1.0, 0.7)) for one in problem.workflows)
problem = replace(problem, workflows=workflows)
began = time.monotonic()
plan = solve(problem, time_limit_s=float(limit_s), clock=time.monotonic, explained=False).plan
seconds = time.monotonic() - began
if plan is None:
    raise SystemExit("no plan")
print(
    json.dumps(
        {
            "seconds": seconds,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "gap": plan.certificate.gap,
            "served": len(plan.workflows),
            "worth_usd_per_h": sum(one.worth_usd_per_h or 0.0 for one in plan.workflows),
            "forgone_usd_per_h": plan.certificate.forgone_usd_per_h,
            "cost_usd_per_h": plan.cost.total_usd_per_h,
            "complaints": len(complaints(served(problem, plan), plan)),
        }
    )
)
