"""Phase locking: workers at which periodic requests arrive as evenly spaced as they were sent.

This holds behind replicas that share a stream evenly: no request queues there, all take equally long, so the merged
output is the periodic stream again. Any variable delay ends it: a queue, varying service times, a link.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jellybean_solver.latency.route_table import Mask, RouteTable
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.plan import Plan

UNLOCKED = -1  # not phase-locked; other numbers identify paths of equal duration


def phase_locked(
    plan: Plan, table: RouteTable, follows: Mapping[str, Mask], loads: Mapping[str, Floats]
) -> Mapping[str, Mask]:
    """Per operator a mask of the workers at which its requests arrive evenly spaced.

    `follows`: per operator the routes on which its inputs come from its own worker. `loads`: per operator and worker,
    the share of the worker's time that all requests would take; inf if service times vary.
    """
    count, sources = len(plan.workers), {source.name for source in plan.sources}
    pools = {name: number for number, name in enumerate(dict.fromkeys(worker.pool for worker in plan.workers))}
    pool = np.array([pools[worker.pool] for worker in plan.workers], np.int64)
    free = _uncontended(table, follows, loads)
    found: dict[str, Mask] = {}
    ways: dict[str, Indices] = {}
    for operator in plan.operators:
        at = table.at[operator.name]
        way = np.zeros(len(at), np.int64)
        for edge in operator.inputs:
            if edge.upstream in sources:
                way = _combined(way, table.tier[operator.name])
            else:
                stays = table.tier[edge.upstream] == table.tier[operator.name]
                way = _combined(way, np.where(stays, ways[edge.upstream], UNLOCKED))
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, UNLOCKED)
        np.minimum.at(first, at, way)
        np.maximum.at(last, at, way)
        found[operator.name] = (first == last) & (last != UNLOCKED)
        on = found[operator.name] & free
        ways[operator.name] = _combined(way, np.where(on[at], pool[at], UNLOCKED))
    return found


def _uncontended(table: RouteTable, follows: Mapping[str, Mask], loads: Mapping[str, Floats]) -> Mask:
    """Mask of the workers that finish every request before the next one arrives, with arrivals as regular as possible.

    Only workers that requests enter at a single operator, and that get all requests or those of a single route. A
    worker that gets 2 of 5 requests may have arrivals two periods apart instead of two and a half.
    """
    count, routes = len(table.plan.workers), len(table.weight)
    entries = np.zeros(count)
    for name, at in table.at.items():
        entries += table.summed(at, np.where(follows[name], 0.0, 1.0)) > 0
    keys = np.concatenate([at * routes + np.arange(routes) for at in table.at.values()])
    load = np.concatenate([loads[name][at] for name, at in table.at.items()])
    # Pairs of a route and a worker; all operators of the route there count as one visit.
    visits, each = np.unique(keys, return_inverse=True)
    here = visits // routes
    ways, longest = np.bincount(here, minlength=count), np.zeros(count)
    np.maximum.at(longest, here, np.bincount(each, load))
    spaced = np.floor(1.0 / np.maximum(table.share, 1e-9) + 1e-9)
    found: Mask = (entries == 1) & ((ways == 1) | (table.share > 1.0 - 1e-9)) & (longest <= spaced)
    return found


def _combined(way: Indices, more: Indices) -> Indices:
    """Numbers of the distinct pairs of path numbers; UNLOCKED if either is."""
    pairs = np.where((way == UNLOCKED) | (more == UNLOCKED), UNLOCKED, way * (int(more.max(initial=0)) + 1) + more)
    return np.unique(pairs, return_inverse=True)[1] - int((pairs == UNLOCKED).any())
