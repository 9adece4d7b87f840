"""Ways: every selection of a block with every assignment of its operators to tiers, as columns of the program.

All requests of a way get the same variants in the same tiers, so rates, traffic and accuracy are linear in the share of
the block's requests that take each way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Demand, Network, Tiers
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.mixture.blocks import Block, stream_counts
from jellybean_solver.model.resources import used
from jellybean_solver.model.targets import LossKind
from jellybean_solver.outcome import ACCURACY_SLACK, Clock, Selection

MOST_WAYS = 60_000  # columns; HiGHS takes seconds for their relaxation

Instance = tuple[str, str]  # operator, variant


@dataclass(frozen=True, slots=True)
class Way:
    """A selection of a block and a tier for each of its operators, in the operators' order. `block`: its number.

    `usd_per_h`: traffic if all requests took this way; `sent`: bytes per second between each two tiers then. `rates`:
    requests per second of each operator then, in all sites. `accuracy`: of the selection, in percent. `uses`: what its
    traffic uses of limited resources then.
    """

    variants: tuple[str, ...]
    tiers: tuple[str, ...]
    accuracy: float
    usd_per_h: float
    sent: Mapping[Tiers, float]
    rates: tuple[float, ...]
    block: int
    uses: Mapping[str, float]

    def is_closed_by(self, kind: LossKind, of: tuple[str, ...]) -> bool:
        """True if requests cannot take this way after the loss of a tier or link; a worker's loss closes none."""
        return of[0] in self.tiers if kind is LossKind.SITE else kind is LossKind.LINK and of in self.sent


class TooManyWaysError(SolverError):
    """A problem has more ways than a program can have columns."""


def all_ways(network: Network, blocks: Sequence[Block], *, limit: Clock = Clock()) -> tuple[Way, ...]:
    """All ways that reach their block's least accuracy. TooManyWaysError for more than `MOST_WAYS`.

    Of blocks that mix selections only those whose accuracy is known; else it is 0 where it is not. OutOfTimeError at
    the `limit`.
    """
    found: list[Way] = []
    for number, block in enumerate(blocks):
        for selection, accuracy in _selections(network, block, limit):
            for way in _ways_of(network.settled(selection), block, number, selection, accuracy):
                found.append(way)
                if len(found) > MOST_WAYS:
                    raise TooManyWaysError(_too_many(network))
    return tuple(found)


def _too_many(network: Network) -> str:
    """The reason, with what leads to fewer ways."""
    use, without = "leave late workflows out of", "a worth"
    if network.problem.may_mix:
        use, without = "mix variants among", "a mean accuracy"
    elif network.problem.survives:
        use, without = "plan for losses with", "`survive`"
    elif limited := network.problem.most:
        use, without = "plan with", f"a limit of the {' and '.join(limited)}"
    return (
        f"more than {MOST_WAYS:,} selections and tiers are too many to {use}: plan without {without}, or with fewer "
        "variants, tiers or operators"
    )


def _selections(network: Network, block: Block, limit: Clock) -> Iterator[tuple[Selection, float]]:
    """Selections with their accuracy. Variants are chosen one by one, as long as the rest may reach the accuracy."""
    accuracy, names, least = block.accuracy, block.names, block.least
    measured = not block.single or least is not None

    def extended(chosen: dict[str, str]) -> Iterator[tuple[Selection, float]]:
        if limit.left() == 0.0:
            raise OutOfTimeError("time ended while the selections of variants were listed; allow more time")
        is_complete = len(chosen) == len(names)
        most = accuracy.value(chosen) if is_complete else accuracy.upper_bound(chosen) if measured else None
        if measured and (most is None or (least is not None and most < least - ACCURACY_SLACK)):
            return
        if is_complete:
            yield chosen, 0.0 if most is None else most
            return
        name = names[len(chosen)]
        for variant in network.runnable[name]:
            yield from extended({**chosen, name: variant})

    return extended({})


def _ways_of(network: Network, block: Block, number: int, selection: Selection, accuracy: float) -> Iterator[Way]:
    demand, variants = network.demand(selection), tuple(selection[name] for name in block.names)
    rates = tuple(network.problem.rate_per_s[name] for name in block.names)
    for tiers in _tiers(network, block.names, demand):
        at = dict(zip(block.names, tiers, strict=True))
        usd = sum(demand.entry[name][tier] for name, tier in at.items())
        usd += sum(demand.traffic[up, down][at[up], at[down]] for up, down in network.inner if down in at)
        sent = _sent(network, demand, at)
        uses = used(network.problem, (), sent) if network.problem.most else {}
        yield Way(variants, tiers, accuracy, usd, sent, rates, number, uses)


