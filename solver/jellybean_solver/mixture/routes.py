"""From a mixture to a plan: concrete workers, and routes of whole requests.

All requests are the interval [0, 1], cut into one piece for each way that is taken. Operator by operator, the pieces of
one variant in one tier are dealt out to the workers that run it there, in order, each until it has its share of the
operator's requests; a piece that does not fit is cut. Pieces differ in requests per length where a fan-out's ratio
depends on the variant, so shares are counted in requests, not in length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.mixture.program import Mixture, Seats
from jellybean_solver.mixture.ways import Instance, Way
from jellybean_solver.model.plan import Certificate, Cost, Plan, PlannedOperator, PlannedWorker, Route
from jellybean_solver.model.problem import Problem, request_s
from jellybean_solver.model.stated_figures import with_figures

SLIVER = 1e-9  # relative to all of an operator's requests: less is a rounding error and joins its neighbour
NEGLIGIBLE = 1e-10  # fraction of requests; routes with a smaller weight are dropped


@dataclass(slots=True)
class _Worker:
    """A worker to be: `served`: instance -> requests per second of all sites that it takes."""

    name: str
    pool: str
    tier: str
    served: Mapping[Instance, float]
    batches: Mapping[Instance, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Requests of one way: `weight` of all of them, and the workers chosen so far."""

    way: Way
    weight: float
    workers: Mapping[str, str]


