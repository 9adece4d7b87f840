"""One more site or workflow: `python -m benchmarks.unlike.one_more sites|workflows SEED COUNT WORKERS MORE`.

Plans COUNT of them, then adds MORE one after another. Prints seconds of each, cost before and after, and what the
independent checker has to say, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.unlike.sites import unlike_sites
from benchmarks.unlike.workflows import many_workflows
from jellybean_solver import SolveOptions, add_workflows, solve
from jellybean_solver.model.multi_workflow import restricted
from tests.plan_check import complaints

LIMIT_S = 120.0  # of the first plan

kind, seed, count, workers, more = sys.argv[1], *map(int, sys.argv[2:])
every = unlike_sites(seed, count + more) if kind == "sites" else many_workflows(seed, count + more, workers)
names = [workflow.name for workflow in every.workflows]
plan = solve(restricted(every, set(names[:count])), time_limit_s=LIMIT_S, clock=time.monotonic, explained=False).plan
if plan is None:
    raise SystemExit("no first plan")
before, seconds, refused, wrong = plan.cost.total_usd_per_h, [], 0, 0
for number in range(count + 1, count + more + 1):
    problem = restricted(every, set(names[:number]))
    began = time.monotonic()
    found = add_workflows(problem, plan, SolveOptions(explained=False)).solution.plan
    seconds.append(time.monotonic() - began)
    if found is None:
        refused += 1
        break
    plan = found
    wrong += len(complaints(problem, plan))
print(
    json.dumps(
        {
            "seconds": seconds,
            "before_usd_per_h": before,
            "after_usd_per_h": plan.cost.total_usd_per_h,
            "refused": refused,
            "complaints": wrong,
        }
    )
)