def _tiers(network: Network, names: Sequence[str], demand: Demand) -> Iterator[tuple[str, ...]]:
    """The tiers in which the operators may run, in the operators' order, so that all data can flow."""
    own = {name: dict.fromkeys(network.tier_of[pool] for pool in demand.workers[name]) for name in names}
    above = {name: [up for up, down in network.inner if down == name] for name in names}

    def extended(chosen: dict[str, str], index: int) -> Iterator[tuple[str, ...]]:
        if index == len(names):
            yield tuple(chosen.values())
            return
        name = names[index]
        for tier in own[name]:
            flows = tier in demand.entry[name] and all(
                (chosen[up], tier) in demand.traffic[up, name] for up in above[name]
            )
            if flows:
                yield from extended({**chosen, name: tier}, index + 1)

    return extended({}, 0)


def _sent(network: Network, demand: Demand, at: Mapping[str, str]) -> Mapping[Tiers, float]:
    """Bytes per second between each two tiers, also where messages are empty."""
    found: dict[Tiers, float] = {}
    inner = (((at[up], at[down]), demand.sent[up, down]) for up, down in network.inner if down in at)
    entries = (item for name in at for item in network.entry_bytes_per_s(name, at[name]).items())
    for link, sent in itertools.chain(inner, entries):
        if link[0] != link[1]:
            found[link] = found.get(link, 0.0) + sent
    return found


@dataclass(frozen=True)
class WayTable:
    """The ways of a network with the coefficients that no mode changes. `blocks`: to which the ways belong.

    `most`: operator -> the largest of its rates on all ways, 1 for one without requests. `busy`: (instance, pool) ->
    workers kept busy at the utilisation cap by that rate. `streams`: operator -> the number of streams that its
    requests come in, of those that keep to one route; `rates`: of each operator on any way.
    """

    network: Network
    blocks: tuple[Block, ...]
    ways: tuple[Way, ...]
    most: Mapping[str, float]
    busy: Mapping[tuple[Instance, str], float]
    streams: Mapping[str, int]
    rates: Mapping[str, frozenset[float]]

    @classmethod
    def of(cls, network: Network, blocks: tuple[Block, ...], ways: tuple[Way, ...]) -> WayTable:
        """The table of these ways."""
        rates: dict[str, set[float]] = {name: set() for name in network.names}
        for way in ways:
            for name, rate in zip(blocks[way.block].names, way.rates, strict=True):
                rates[name].add(rate)
        most = {name: max(own, default=0.0) or 1.0 for name, own in rates.items()}
        all_rates = {name: frozenset(own) for name, own in rates.items()}
        table = cls(network, blocks, ways, most, {}, stream_counts(blocks), all_rates)
        busy: dict[tuple[Instance, str], float] = {}
        for way in {(way.block, way.variants): way for way in ways}.values():
            demand = network.demand(dict(table.instances(way)))
            for instance, _, rate in table.placed(way):
                for pool, workers in demand.workers[instance[0]].items():
                    if rate > 0 or (instance, pool) not in busy:
                        busy[instance, pool] = workers * most[instance[0]] / rate if rate > 0 else 0.0
        return replace(table, busy=busy)

    def has_streams_of_unlike_rates(self, operator: str) -> bool:
        """True if whole streams of an operator bring more requests on some ways than on others, or none."""
        return operator in self.streams and self.rates[operator] != {self.most[operator]}

    def instances(self, way: Way) -> Iterator[Instance]:
        """The (operator, variant) pairs of a way."""
        return zip(self.blocks[way.block].names, way.variants, strict=True)

    def placed(self, way: Way) -> Iterator[tuple[Instance, str, float]]:
        """The pairs of a way, each with its tier and rate if all requests of the block took this way."""
        return zip(self.instances(way), way.tiers, way.rates, strict=True)

    def using(self, instances: set[Instance]) -> WayTable:
        """The table of the ways that use no other instances."""
        kept = tuple(way for way in self.ways if instances.issuperset(self.instances(way)))
        busy = {key: workers for key, workers in self.busy.items() if key[0] in instances}
        return replace(self, ways=kept, busy=busy)
