"""Workflows of equal shape as arrays, so that bounds are computed for all of them at once.

Workflows have equal shapes if they differ only in figures: rates, times, sizes, prices, workers. So do the copies of
one workflow in unlike sites. Axes of the arrays: part k, operator o, variant v, tier t, own pool i, common pool p, edge
e, limited link l. Own pools and links are padded to the largest number of any part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.demand.demand import Demand, Network, Tiers
from jellybean_solver.demand.memory import Memory, memory_of, together
from jellybean_solver.fleet.worker_classes import LEAST_BYTES
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.accuracy import Independent
from jellybean_solver.model.problem import Pool, Problem, Sharing
from jellybean_solver.outcome import ACCURACY_SLACK

MOST_WAYS = 1_000  # ways to place operators in tiers: with more, workflows are solved one by one
Shape = tuple[object, ...]


def shape_of(problem: Problem, split: Split) -> Shape | None:
    """What parts of equal shape have in common; None if the part has to be solved by itself.

    That is where accuracy is no product, fan-outs depend on variants, or workers are exclusive.
    """
    model = problem.accuracy
    is_product = problem.accuracy_target is None or (isinstance(model, Independent) and bool(model.table))
    if not is_product or problem.varying or any(pool.sharing is Sharing.EXCLUSIVE for pool in problem.pools):
        return None
    nodes = {source.name: -1 - number for number, source in enumerate(problem.sources)}
    nodes |= problem.position
    tiers = problem.tier_index
    return (
        tuple(
            (
                tuple(variant.name for variant in operator.variants),
                tuple((nodes[edge.upstream], _tiers(problem, edge.tiers)) for edge in operator.inputs),
                _tiers(problem, operator.tiers),
            )
            for operator in problem.operators
        ),
        tuple(tiers[source.tier] for source in problem.sources),
        len(problem.tiers),
        frozenset((tiers[link.upstream_tier], tiers[link.downstream_tier]) for link in problem.links),
        tuple(sorted({tiers[pool.tier] for pool in problem.pools if pool.name in split.common})),
    )


def _tiers(problem: Problem, names: Sequence[str] | None) -> tuple[int, ...] | None:
    return None if names is None else tuple(sorted(problem.tier_index[n] for n in names if n in problem.tier_index))


@dataclass(frozen=True)
class AlikeParts:
    """Parts of equal shape. All figures are those of a part's whole rate; inf where something is impossible.

    `ways`: row w has a tier for each operator. `edges`: (upstream operator, downstream operator), edges between the
    same two together. `links`: pairs of tiers with limited bandwidth, of which no other part uses the same link.
    """

    numbers: tuple[int, ...]
    variants: tuple[tuple[str, ...], ...]  # per operator
    ways: Indices
    edges: tuple[tuple[int, int], ...]
    links: tuple[tuple[int, int], ...]
    slots: tuple[tuple[str, ...], ...]  # k, i: name of the own pool; empty where the part has fewer
    slot_tier: Indices  # i -> tier
    roomy: npt.NDArray[np.bool_]  # k: one worker of any own pool holds a model of each operator
    price: Floats  # k, i: USD per hour of a worker
    count: Floats  # k, i: workers
    time: Floats  # k, o, v, i: workers kept busy
    memory: Floats  # k, o, v, i: workers whose memory is filled
    rented_tier: Indices  # p -> tier; common pools in the order of the split
    rented: Indices  # p -> index among the split's shared pools
    rented_time: Floats  # k, o, v, p
    rented_memory: Floats  # k, o, v, p
    entry: Floats  # k, o, t: USD per hour of the traffic from sources
    traffic: Floats  # k, e, v of the upstream, t, t: USD per hour
    entry_share: Floats  # k, l, o: share of the link's bandwidth, if the operator is at its end
    share: Floats  # k, l, e, v
    common_links: tuple[tuple[int, int, int], ...]  # (link among `links`, part k, index among the split's links)
    loss: Floats  # k, o, v: of accuracy, in units of `most_loss`
    most_loss: Floats  # k: 1, or inf without a target

    def rent(self, prices: Prices) -> Floats:
        """k, o, v, t: USD per hour on the cheapest common pool of each tier."""
        shape = (*self.rented_time.shape[:3], self.entry.shape[2])
        found = np.full(shape, math.inf)
        time, memory = prices.time[self.rented], prices.memory[self.rented]
        with np.errstate(invalid="ignore"):
            cost = np.where(
                np.isfinite(self.rented_time), time * self.rented_time + memory * self.rented_memory, math.inf
            )
        for tier in np.unique(self.rented_tier).tolist():
            found[..., tier] = cost[..., self.rented_tier == tier].min(axis=-1)
        return found


def alike_parts(split: Split, numbers: Sequence[int], most: int) -> tuple[list[AlikeParts], list[int]]:
    """Groups of at most `most` of these parts, of equal shapes; and the numbers of those to be solved one by one."""
    groups: dict[Shape, list[int]] = {}
    alone: list[int] = []
    for number in numbers:
        shape = shape_of(split.parts[number], split)
        if shape is None:
            alone.append(number)
        else:
            groups.setdefault(shape, []).append(number)
    found = []
    for alike in groups.values():
        ways = _ways(split.parts[alike[0]]) if len(alike) > 1 else None
        if ways is None:
            alone += alike
        else:
            groups_of = math.ceil(len(alike) / most)
            found += [_arrays(split, alike[start::groups_of], ways) for start in range(groups_of)]
    return found, sorted(alone)


def _ways(problem: Problem) -> Indices | None:
    """All ways to place the operators in tiers along which data can flow; None if there are too many."""
    found: list[tuple[int, ...]] = [()]
    place = problem.position
    for operator in problem.operators:
        allowed = [t for t, tier in enumerate(problem.tiers) if operator.tiers is None or tier in operator.tiers]
        longer = []
        for start, tier in itertools.product(found, allowed):
            ends = (
                problem.source_by_name[edge.upstream].tier
                if edge.upstream in problem.source_by_name
                else problem.tiers[start[place[edge.upstream]]]
                for edge in operator.inputs
            )
            if all(
                problem.may_cross(edge, end, problem.tiers[tier])
                for edge, end in zip(operator.inputs, ends, strict=True)
            ):
                longer.append((*start, tier))
        found = longer
        if len(found) > MOST_WAYS:
            return None
    return np.array(found, np.int64).reshape(len(found), len(problem.operators))


class _Filling:
    """Fills the arrays of a group, part by part."""

    def __init__(self, split: Split, numbers: Sequence[int]) -> None:
        first = split.parts[numbers[0]]
        parts = [split.parts[number] for number in numbers]
        self.split, self.numbers = split, numbers
        self.tiers = len(first.tiers)
        place = first.position
        self.edges = tuple(
            dict.fromkeys(
                (place[edge.upstream], place[edge.downstream]) for edge in first.edges if edge.upstream in place
            )
        )
        common = [(number, pool) for number, pool in enumerate(split.shared)]
        self.slots = self._slots(parts)
        self.links = tuple(dict.fromkeys(ends for part in parts for ends in _limited(part)))
        users = {pool.name for part in parts for pool in part.pools}
        self.common = [(number, pool) for number, pool in common if pool.name in users]
        k, o, v = len(parts), len(first.operators), max(len(operator.variants) for operator in first.operators)
        i, e, m = len(self.slots), len(self.edges), len(self.links)
        self.names: list[tuple[str, ...]] = []  # per part
        self.roomy = np.ones(k, bool)
        self.price, self.count = np.zeros((k, i)), np.zeros((k, i))
        self.time, self.memory = np.full((k, o, v, i), math.inf), np.zeros((k, o, v, i))
        self.rented_time = np.full((k, o, v, len(self.common)), math.inf)
        self.rented_memory = np.zeros((k, o, v, len(self.common)))
        self.entry = np.full((k, o, self.tiers), math.inf)
        self.traffic = np.full((k, e, v, self.tiers, self.tiers), math.inf)
        self.entry_share, self.share = np.zeros((k, m, o)), np.zeros((k, m, e, v))
        self.loss, self.most_loss = np.zeros((k, o, v)), np.full(k, math.inf)
        self.common_links: list[tuple[int, int, int]] = []

    def _slots(self, parts: Sequence[Problem]) -> tuple[int, ...]:
        """Tiers of own pools: as many per tier as any part has."""
        most: dict[int, int] = {}
        for part in parts:
            for tier, own in _own_pools(part, self.split).items():
                most[tier] = max(most.get(tier, 0), len(own))
        return tuple(tier for tier in sorted(most) for _ in range(most[tier]))

    def fill(self, k: int, part: Problem) -> None:
        """Fill in the figures of part k."""
        network = Network(part)
        waiting = {tier: iter(own) for tier, own in _own_pools(part, self.split).items()}
        pools = [next(waiting.get(tier, iter(())), None) for tier in self.slots]
        for i, pool in enumerate(pools):
            if pool is not None:
                self.price[k, i], self.count[k, i] = network.usd_per_h[pool.name], pool.count
        self.names.append(tuple("" if pool is None else pool.name for pool in pools))
        self.roomy[k] = all(pool is None or _is_roomy(network, pool) for pool in pools)
        for v in range(self.loss.shape[2]):
            own = {o.name: o.variants[v].name for o in part.operators if v < len(o.variants)}
            demand = network.demand(own)
            for o in (o for o, name in enumerate(network.names) if name in own):
                self._runs(k, o, v, network, demand, pools)
            for e in (e for e, (up, _) in enumerate(self.edges) if network.names[up] in own):
                self._sent(k, e, v, part, network, demand)
        for o in range(len(network.names)):
            self._enters(k, o, part, network)
        self._accuracy(k, part)
        self.common_links += [
            (link, k, self.split.links.index(ends))
            for link, ends in enumerate(self._ends(part))
            if ends in self.split.links
        ]

    def _ends(self, part: Problem) -> list[Tiers]:
        """The limited links, as tiers of the part."""
        return [(part.tiers[below], part.tiers[above]) for below, above in self.links]

    def _runs(self, k: int, o: int, v: int, network: Network, demand: Demand, pools: Sequence[Pool | None]) -> None:
        """What an operator's variant takes of own pools and of common ones."""
        busy, held = demand.workers[network.names[o]], demand.memory[network.names[o]]
        for i, pool in enumerate(pools):
            if pool is not None and pool.name in busy:
                self.time[k, o, v, i] = busy[pool.name]
                self.memory[k, o, v, i] = _stored(network, pool, busy[pool.name], held[pool.name])
        for p, (_, pool) in enumerate(self.common):
            if pool.name in busy:
                self.rented_time[k, o, v, p] = busy[pool.name]
                self.rented_memory[k, o, v, p] = _stored(network, pool, busy[pool.name], held[pool.name])

    def _sent(self, k: int, e: int, v: int, part: Problem, network: Network, demand: Demand) -> None:
        """The traffic of an edge, if its upstream has the variant."""
        key = network.names[self.edges[e][0]], network.names[self.edges[e][1]]
        for (there, here), usd in demand.traffic[key].items():
            self.traffic[k, e, v, part.tier_index[there], part.tier_index[here]] = usd
        for link, ends in enumerate(self._ends(part)):
            if ends in network.bandwidth:
                self.share[k, link, e, v] = demand.sent[key] / network.bandwidth[ends]

    def _enters(self, k: int, o: int, part: Problem, network: Network) -> None:
        """The traffic from sources to an operator."""
        for tier, usd in network.demand({}).entry[network.names[o]].items():
            self.entry[k, o, part.tier_index[tier]] = usd
        for link, ends in enumerate(self._ends(part)):
            sent = network.entry_bytes_per_s(network.names[o], ends[1]).get(ends, 0.0)
            if sent and ends in network.bandwidth:
                self.entry_share[k, link, o] = sent / network.bandwidth[ends]

    def _accuracy(self, k: int, part: Problem) -> None:
        model, target = part.accuracy, part.accuracy_target
        if target is None or not isinstance(model, Independent):
            return
        least = target - ACCURACY_SLACK
        allowed = -math.log(least / 100.0) if least > 0 else math.inf
        if not math.isfinite(allowed):
            return
        for o, operator in enumerate(part.operators):
            table: Mapping[str, float] = model.table.get(operator.name, {})
            for v, variant in enumerate(operator.variants):
                percent = table.get(variant.name, 100.0 if operator.name not in model.table else 0.0)
                if percent > 0:
                    self.loss[k, o, v] = -math.log(percent / 100.0)
                else:
                    self.time[k, o, v], self.rented_time[k, o, v] = math.inf, math.inf
        scale = max(allowed, 1e-6)
        self.loss[k] /= scale
        self.most_loss[k] = allowed / scale


