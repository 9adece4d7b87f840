"""The fewest workers to which an autoscaler may shrink pools without overloading others.

The gateway draws only routes whose workers are all available, by the plan's weights. At a share f of the planned rate
and with routes of total weight W left, a remaining worker has f / W of its planned load. An autoscaler that keeps a
pool at its planned load leaves at least a share f of its workers. So no worker exceeds its planned load if, for every
f, W >= f holds with every shrinking pool at the fewest workers allowed at f.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_solver import Plan

_TOLERANCE = 1e-9


def min_workers(plan: Plan, shrinking: Mapping[str, WorkerGroup]) -> dict[str, int]:
    """Pool -> minimum number of workers, for pools that shrink together. Pods are removed from the highest ordinal.

    `shrinking`: pool -> its group; single-site pools only, as the pods of a site serve that site alone.
    """
    shares = sorted({k / group.count for group in shrinking.values() for k in range(1, group.count + 1)}, reverse=True)
    minimum = {pool: group.count for pool, group in shrinking.items()}
    for share in shares:
        left = {pool: math.ceil(share * group.count - _TOLERANCE) for pool, group in shrinking.items()}
        there = {worker for pool, group in shrinking.items() for worker in group.workers[: left[pool]]}
        away = {worker for group in shrinking.values() for worker in group.workers} - there
        weight = sum(route.weight for route in plan.routes if not away & set(route.workers.values()))
        if weight < share - _TOLERANCE:
            break
        minimum = left
    return minimum
