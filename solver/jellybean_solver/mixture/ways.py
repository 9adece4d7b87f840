"""Ways: every selection with every assignment of its operators to tiers, as columns of the program.

All requests of a way get the same variants in the same tiers, so rates, traffic and accuracy are linear in the share of
requests that take each way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Demand, Network, Tiers
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.model.targets import LossKind
from jellybean_solver.outcome import ACCURACY_SLACK, Clock, Selection

MOST_WAYS = 60_000  # columns; HiGHS takes seconds for their relaxation

Instance = tuple[str, str]  # operator, variant


@dataclass(frozen=True, slots=True)
class Way:
    """A selection and a tier for each of its operators, in the operators' order.

    `usd_per_h`: traffic if all requests took this way; `sent`: bytes per second on each limited link then. `rates`:
    requests per second of each operator then, in all sites. `accuracy`: of the selection, in percent. `crosses`: the
    tiers between which its data flows.
    """

    variants: tuple[str, ...]
    tiers: tuple[str, ...]
    accuracy: float
    usd_per_h: float
    sent: Mapping[Tiers, float]
    rates: tuple[float, ...]
    crosses: frozenset[Tiers] = frozenset()

    def is_closed_by(self, kind: LossKind, of: tuple[str, ...]) -> bool:
        """True if requests cannot take this way after the loss of a tier or link; a worker's loss closes none."""
        return of[0] in self.tiers if kind is LossKind.SITE else kind is LossKind.LINK and of in self.crosses


class TooManyWaysError(SolverError):
    """A problem has more ways than a program can have columns."""


def all_ways(
    network: Network, least: float | None, *, measured: bool = True, limit: Clock = Clock()
) -> tuple[Way, ...]:
    """All ways whose accuracy is at least `least` percent. TooManyWaysError for more than `MOST_WAYS`.

    `measured`: only those whose accuracy is known; else it is 0 where it is not. OutOfTimeError at the `limit`.
    """
    found: list[Way] = []
    for selection, accuracy in _selections(network, least, measured or least is not None, limit):
        for way in _ways_of(network.settled(selection), selection, accuracy):
            found.append(way)
            if len(found) > MOST_WAYS:
                raise TooManyWaysError(_too_many(network))
    return tuple(found)


def _too_many(network: Network) -> str:
    """The reason, with what leads to fewer ways."""
    mixes = network.problem.may_mix
    use, without = ("mix variants among", "a mean accuracy") if mixes else ("plan for losses with", "`survive`")
    return (
        f"more than {MOST_WAYS:,} selections and tiers are too many to {use}: plan without {without}, or with fewer "
        "variants, tiers or operators"
    )


def _selections(
    network: Network, least: float | None, measured: bool, limit: Clock
) -> Iterator[tuple[Selection, float]]:
    """Selections with their accuracy. Variants are chosen one by one, as long as the rest may reach the accuracy."""
    accuracy, names = network.problem.accuracy, network.names

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


def _ways_of(network: Network, selection: Selection, accuracy: float) -> Iterator[Way]:
    demand, variants = network.demand(selection), tuple(selection[name] for name in network.names)
    rates = tuple(network.problem.rate_per_s[name] for name in network.names)
    for tiers in _tiers(network, demand):
        at = dict(zip(network.names, tiers, strict=True))
        usd = sum(demand.entry[name][tier] for name, tier in at.items())
        usd += sum(demand.traffic[up, down][at[up], at[down]] for up, down in network.inner)
        yield Way(variants, tiers, accuracy, usd, _sent(network, demand, at), rates, _crosses(network, at))


def _tiers(network: Network, demand: Demand) -> Iterator[tuple[str, ...]]:
    """The tiers in which the operators may run, in the operators' order, so that all data can flow."""
    own = {name: dict.fromkeys(network.tier_of[pool] for pool in demand.workers[name]) for name in network.names}
    above = {name: [up for up, down in network.inner if down == name] for name in network.names}

    def extended(chosen: dict[str, str], index: int) -> Iterator[tuple[str, ...]]:
        if index == len(network.names):
            yield tuple(chosen.values())
            return
        name = network.names[index]
        for tier in own[name]:
            flows = tier in demand.entry[name] and all(
                (chosen[up], tier) in demand.traffic[up, name] for up in above[name]
            )
            if flows:
                yield from extended({**chosen, name: tier}, index + 1)

    return extended({}, 0)


def _crosses(network: Network, at: Mapping[str, str]) -> frozenset[Tiers]:
    start = {source.name: source.tier for source in network.problem.sources} | dict(at)
    pairs = {(start[edge.upstream], at[edge.downstream]) for edge in network.problem.edges}
    return frozenset(pair for pair in pairs if pair[0] != pair[1])


def _sent(network: Network, demand: Demand, at: Mapping[str, str]) -> Mapping[Tiers, float]:
    """Bytes per second on each link of limited bandwidth."""
    found: dict[Tiers, float] = {}
    inner = (((at[up], at[down]), demand.sent[up, down]) for up, down in network.inner)
    entries = (item for name in network.names for item in network.entry_bytes_per_s(name, at[name]).items())
    for link, sent in itertools.chain(inner, entries):
        if link in network.bandwidth and sent > 0:
            found[link] = found.get(link, 0.0) + sent
    return found


def instances_of(way: Way, names: tuple[str, ...]) -> Iterator[tuple[Instance, str, float]]:
    """The (operator, variant) pairs of a way, each with its tier and rate if all requests took this way."""
    for name, variant, tier, rate in zip(names, way.variants, way.tiers, way.rates, strict=True):
        yield (name, variant), tier, rate


@dataclass(frozen=True)
class WayTable:
    """The ways of a network with the coefficients that no mode changes.

    `most`: operator -> the largest of its rates on all ways, 1 for one without requests. `busy`: (instance, pool) ->
    workers kept busy at the utilisation cap by that rate.
    """

    network: Network
    ways: tuple[Way, ...]
    most: Mapping[str, float]
    busy: Mapping[tuple[Instance, str], float]

    @classmethod
    def of(cls, network: Network, ways: tuple[Way, ...]) -> WayTable:
        """The table of these ways."""
        most = {
            name: max((way.rates[index] for way in ways), default=0.0) or 1.0
            for index, name in enumerate(network.names)
        }
        busy: dict[tuple[Instance, str], float] = {}
        for way in {way.variants: way for way in ways}.values():
            demand = network.demand(dict(zip(network.names, way.variants, strict=True)))
            for instance, _, rate in instances_of(way, network.names):
                for pool, workers in demand.workers[instance[0]].items():
                    if rate > 0 or (instance, pool) not in busy:
                        busy[instance, pool] = workers * most[instance[0]] / rate if rate > 0 else 0.0
        return cls(network, ways, most, busy)

    def using(self, instances: set[Instance]) -> WayTable:
        """The table of the ways that use no other instances."""
        names = self.network.names
        kept = tuple(way for way in self.ways if instances.issuperset(zip(names, way.variants, strict=True)))
        busy = {key: workers for key, workers in self.busy.items() if key[0] in instances}
        return replace(self, ways=kept, busy=busy)
