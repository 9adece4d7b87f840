"""From fractions of requests to concrete workers and whole-request routes.

1. The fractions of bags are made exactly consistent, root to leaves: marginals of one joint distribution.
2. The operators of workers that hold the same models are laid end to end and cut into workers of equal load
   (McNaughton's wrap-around rule, 1959), so that few workers host several operators.
3. All requests of a workflow are the interval [0, 1], which is cut into pieces: by the tiers of the root bag, then by
   the tiers of each further bag (separately for each value of its separator), then per operator and tier by workers.
   Each step adds at most as many cuts as it has parts, so the number of routes is linear in operators and workers.

Invariant: a route's weight is the total length of its pieces; the rates of workers are computed from the routes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.tree_decomposition import Bag
from jellybean_solver.joint.flow_rows import BagTiers
from jellybean_solver.migration.worker_matching import balance_loads
from jellybean_solver.model.plan import Certificate, Cost, Plan, PlannedOperator, PlannedWorker, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures
from jellybean_solver.model.workflow import Operator
from jellybean_solver.small.assignment import Assignment, Group

SLIVER = 1e-12  # fraction of requests; shorter pieces are rounding errors and join their neighbour
NEGLIGIBLE = 1e-10  # fraction of requests; routes with a smaller weight are dropped

T = TypeVar("T")
M = TypeVar("M")
K = TypeVar("K", bound=Hashable)

Marks = dict[str, str]  # operator -> tier, later operator -> worker
Key = tuple[str, ...]  # the marks of some operators
Piece = tuple[float, Marks]
PlacedBag = tuple[Bag, Mapping[BagTiers, float]]
Seat = tuple[PlannedWorker, Mapping[str, float]]  # a worker, and the fraction of each operator's requests it serves


@dataclass(frozen=True, slots=True)
class Placed:
    """An assignment of all workflows of a problem.

    `bags`: of their tree decompositions, parents first, each with tiers of its operators -> fraction of requests.
    `busy`: workers of a pool that an operator keeps busy. `uneven`: as in `Assignment`.
    """

    bags: tuple[PlacedBag, ...]
    groups: tuple[Group, ...]
    busy: Callable[[str, str], float]
    uneven: bool = False


def build_plan(
    network: Network, selection: Mapping[str, str], assignment: Assignment, certificate: Certificate
) -> Plan:
    """The plan of an assignment. Its cost and accuracy are placeholders; `evaluate` computes them."""
    network = network.settled(selection)
    busy, bags = network.demand(selection).workers, zip(network.bags, assignment.bags, strict=True)
    placed = Placed(tuple(bags), assignment.groups, lambda name, pool: busy[name][pool], assignment.uneven)
    return plan_of(network.problem, selection, placed, certificate)


def plan_of(problem: Problem, selection: Mapping[str, str], placed: Placed, certificate: Certificate) -> Plan:
    """The plan of a problem (with the selection's fan-out ratios) whose operators are placed.

    Its cost and accuracy are placeholders; `evaluate` computes them.
    """
    seats = _seats(problem, placed)
    hosts: dict[str, dict[Key, list[tuple[str, float]]]] = {o.name: {} for o in problem.operators}
    for worker, shares in seats:
        for name, share in shares.items():
            hosts[name].setdefault((worker.tier,), []).append((worker.name, share))
    bags_of: dict[str, list[PlacedBag]] = {}
    for bag, fractions in placed.bags:
        bags_of.setdefault(problem.workflow_of(bag.operators[0]), []).append((bag, fractions))
    routes = tuple(route for bags in bags_of.values() for route in _routes(problem, bags, hosts))
    pool_of = {worker.name: worker.pool for worker, _ in seats}
    pools: dict[str, set[str]] = {o.name: set() for o in problem.operators}
    used = {key for route in routes for key in route.workers.items()}
    for name, at in used:
        pools[name].add(pool_of[at])
    working = {at for _, at in used}
    operators = [_operator(problem, o, selection[o.name], pools[o.name]) for o in problem.operators]
    return stated_plan(problem, operators, [one for one, _ in seats if one.name in working], routes, certificate)


def stated_plan(
    problem: Problem,
    operators: Sequence[PlannedOperator],
    workers: Sequence[PlannedWorker],
    routes: Sequence[Route],
    certificate: Certificate,
) -> Plan:
    """The plan of these workers and routes, with the problem's figures; its cost and accuracy are placeholders."""
    draft = Plan(
        name=problem.name,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(operators),
        workers=tuple(workers),
        routes=tuple(routes),
        links=problem.links,
        slo=problem.slo,
        utilisation=problem.utilisation,
        hop_s=problem.hop_s,
        cost=Cost(0.0, 0.0),
        accuracy=None,
        certificate=certificate,
        stale_profiles=problem.stale_profiles,
    )
    return with_figures(problem, draft)


def cut(
    pieces: Sequence[tuple[float, M]], keys: Sequence[K], parts: Mapping[K, Sequence[tuple[T, float]]]
) -> list[tuple[float, M, T]]:
    """Divide the pieces that have the same key among parts in their proportions.

    `parts`: key -> (part, size). Returns (length, marks, part) per new piece. Pieces of keys without parts are dropped:
    they are rounding errors of the solver.
    """
    lengths = dict.fromkeys(keys, 0.0)
    for key, (length, _) in zip(keys, pieces, strict=True):
        lengths[key] += length
    left: dict[K, list[tuple[T, float]]] = {}
    for key, length in lengths.items():
        total = sum(size for _, size in parts.get(key, ()))
        left[key] = [(part, size / total * length) for part, size in reversed(parts.get(key, ()))]
    found: list[tuple[float, M, T]] = []
    for key, (length, marks) in zip(keys, pieces, strict=True):
        queue, rest = left[key], length
        while queue:
            part, size = queue[-1]
            if len(queue) == 1 or rest <= size + SLIVER:
                found.append((rest, marks, part))
                queue[-1] = (part, size - rest)
                break
            if size > SLIVER:
                found.append((size, marks, part))
                rest -= size
            queue.pop()
    return found


def _cut(
    pieces: Sequence[Piece], names: Sequence[str], parts: Mapping[Key, Sequence[tuple[T, float]]]
) -> list[tuple[float, Marks, T]]:
    """Cut pieces by their marks for `names`."""
    return cut(pieces, [tuple(marks[name] for name in names) for _, marks in pieces], parts)


def _seats(problem: Problem, placed: Placed) -> list[Seat]:
    """All workers of the plan, pool by pool, each with operator -> fraction of its requests that it serves."""
    filled: dict[str, list[dict[str, float]]] = {pool.name: [] for pool in problem.pools}
    for group in placed.groups:
        busy = {name: placed.busy(name, group.pool) for name in sorted(group.shares, key=problem.position.__getitem__)}
        filled[group.pool] += wrap_around(group.shares, busy, group.count)
    if placed.uneven:
        for pool, workers in filled.items():
            held = {name for worker in workers for name in worker}
            filled[pool] = balance_loads(workers, {name: placed.busy(name, pool) for name in held})
    return [
        (PlannedWorker(f"{pool.name}-{i}", pool.name, pool.tier, pool.price_usd_per_h, pool.sharing, {}, 0.0), shares)
        for pool in problem.pools
        for i, shares in enumerate(filled[pool.name], 1)
    ]


def wrap_around(shares: Mapping[T, float], busy: Mapping[T, float], count: int) -> list[dict[T, float]]:
    """Lay operators end to end and cut them into `count` workers of equal load; per worker, operator -> share.

    `shares`: operator -> fraction of its requests; `busy`: workers kept busy by all requests of an operator.
    """
    filled: list[dict[T, float]] = [{} for _ in range(count)]
    loads = [(shares[name] * workers, name) for name, workers in busy.items()]
    for load, name, worker in cut(loads, [()] * len(loads), {(): [(at, 1.0) for at in range(count)]}):
        filled[worker][name] = load / busy[name] if busy[name] > 0 else shares[name]
    return filled


def _routes(
    problem: Problem,
    bags: Sequence[PlacedBag],
    hosts: Mapping[str, Mapping[Key, Sequence[tuple[str, float]]]],
) -> Iterator[Route]:
    """Routes of one workflow: its requests cut by tiers and then by workers.

    Equal pieces are one route, and weights are scaled to sum to 1. `hosts`: operator -> tier -> its workers, each with
    the fraction of its requests there.
    """
    pieces: list[Piece] = [(1.0, {})]
    for bag, fractions in bags:
        parts: dict[Key, list[tuple[BagTiers, float]]] = {}
        for tiers, fraction in sorted(fractions.items()):
            places = dict(zip(bag.operators, tiers, strict=True))
            if all((tier,) in hosts[name] for name, tier in places.items()):
                parts.setdefault(tuple(places[name] for name in bag.separator), []).append((tiers, fraction))
        cut = _cut(pieces, bag.separator, parts)
        pieces = [(w, {**m, **dict(zip(bag.operators, tiers, strict=True))}) for w, m, tiers in cut]
    names = sorted({name for bag, _ in bags for name in bag.operators}, key=problem.position.__getitem__)
    for name in names:
        at_workers = _cut(pieces, [name], hosts[name])
        pieces = [(weight, {**marks, name: worker}) for weight, marks, worker in at_workers]
    weights: dict[tuple[str, ...], float] = {}
    for weight, marks in pieces:
        key = tuple(marks[name] for name in names)
        weights[key] = weights.get(key, 0.0) + weight
    kept = {key: weight for key, weight in weights.items() if weight > NEGLIGIBLE}
    total = math.fsum(kept.values())
    for key, weight in kept.items():
        yield Route(weight / total, dict(zip(names, key, strict=True)))


def _operator(problem: Problem, operator: Operator, chosen: str, pools: Iterable[str]) -> PlannedOperator:
    variant = operator.variant(chosen)
    return planned_operator(
        operator, chosen, {pool: max(problem.times(operator.name, variant, pool)) for pool in pools}
    )


def planned_operator(operator: Operator, chosen: str, batch: Mapping[str, int]) -> PlannedOperator:
    """The operator with a variant, its model, and its batch sizes by pool; no other figures."""
    model = operator.variant(chosen).model
    delay_s, state = operator.batch_delay_s, operator.state
    return PlannedOperator(
        operator.name, operator.inputs, chosen, batch, 0.0, {}, {}, {}, model, batch_delay_s=delay_s, state=state
    )