def _is_roomy(network: Network, pool: Pool) -> bool:
    """True if a worker holds the largest variants of all operators together."""
    limits = network.memory_limits[pool.name]
    if limits.scarcer is None and limits.other is None:
        return True
    scarcer = network.device_is_scarcer[pool.name]
    kept = [
        [memory_of(variant, pool, device_is_scarcer=scarcer) for variant in operator.variants]
        for operator in network.problem.operators
    ]
    most = (Memory(max(one.scarcer for one in own), max(one.other for one in own)) for own in kept)
    return together(most).fits(limits)


def _stored(network: Network, pool: Pool, busy: float, held: float) -> float:
    limit = network.memory_limits[pool.name].scarcer
    return 0.0 if limit is None else max(busy, 1.0) * held / max(limit, LEAST_BYTES)


def _limited(part: Problem) -> Iterator[tuple[int, int]]:
    for link in part.links:
        if link.bandwidth_bytes_per_s is not None:
            yield part.tier_index[link.upstream_tier], part.tier_index[link.downstream_tier]


def _own_pools(part: Problem, split: Split) -> dict[int, list[Pool]]:
    found: dict[int, list[Pool]] = {}
    common = split.common
    for pool in part.pools:
        if pool.name not in common:
            found.setdefault(part.tier_index[pool.tier], []).append(pool)
    return found


def _arrays(split: Split, numbers: Sequence[int], ways: Indices) -> AlikeParts:
    filling = _Filling(split, numbers)
    for k, number in enumerate(numbers):
        filling.fill(k, split.parts[number])
    first = split.parts[numbers[0]]
    tier_of = {
        pool.name: part.tier_index[pool.tier] for part in (split.parts[n] for n in numbers) for pool in part.pools
    }
    return AlikeParts(
        tuple(numbers),
        tuple(tuple(variant.name for variant in operator.variants) for operator in first.operators),
        ways,
        filling.edges,
        filling.links,
        tuple(filling.names),
        np.array(filling.slots, np.int64),
        filling.roomy,
        filling.price,
        filling.count,
        filling.time,
        filling.memory,
        np.array([tier_of[pool.name] for _, pool in filling.common], np.int64),
        np.array([number for number, _ in filling.common], np.int64),
        filling.rented_time,
        filling.rented_memory,
        filling.entry,
        filling.traffic,
        filling.entry_share,
        filling.share,
        tuple(filling.common_links),
        filling.loss,
        filling.most_loss,
    )
