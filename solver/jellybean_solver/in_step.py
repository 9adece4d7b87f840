"""Where regular requests still come as regularly as they were sent, because all their ways there take the same time.

So it is behind replicas that share a stream evenly: nobody waits at them, each takes as long as the others, and what
they hand on is the stream again. All that may take longer for some ends it: a queue, times that vary, a link.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jellybean_solver.plan import Plan
from jellybean_solver.program import Floats, Indices
from jellybean_solver.route_table import Mask, RouteTable

NEVER = -1  # not in step; other numbers tell ways that take the same time


def in_step(
    plan: Plan, table: RouteTable, busy: Floats, follows: Mapping[str, Mask], steady: Mapping[str, Mask]
) -> Mapping[str, Mask]:
    """Per operator, the workers to which it comes in step.

    `busy`: per worker, the share of its time; `follows`: per operator, the routes on which it comes from its own
    worker; `steady`: per operator, the workers on which it takes the same time for every request.
    """
    count, sources = len(plan.workers), {source.name for source in plan.sources}
    pools = {name: number for number, name in enumerate(dict.fromkeys(worker.pool for worker in plan.workers))}
    pool = np.array([pools[worker.pool] for worker in plan.workers], np.int64)
    free = _never_met(table, busy, follows)
    found: dict[str, Mask] = {}
    ways: dict[str, Indices] = {}
    for operator in plan.operators:
        at = table.at[operator.name]
        way = np.zeros(len(at), np.int64)
        for edge in operator.inputs:
            if edge.upstream in sources:
                way = _and(way, table.tier[operator.name])
            else:
                stays = table.tier[edge.upstream] == table.tier[operator.name]
                way = _and(way, np.where(stays, ways[edge.upstream], NEVER))
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, NEVER)
        np.minimum.at(first, at, way)
        np.maximum.at(last, at, way)
        found[operator.name] = (first == last) & (last != NEVER)
        on = found[operator.name] & free & steady[operator.name]
        ways[operator.name] = _and(way, np.where(on[at], pool[at], NEVER))
    return found


def _never_met(table: RouteTable, busy: Floats, follows: Mapping[str, Mask]) -> Mask:
    """Workers that are done with a request before the next one comes, if those come as regularly as can be.

    One operator's requests come to them from elsewhere, all there are or one route's: those of a share of 2 in 5 may be
    two spacings apart, not two and a half.
    """
    entries, routes = np.zeros(len(busy)), np.zeros(len(busy))
    for name, at in table.at.items():
        comes = table.summed(at, np.where(follows[name], 0.0, 1.0))
        entries += comes > 0
        routes = np.maximum(routes, table.summed(at, np.ones(len(at))))
    spaced = np.floor(1.0 / np.maximum(table.share, 1e-9) + 1e-9) * table.share
    found: Mask = (entries == 1) & ((routes == 1) | (table.share > 1.0 - 1e-9)) & (busy <= spaced)
    return found


def _and(way: Indices, more: Indices) -> Indices:
    """Numbers of pairs of ways."""
    pairs = np.where((way == NEVER) | (more == NEVER), NEVER, way * (int(more.max(initial=0)) + 1) + more)
    return np.unique(pairs, return_inverse=True)[1] - int((pairs == NEVER).any())
