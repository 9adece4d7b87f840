"""From a mixture to a plan: concrete workers, and routes of whole requests.

All requests of a block are the interval [0, 1], cut into one piece for each way that is taken. Operator by operator,
the pieces of one variant in one tier are dealt out to the workers that run it there, in order, each until it has its
share of the operator's requests; a piece that does not fit is cut. Pieces differ in requests per length where a
fan-out's ratio depends on the variant, so shares are counted in requests, not in length. A piece goes first to a worker
that it is at already: fewer messages between workers, and fewer routes that the loss of one closes.
A route of an audited workflow also says where its audit runs: the audits spread as planned over the routes of requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jellybean_solver.demand.demand import Network
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.mixture.blocks import Block, stream_counts, surviving
from jellybean_solver.mixture.seats import Held, Lost, Mixture, Seats
from jellybean_solver.mixture.ways import Instance, Way
from jellybean_solver.mixture.whole_streams import Task
from jellybean_solver.model.loss import REHEARSED, Loss, RoutesAfterLoss, losses
from jellybean_solver.model.loss_checks import RouteLoads
from jellybean_solver.model.plan import Certificate, Fallback, Plan, PlannedOperator, PlannedWorker, Route
from jellybean_solver.model.shed_audits import plan_without_audits
from jellybean_solver.model.targets import LossKind
from jellybean_solver.model.workflow import request_s
from jellybean_solver.small.routes import cut, planned_operator, stated_plan, wrap_around

SLIVER = 1e-9  # relative to all of an operator's requests: less is a rounding error and joins its neighbour
NEGLIGIBLE = 1e-10  # fraction of requests; routes with a smaller weight are dropped
ALL = 1e-6  # of a workflow's requests: a share that lacks no more of 1 is 1, as programs are solved to tolerances

RouteKey = tuple[tuple[str, str], ...]  # operators of a block with their workers, in the operators' order


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker to be. `held`: what workers like it hold; `served`: instance -> requests per second that it takes.

    `streams`: how many it takes of those that are whole.
    """

    name: str
    pool: str
    tier: str
    held: Held
    served: Mapping[Instance, float]
    streams: Mapping[Task, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Requests of one way: `weight` of all of its block, and the workers chosen so far."""

    way: Way
    weight: float
    workers: Mapping[str, str]


class PlanBuilder:
    """Makes the plan of a mixture. Its cost and accuracy are placeholders; `evaluate` computes them.

    `even`: workers that hold the same instances serve equal parts of each, so that any of them can be spared.
    `counts`: (pool, instances) -> workers; of `mixture` and of what comes after each loss.
    """

    def __init__(self, network: Network, blocks: Sequence[Block], mixture: Mixture, *, even: bool = False) -> None:
        self.network, self.blocks, self.mixture, self.even = network, blocks, mixture, even
        seats = mixture.all_seats
        self.counts = {(one.pool, one.held): max(1, one.count) for one in seats}
        self.batch = {(one, own.pool): size for own in seats for one, size in own.batches.items()}
        self.streams = stream_counts(blocks)
        self.workers = self._workers(mixture, "")

    def plan(self, certificate: Certificate, fallbacks: Sequence[Loss] = ()) -> Plan:
        """The plan. `fallbacks`: losses after which the requests spread as the mixture says."""
        problem, pieces = self.network.problem, {loss: self._pieces_after(loss) for loss in fallbacks}
        usual = self._pieces(self.mixture, self.workers)
        flow = _route_weights([piece for piece in usual if not self._is_audit(piece)])
        after = {loss: _route_weights(own) for loss, own in pieces.items()}
        keys = list(dict.fromkeys(key for own in (flow, *after.values()) for key in own))
        before: Floats = np.array([flow.get(key, 0.0) for key in keys])
        weights: Floats = (1.0 - REHEARSED) * before if fallbacks else before
        for loss, own in after.items():
            lost = self._lost(loss)
            blocks = [self.blocks[number] for number in surviving(problem, self.blocks, lost.kind, lost.of)]
            kept = {name for block in blocks if not block.streams for name in block.names}  # a stream keeps its route
            rehearsed = [(own if key[0][0] in kept else flow).get(key, 0.0) for key in keys]
            weights = weights + REHEARSED / len(fallbacks) * np.array(rehearsed)
        audited = self._audited(keys, before, _route_weights([piece for piece in usual if self._is_audit(piece)]))
        places, parts = [place for place, _, _ in audited], np.array([part for _, _, part in audited])
        whole = [(*keys[place], *audit) for place, audit, _ in audited]
        before, weights = before[places] * parts, weights[places] * parts
        spread = [(usual, 1.0), *((own, REHEARSED) for own in pieces.values())]
        variants = self._variants([(piece, share) for own, share in spread for piece in own])
        plan = self._plan(whole, weights, variants, certificate)
        if not fallbacks:
            return plan
        if (carried := RouteLoads(problem, plan).carried_share(before, weights)) < 1.0:
            plan = self._plan(whole, before + carried * (weights - before), variants, certificate)
        planned = {
            loss: tuple(own.get(keys[place], 0.0) * part for place, _, part in audited) for loss, own in after.items()
        }
        borne = losses(plan_without_audits(problem, plan), problem.survives)
        closing = RoutesAfterLoss(problem, plan)
        return replace(
            plan,
            fallbacks=tuple(Fallback(str(loss), closing.closed(loss), planned.get(loss, ())) for loss in borne),
        )

    def served_less(self, plan: Plan) -> list[Loss]:
        """The losses after which a plan serves less of some workflow than the mixture does."""
        after, plan = RoutesAfterLoss(self.network.problem, plan), plan_without_audits(self.network.problem, plan)
        found: list[Loss] = []
        for loss in losses(plan, self.network.problem.survives):
            flow, shares = self.mixture.after.get(self._lost(loss)), after.shares(after.weights(loss))
            served = dict.fromkeys(shares, 0.0)
            for way, share in () if flow is None else flow.ways:
                served[self.blocks[way.block].workflow] += share
            if any(share > shares[workflow] + ALL for workflow, share in served.items()):
                found.append(loss)
        return found

    def _pieces_after(self, loss: Loss) -> list[_Piece]:
        lost = loss.of[0] if loss.kind is LossKind.WORKER else ""
        flow = self.mixture.after[self._lost(loss)]
        pieces = self._pieces(flow, self._workers(flow, lost))
        return [piece for piece in pieces if not self._is_audit(piece)]

    def _is_audit(self, piece: _Piece) -> bool:
        return self.blocks[piece.way.block].is_audit

    def _audited(
        self, keys: Sequence[RouteKey], weights: Floats, audits: Mapping[RouteKey, float]
    ) -> list[tuple[int, RouteKey, float]]:
        """The routes of requests, each with one of its workflow's audit, and the part of the route's requests.

        By the usual `weights`; those that are only rehearsed get any. Without an audit its route is empty.
        """
        workflow_of = self.network.problem.workflow_of
        of = [workflow_of(key[0][0]) for key in keys]
        parts: dict[str, list[tuple[RouteKey, float]]] = {}
        for key, weight in audits.items():
            parts.setdefault(workflow_of(key[0][0]), []).append((key, weight))
        without: dict[str, list[tuple[RouteKey, float]]] = {workflow: [((), 1.0)] for workflow in of}
        laid = cut([*zip(weights.tolist(), range(len(keys)), strict=True)], of, without | parts)
        return [(place, audit, part / weights[place] if part > 0 else 1.0) for part, place, audit in laid]

    def _lost(self, loss: Loss) -> Lost:
        if loss.kind is not LossKind.WORKER:
            return Lost(loss.kind, loss.of)
        worker = next(worker for worker in self.workers if worker.name == loss.of[0])
        return Lost(loss.kind, (worker.pool,), worker.held)

    def _workers(self, flow: Mixture, lost: str) -> list[_Worker]:
        """The workers, pool by pool, with what they serve of a flow, but for one that is lost."""
        found: list[_Worker] = []
        served = {(seats.pool, seats.held): seats for seats in flow.seats}
        for pool in self.network.pools:
            number = 0
            for (own, held), count in self.counts.items():
                if own != pool.name:
                    continue
                names = [f"{own}-{number + index}" for index in range(1, count + 1)]
                number += count
                left = [name for name in names if name != lost]
                seats = served.get((own, held))
                streams = [{} for _ in left] if seats is None else seats.streams_by_worker(len(left))
                shares = self._shared_out(seats, streams)
                for worker, part, whole in zip(left, shares, streams, strict=True):
                    found.append(_Worker(worker, own, pool.tier, held, part, whole))
        return found

    def _shared_out(self, seats: Seats | None, streams: Sequence[Mapping[Task, int]]) -> list[dict[Instance, float]]:
        """What each of the workers serves: the instances laid end to end and cut into workers of equal load.

        With `even` equal parts of each instance instead. Beside whole `streams`, which are not in it, others get equal
        parts of what these leave of the workers.
        """
        count = len(streams)
        if seats is None or count == 0:
            return [{} for _ in range(count)]
        if seats.streams:
            taken = [math.fsum(seats.room.size[task] * own for task, own in of.items()) for of in streams]
            free = [max(SLIVER, 1.0 - own) for own in taken]
            others = {one: rate for one, rate in seats.served.items() if one[0] not in self.streams}
            return [{one: rate * own / sum(free) for one, rate in others.items()} for own in free]
        if self.even:
            return [{one: rate / count for one, rate in seats.served.items()} for _ in range(count)]
        busy = {one: self._request_s(one, seats) for one in seats.served}
        filled = wrap_around(seats.served, busy, count)
        return filled + [{} for _ in range(count - len(filled))]

    def _request_s(self, instance: Instance, seats: Seats) -> float:
        name, variant = instance
        times = self.network.problem.operator_by_name[name].variant(variant).service[seats.pool]
        return request_s(times, seats.batches[instance])

    def _pieces(self, flow: Mixture, workers: Sequence[_Worker]) -> list[_Piece]:
        """The requests of each way, dealt out to workers."""
        found: list[_Piece] = []
        for number, block in enumerate(self.blocks):
            pieces = [_Piece(way, weight, {}) for way, weight in flow.ways if way.block == number]
            together = {name: one.operators for one in block.streams for name in one.operators}
            for index, name in enumerate(block.names):
                pieces = _dealt(pieces, index, name, workers, together.get(name, ()))
            found += pieces
        return found

    def _variants(self, pieces: Sequence[tuple[_Piece, float]]) -> Mapping[str, tuple[str, ...]]:
        """Operator -> its variants, the one that most requests get first. `pieces`: each with the share of its flow."""
        shares: dict[str, dict[str, float]] = {name: {} for name in self.network.names}
        kept: set[Instance] = set()
        for piece, share in pieces:
            for name, variant in zip(self.blocks[piece.way.block].names, piece.way.variants, strict=True):
                shares[name][variant] = shares[name].get(variant, 0.0) + share * piece.weight
                if piece.weight > NEGLIGIBLE:
                    kept.add((name, variant))
        return {
            name: tuple(sorted((v for v in own if (name, v) in kept), key=own.__getitem__, reverse=True))
            for name, own in shares.items()
        }

    def _plan(
        self,
        keys: Sequence[RouteKey],
        weights: Floats,
        variants: Mapping[str, tuple[str, ...]],
        certificate: Certificate,
    ) -> Plan:
        problem = self.network.problem
        routes = tuple(Route(weight, dict(key)) for weight, key in zip(weights.tolist(), keys, strict=True))
        used = {worker for route in routes for worker in route.workers.values()}
        runs = [worker for worker in self.workers if worker.name in used]
        operators = [self._operator(name, variants[name]) for name in self.network.names]
        workers = [self._planned(worker, routes, variants) for worker in runs]
        return stated_plan(problem, operators, workers, routes, certificate)

    def _planned(
        self, worker: _Worker, routes: Sequence[Route], variants: Mapping[str, tuple[str, ...]]
    ) -> PlannedWorker:
        pool = self.network.problem.pool_by_name[worker.pool]
        served = {name for route in routes for name, at in route.workers.items() if at == worker.name}
        alike = (seats for seats in self.mixture.all_seats if (seats.pool, seats.held) == (worker.pool, worker.held))
        holds = {one for seats in alike for one in seats.served}
        runs = {name: variant for name, variant in sorted(holds) if name in served and len(variants[name]) > 1}
        price, sharing = pool.price_usd_per_h, pool.sharing
        return PlannedWorker(worker.name, pool.name, pool.tier, price, sharing, {}, 0.0, variants=runs)

    def _operator(self, name: str, variants: Sequence[str]) -> PlannedOperator:
        """The operator with its variants, models, and batch sizes in the pools that run them; no other figures."""
        operator = self.network.problem.operator_by_name[name]

        def of(chosen: str) -> PlannedOperator:
            batch = {pool: size for (instance, pool), size in self.batch.items() if instance == (name, chosen)}
            return planned_operator(operator, chosen, batch)

        return replace(of(variants[0]), others=tuple(of(variant) for variant in variants[1:]))


def _dealt(
    pieces: Sequence[_Piece], index: int, name: str, workers: Sequence[_Worker], together: Sequence[str]
) -> list[_Piece]:
    """The pieces with a worker for an operator, cut where a worker has its share.

    `together`: the operators of the streams that this one answers, if they are whole. Then workers take whole streams,
    and pieces that are alike for these operators are dealt out one after another, so that none of them is cut.
    """
    found: list[_Piece] = []
    groups: dict[tuple[str, str, float], list[_Piece]] = {}
    for piece in pieces:
        rate = piece.way.rates[index] if together else 0.0
        groups.setdefault((piece.way.variants[index], piece.way.tiers[index], rate), []).append(piece)
    for (variant, tier, rate), own in groups.items():
        task, instance = (name, variant, rate), (name, variant)
        if together:
            takers = {w.name: float(w.streams[task]) for w in workers if w.tier == tier and task in w.streams}
            own.sort(key=lambda piece: [piece.workers.get(other, "") for other in together])
            brings = [piece.weight for piece in own]
        else:
            takers = {w.name: w.served[instance] for w in workers if w.tier == tier and instance in w.served}
            # Requests per second that the pieces bring; a rate of 0 is dealt out by weight.
            brings = [piece.weight * (piece.way.rates[index] or 1.0) for piece in own]
        scale = sum(brings) / (sum(takers.values()) or 1.0)
        found += _dealt_out(own, name, brings, {worker: share * scale for worker, share in takers.items()})
    return found


def _dealt_out(
    pieces: Sequence[_Piece], name: str, brings: Sequence[float], rooms: dict[str, float]
) -> Iterator[_Piece]:
    """Pieces cut into those of one worker each. `rooms`: worker -> requests that it still takes; they are used up."""
    rests: list[tuple[float, tuple[_Piece, float]]] = []  # what is left of a piece, and what it brought

    def part(piece: _Piece, amount: float, brought: float, worker: str) -> _Piece:
        rooms[worker] -= amount
        weight = piece.weight * amount / brought
        return replace(piece, weight=weight, workers={**piece.workers, name: worker})

    for piece, amount in zip(pieces, brings, strict=True):
        rest = amount
        for worker in dict.fromkeys(reversed([*piece.workers.values()])):
            given = min(rest, rooms.get(worker, 0.0))
            if given > SLIVER * amount:
                yield part(piece, given, amount, worker)
                rest -= given
        if rest > SLIVER * amount:
            rests.append((rest, (piece, amount)))
    left = [(worker, room) for worker, room in rooms.items() if room > 0] or [(next(reversed(rooms)), 1.0)]
    for amount, (piece, brought), worker in cut(rests, [()] * len(rests), {(): left}):
        yield part(piece, amount, brought, worker)


def _route_weights(pieces: Sequence[_Piece]) -> Mapping[RouteKey, float]:
    """The shares of its block's requests by route, without negligible ones; those of a block sum to what is served."""
    weights: dict[int, dict[RouteKey, float]] = {}
    for piece in pieces:
        own, key = weights.setdefault(piece.way.block, {}), tuple(piece.workers.items())
        own[key] = own.get(key, 0.0) + piece.weight
    found: dict[RouteKey, float] = {}
    for own in weights.values():
        kept = {key: weight for key, weight in own.items() if weight > NEGLIGIBLE}
        total = math.fsum(kept.values())
        served = total if total < 1.0 - ALL else 1.0
        found |= {key: served * weight / total for key, weight in kept.items()}
    return found
