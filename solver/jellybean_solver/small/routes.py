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
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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

Marks = dict[str, str]  # operator -> tier, later operator -> worker
Piece = tuple[float, Marks]
Seat = tuple[PlannedWorker, Mapping[str, float]]  # a worker, and the fraction of each operator's requests it serves


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A workflow whose requests are placed in tiers. `bags`: of its tree decomposition, parents first.

    `fractions`: per bag, tiers of its operators -> fraction of requests.
    """

    names: tuple[str, ...]
    bags: tuple[Bag, ...]
    fractions: tuple[Mapping[BagTiers, float], ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """An assignment of all workflows of a problem. `busy`: workers of a pool that an operator keeps busy.

    `uneven`: as in `Assignment`.
    """

    parts: tuple[PlacedPart, ...]
    groups: tuple[Group, ...]
    busy: Callable[[str, str], float]
    uneven: bool = False


def build_plan(
    network: Network, selection: Mapping[str, str], assignment: Assignment, certificate: Certificate
) -> Plan:
    """The plan of an assignment. Its cost and accuracy are placeholders; `evaluate` computes them."""
    network = network.settled(selection)
    demand, problem = network.demand(selection), network.problem
    of_workflow: dict[str, list[str]] = {}
    for name in network.names:
        of_workflow.setdefault(problem.workflow_of(name), []).append(name)
    parts = []
    for workflow, names in of_workflow.items():
        own = [n for n, bag in enumerate(network.bags) if problem.workflow_of(bag.operators[0]) == workflow]
        bags, fractions = [network.bags[number] for number in own], [assignment.bags[number] for number in own]
        parts.append(PlacedPart(tuple(names), tuple(bags), tuple(fractions)))
    placed = Placed(tuple(parts), assignment.groups, lambda name, pool: demand.workers[name][pool], assignment.uneven)
    return plan_of(problem, selection, placed, certificate)


def plan_of(problem: Problem, selection: Mapping[str, str], placed: Placed, certificate: Certificate) -> Plan:
    """The plan of a problem (with the selection's fan-out ratios) whose operators are placed.

    Its cost and accuracy are placeholders; `evaluate` computes them.
    """
    tier_of = {pool.name: pool.tier for pool in problem.pools}
    served = {(name, tier_of[group.pool]) for group in placed.groups for name in group.shares}
    pieces = [_tier_pieces(part, served) for part in placed.parts]
    seats = _seats(problem, placed, _marginals(piece for own in pieces for piece in own))
    seats_of: dict[str, list[tuple[PlannedWorker, float]]] = {}
    for worker, shares in seats:
        for name, share in shares.items():
            seats_of.setdefault(name, []).append((worker, share))
    routes = tuple(
        route for part, own in zip(placed.parts, pieces, strict=True) for route in _routes(part.names, own, seats_of)
    )
    used = {key for route in routes for key in route.workers.items()}
    serving = {name: [w for w, _ in own if (name, w.name) in used] for name, own in seats_of.items()}
    working = {worker for _, worker in used}
    draft = Plan(
        name=problem.name,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(_operator(problem, o, selection[o.name], serving.get(o.name, [])) for o in problem.operators),
        workers=tuple(worker for worker, _ in seats if worker.name in working),
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


def _tier_pieces(part: PlacedPart, served: Collection[tuple[str, str]]) -> list[Piece]:
    """The unit interval cut into pieces (length, operator -> tier), one tier for every operator of a workflow.

    `served`: the (operator, tier) pairs with workers.
    """
    pieces: list[Piece] = [(1.0, {})]
    for bag, fractions in zip(part.bags, part.fractions, strict=True):
        at = [bag.operators.index(name) for name in bag.separator]
        groups: dict[Hashable, list[tuple[BagTiers, float]]] = {}
        for tiers, fraction in sorted(fractions.items()):
            if all(key in served for key in zip(bag.operators, tiers, strict=True)):
                groups.setdefault(tuple(tiers[i] for i in at), []).append((tiers, fraction))

        def group(marks: Marks, names: Sequence[str] = bag.separator) -> Hashable:
            return tuple(marks[name] for name in names)

        cut = _cut(pieces, group, groups)
        pieces = [(w, {**m, **dict(zip(bag.operators, tiers, strict=True))}) for w, m, tiers in cut]
    return pieces


def _marginals(pieces: Iterable[Piece]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for weight, marks in pieces:
        for key in marks.items():
            found[key] = found.get(key, 0.0) + weight
    return found


def _cut(
    pieces: Sequence[Piece], group: Callable[[Marks], Hashable], parts: Mapping[Hashable, Sequence[tuple[T, float]]]
) -> list[tuple[float, Marks, T]]:
    """Split pieces so that each group is divided among its parts in their proportions.

    `group`: key of the group of a piece; `parts`: group -> (part, size). Returns (length, marks, part) per new piece.
    Pieces of a group without parts are dropped: they are rounding errors of the solver.
    """
    lengths: dict[Hashable, float] = {}
    for weight, marks in pieces:
        lengths[group(marks)] = lengths.get(group(marks), 0.0) + weight
    left: dict[Hashable, list[tuple[T, float]]] = {}
    for key, length in lengths.items():
        total = sum(size for _, size in parts.get(key, ()))
        left[key] = [(part, size / total * length) for part, size in reversed(parts.get(key, ()))]
    cut: list[tuple[float, Marks, T]] = []
    for weight, marks in pieces:
        queue, rest = left[group(marks)], weight
        while queue:
            part, size = queue[-1]
            if len(queue) == 1 or rest <= size + SLIVER:
                cut.append((rest, marks, part))
                queue[-1] = (part, size - rest)
                break
            if size > SLIVER:
                cut.append((size, marks, part))
                rest -= size
            queue.pop()
    return cut


def _seats(problem: Problem, placed: Placed, marginals: Mapping[tuple[str, str], float]) -> list[Seat]:
    """All workers of the plan, pool by pool, each with operator -> fraction of its requests that it serves."""
    tier_of, place = {pool.name: pool.tier for pool in problem.pools}, problem.position
    in_tier: dict[tuple[str, str], float] = {}
    for group in placed.groups:
        for name, share in group.shares.items():
            key = (name, tier_of[group.pool])
            in_tier[key] = in_tier.get(key, 0.0) + share
    filled: dict[str, list[dict[str, float]]] = {}
    for group in placed.groups:
        tier = tier_of[group.pool]
        shares = {
            name: group.shares[name] / in_tier[name, tier] * marginals[name, tier]
            for name in sorted(group.shares, key=place.__getitem__)
            if (name, tier) in marginals
        }
        if shares:
            busy = {name: placed.busy(name, group.pool) for name in shares}
            filled.setdefault(group.pool, []).extend(_wrap_around(shares, busy, group.count))
    if placed.uneven:
        for pool, workers in filled.items():
            held = {name for worker in workers for name in worker}
            filled[pool] = balance_loads(workers, {name: placed.busy(name, pool) for name in held})
    return [
        (PlannedWorker(f"{pool.name}-{i}", pool.name, pool.tier, pool.price_usd_per_h, pool.sharing, {}, 0.0), shares)
        for pool in problem.pools
        for i, shares in enumerate(filled.get(pool.name, ()), 1)
    ]


def _wrap_around(shares: Mapping[str, float], busy: Mapping[str, float], count: int) -> list[dict[str, float]]:
    """Lay operators end to end and cut them into `count` workers of equal load; per worker, operator -> share.

    `shares`: operator -> fraction of its requests; `busy`: workers kept busy by all requests of an operator.
    """
    loads = {name: share * busy[name] for name, share in shares.items()}  # 0 for an operator that takes no time
    total = sum(loads.values())
    filled: list[dict[str, float]] = [{}]
    room = total / count
    for name, load in loads.items():
        rest = load
        while rest > room + SLIVER * total and len(filled) < count:
            if room > SLIVER * total:
                filled[-1][name] = room / busy[name]
                rest -= room
            filled.append({})
            room = total / count
        filled[-1][name] = rest / busy[name] if busy[name] > 0 else shares[name]
        room -= rest
    return filled


def _routes(
    names: Sequence[str], pieces: list[Piece], seats: Mapping[str, Sequence[tuple[PlannedWorker, float]]]
) -> Iterator[Route]:
    """Routes of one workflow: pieces cut further by workers; equal ones are merged, and weights scaled to sum to 1.

    `seats`: operator -> its workers, each with the fraction of its requests there.
    """
    for name in names:
        parts: dict[Hashable, list[tuple[str, float]]] = {}
        for worker, share in seats.get(name, ()):
            parts.setdefault(worker.tier, []).append((worker.name, share))
        cut = _cut(pieces, lambda marks, name=name: marks[name], parts)  # type: ignore[misc]
        pieces = [(weight, {**marks, name: at}) for weight, marks, at in cut]
    weights: dict[tuple[str, ...], float] = {}
    for weight, marks in pieces:
        key = tuple(marks[name] for name in names)
        weights[key] = weights.get(key, 0.0) + weight
    kept = {key: weight for key, weight in weights.items() if weight > NEGLIGIBLE}
    total = math.fsum(kept.values())
    for key, weight in kept.items():
        yield Route(weight / total, dict(zip(names, key, strict=True)))


def _operator(problem: Problem, operator: Operator, chosen: str, workers: Sequence[PlannedWorker]) -> PlannedOperator:
    """The operator with its variant, model, and batch sizes in the pools of its workers; no other figures."""
    variant = operator.variant(chosen)
    pools = dict.fromkeys(worker.pool for worker in workers)
    batch = {pool: max(problem.times(operator.name, variant, pool)) for pool in pools}
    delay_s, state = operator.batch_delay_s, operator.state
    return PlannedOperator(
        operator.name,
        operator.inputs,
        chosen,
        batch,
        0.0,
        {},
        {},
        {},
        variant.model,
        batch_delay_s=delay_s,
        state=state,
    )
