"""How many workers of a pool may be away while less is asked than planned.

The gateway draws only routes whose workers are all there, by the plan's weights. With a share f of the planned rate
offered and routes of weight W left, a worker that is left has f / W of its planned load. An autoscaler that keeps a
pool at its planned load leaves at least a share f of its workers; so nobody is busier than planned as long as W >= f,
with every pool that may shrink as small as f lets it be. `least_workers` is the fewest for which that holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jellybean_k8s.manifests.workers import Group
from jellybean_solver import Plan

_TOLERANCE = 1e-9


def least_workers(plan: Plan, shrinking: Mapping[str, Group]) -> dict[str, int]:
    """Pool -> fewest workers, for pools that shrink together. Pods go from the highest number down.

    `shrinking`: pool -> its group; one of a single site, as the pods of a site serve that site alone.
    """
    shares = sorted({k / group.count for group in shrinking.values() for k in range(1, group.count + 1)}, reverse=True)
    least = {pool: group.count for pool, group in shrinking.items()}
    for share in shares:
        left = {pool: math.ceil(share * group.count - _TOLERANCE) for pool, group in shrinking.items()}
        there = {worker for pool, group in shrinking.items() for worker in group.workers[: left[pool]]}
        away = {worker for group in shrinking.values() for worker in group.workers} - there
        weight = sum(route.weight for route in plan.routes if not away & set(route.workers.values()))
        if weight < share - _TOLERANCE:
            break
        least = left
    return least