def plan_of(network: Network, mixture: Mixture, certificate: Certificate, *, even: bool = False) -> Plan:
    """The plan of a mixture. Its cost and accuracy are placeholders; `evaluate` computes them.

    `even`: workers that hold the same instances serve equal parts of each, so that any of them can be spared.
    """
    workers = _workers(network, mixture, even=even)
    pieces = [_Piece(way, weight, {}) for way, weight in mixture.ways]
    for index, name in enumerate(network.names):
        pieces = _dealt(pieces, index, name, workers)
    routes = _routes(network, pieces)
    variants = _variants(network, pieces)
    problem = network.problem
    draft = Plan(
        name=problem.name,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(_operator(problem, name, variants[name], workers) for name in network.names),
        workers=tuple(_planned(problem, worker, routes, variants) for worker in workers if _is_used(worker, routes)),
        routes=routes,
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


def _workers(network: Network, mixture: Mixture, *, even: bool) -> list[_Worker]:
    """The workers, pool by pool; those that hold the same instances get equal parts of what they serve."""
    found: list[_Worker] = []
    for pool in network.pools:
        number = 0
        for seats in (one for one in mixture.seats if one.pool == pool.name):
            for served in _shared_out(network, seats, even=even):
                number += 1
                found.append(_Worker(f"{pool.name}-{number}", pool.name, pool.tier, served, seats.batches))
    return found


def _shared_out(network: Network, seats: Seats, *, even: bool) -> list[dict[Instance, float]]:
    """What each of the workers serves: the instances laid end to end and cut into workers of equal load.

    `even`: equal parts of each instance instead.
    """
    if even or len(seats.served) == 1 or seats.count <= 1:
        return [{one: rate / seats.count for one, rate in seats.served.items()} for _ in range(max(1, seats.count))]
    busy = {one: _request_s(network, one, seats) for one in seats.served}
    loads = {one: rate * busy[one] for one, rate in seats.served.items()}
    total = sum(loads.values())
    room = total / seats.count
    filled: list[dict[Instance, float]] = [{}]
    left = room
    for one, load in loads.items():
        while load > left + SLIVER * total and len(filled) < seats.count:
            if left > SLIVER * total:
                filled[-1][one] = left / busy[one]
                load -= left  # noqa: PLW2901
            filled.append({})
            left = room
        filled[-1][one] = load / busy[one] if busy[one] > 0 else seats.served[one]
        left -= load
    return filled


def _request_s(network: Network, instance: Instance, seats: Seats) -> float:
    name, variant = instance
    times = network.problem.operator_by_name[name].variant(variant).service[seats.pool]
    return request_s(times, seats.batches[instance])


def _dealt(pieces: Sequence[_Piece], index: int, name: str, workers: Sequence[_Worker]) -> list[_Piece]:
    """The pieces with a worker for an operator, cut where a worker has its share."""
    found: list[_Piece] = []
    groups: dict[tuple[str, str], list[_Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.way.variants[index], piece.way.tiers[index]), []).append(piece)
    for (variant, tier), own in groups.items():
        takers = [(w.name, w.served[name, variant]) for w in workers if w.tier == tier and (name, variant) in w.served]
        # Requests per second that the pieces bring; a rate of 0 is dealt out by weight.
        brings = [piece.weight * (piece.way.rates[index] or 1.0) for piece in own]
        scale = sum(brings) / (sum(share for _, share in takers) or 1.0)
        queue = [(worker, share * scale) for worker, share in reversed(takers)]
        for piece, amount in zip(own, brings, strict=True):
            rest = amount
            while queue:
                worker, room = queue[-1]
                last = len(queue) == 1 or rest <= room + SLIVER * amount
                part = rest if last else room
                if part > 0:
                    weight = piece.weight * part / amount
                    found.append(replace(piece, weight=weight, workers={**piece.workers, name: worker}))
                if last:
                    queue[-1] = worker, room - part
                    break
                rest -= part
                queue.pop()
    return found


def _routes(network: Network, pieces: Sequence[_Piece]) -> tuple[Route, ...]:
    weights: dict[tuple[str, ...], float] = {}
    for piece in pieces:
        key = tuple(piece.workers[name] for name in network.names)
        weights[key] = weights.get(key, 0.0) + piece.weight
    kept = {key: weight for key, weight in weights.items() if weight > NEGLIGIBLE}
    total = math.fsum(kept.values())
    return tuple(Route(weight / total, dict(zip(network.names, key, strict=True))) for key, weight in kept.items())


def _variants(network: Network, pieces: Sequence[_Piece]) -> Mapping[str, tuple[str, ...]]:
    """Operator -> its variants, the one that most requests get first."""
    found: dict[str, tuple[str, ...]] = {}
    for index, name in enumerate(network.names):
        shares: dict[str, float] = {}
        for piece in pieces:
            variant = piece.way.variants[index]
            shares[variant] = shares.get(variant, 0.0) + piece.weight
        kept = [variant for variant, share in shares.items() if share > NEGLIGIBLE]
        found[name] = tuple(sorted(kept, key=lambda variant, shares=shares: -shares[variant]))  # type: ignore[misc]
    return found


def _is_used(worker: _Worker, routes: Sequence[Route]) -> bool:
    return any(worker.name in route.workers.values() for route in routes)


def _planned(
    problem: Problem, worker: _Worker, routes: Sequence[Route], variants: Mapping[str, tuple[str, ...]]
) -> PlannedWorker:
    pool = problem.pool_by_name[worker.pool]
    served = {name for route in routes for name, at in route.workers.items() if at == worker.name}
    runs = {name: variant for name, variant in worker.served if name in served and len(variants[name]) > 1}
    return PlannedWorker(worker.name, pool.name, pool.tier, pool.price_usd_per_h, pool.sharing, {}, 0.0, variants=runs)


def _operator(problem: Problem, name: str, variants: Sequence[str], workers: Sequence[_Worker]) -> PlannedOperator:
    """The operator with its variants, models, and batch sizes in the pools that run them; no other figures."""
    operator = problem.operator_by_name[name]

    def of(chosen: str) -> PlannedOperator:
        variant = operator.variant(chosen)
        runs = [worker for worker in workers if (name, chosen) in worker.served]
        batch = {worker.pool: worker.batches[name, chosen] for worker in runs}
        delay_s, state = operator.batch_delay_s, operator.state
        return PlannedOperator(
            name, operator.inputs, chosen, batch, 0.0, {}, {}, {}, variant.model, batch_delay_s=delay_s, state=state
        )

    return replace(of(variants[0]), others=tuple(of(variant) for variant in variants[1:]))
