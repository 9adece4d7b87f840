"""Demand of a selection, complete or partial: the coefficients that bounds and assignments share.

Notation: operator o, pool p, tiers t and u, edge e. `workers[o][p]` is the number of workers of p that all requests of
o keep busy at the utilisation cap: rate x request_s / utilisation / sites of p's tier (a worker stands for one worker
in every site). `traffic[e][(t, u)]` is the USD per hour if all messages of e went from t to u; pairs between which
data cannot flow, or may not by residency, are left out. For a partial selection each coefficient is the minimum over
the variants and ratios of the operators still without a variant, so costs computed from it are lower bounds for every
completion.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from jellybean_solver.demand.memory import Memory, MemoryLimits, is_device_scarcer, limits_of, memory_of
from jellybean_solver.demand.tree_decomposition import Bag, tree_decomposition
from jellybean_solver.model.flows import traffic_usd_per_h
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.model.workflow import Edge, Variant, request_s

# In workers kept busy; smaller coefficients are raised to this. HiGHS' presolve drops coefficients close to its
# tolerance and then reports a more expensive solution as optimal (observed: 8e-8 at a tolerance of 1e-9).
LEAST_BUSY = 1e-6

T = TypeVar("T")
Tiers = tuple[str, str]
EdgeKey = tuple[str, str]  # upstream, downstream
Crossings = Mapping[EdgeKey, frozenset[Tiers]]


@dataclass(frozen=True, slots=True)
class Demand:
    """Coefficients of a selection; `workers` and `traffic` as in the module's docstring, with o, p, t, e as there.

    `entry[o][t]`: USD per hour of the traffic from sources to o if o runs in tier t. `sent[e]`: bytes per second on
    edge e. `memory[o][p]`: what o's model takes of a worker of p.
    """

    workers: Mapping[str, Mapping[str, float]]
    entry: Mapping[str, Mapping[str, float]]
    traffic: Mapping[EdgeKey, Mapping[Tiers, float]]
    sent: Mapping[EdgeKey, float]
    memory: Mapping[str, Mapping[str, Memory]]


def restricted(demand: Demand, pairs: Collection[tuple[str, str]]) -> Demand:
    """The demand without the (operator, pool) pairs that are not in `pairs`."""

    def kept(table: Mapping[str, Mapping[str, T]]) -> dict[str, Mapping[str, T]]:
        return {
            name: {pool: figure for pool, figure in figures.items() if (name, pool) in pairs}
            for name, figures in table.items()
        }

    return replace(demand, workers=kept(demand.workers), memory=kept(demand.memory))


class Network:
    """A problem with precomputed coefficients of all variants, from which `demand` builds that of a selection."""

    def __init__(
        self, problem: Problem, crossings: Crossings | None = None, apart: frozenset[frozenset[str]] = frozenset()
    ) -> None:
        """`crossings`: edge -> pairs of tiers between which its data may flow; None: all that the problem allows.

        `apart`: pairs of operators that must not share a worker.
        """
        self.problem, self.apart = problem, apart
        self.crossings = crossings or {}
        self.names = tuple(operator.name for operator in problem.operators)
        self.pools = tuple(pool for pool in problem.pools if pool.count > 0)
        self.tier_of = {pool.name: pool.tier for pool in self.pools}
        self.device_is_scarcer = {pool.name: is_device_scarcer(pool, problem.operators) for pool in self.pools}
        self.memory_limits: Mapping[str, MemoryLimits] = {
            pool.name: limits_of(pool, device_is_scarcer=self.device_is_scarcer[pool.name]) for pool in self.pools
        }
        # Price of one worker in every site.
        self.usd_per_h = {pool.name: problem.unit_usd_per_h(pool) for pool in self.pools}
        inner: dict[EdgeKey, tuple[Edge, ...]] = {}
        for edge in problem.edges:
            if edge.upstream in problem.operator_by_name:
                key = (edge.upstream, edge.downstream)
                inner[key] = (*inner.get(key, ()), edge)
        self.inner: Mapping[EdgeKey, tuple[Edge, ...]] = inner
        self._leasts: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._priced: dict[tuple[EdgeKey, float], Mapping[Tiers, float]] = {}
        self._settled: dict[tuple[str | None, ...], Network] = {}
        self.bandwidth: Mapping[Tiers, float] = {
            link.tiers: usable * problem.sites_of(link.upstream_tier)
            for link in problem.links
            if (usable := problem.usable_bytes_per_s(link)) is not None
        }

    @cached_property
    def bags(self) -> tuple[Bag, ...]:
        """The tree decomposition of the workflow."""
        return tree_decomposition(self.names, tuple(self.inner))

    @cached_property
    def homes(self) -> tuple[tuple[tuple[str, ...], tuple[EdgeKey, ...]], ...]:
        """Per bag, the operators and edges whose cost is counted there: each in the first bag that contains it."""
        seen: set[object] = set()
        found = []
        for bag in self.bags:
            names = tuple(name for name in bag.operators if name not in seen)
            edges = tuple(e for e in self.inner if e not in seen and e[0] in bag.operators and e[1] in bag.operators)
            seen.update(names, edges)
            found.append((names, edges))
        return tuple(found)

    @cached_property
    def runnable(self) -> Mapping[str, tuple[str, ...]]:
        """Operator -> variants that at least one pool can run."""
        return {
            operator.name: tuple(v.name for v in operator.variants if self._workers[operator.name, v.name])
            for operator in self.problem.operators
        }

    def settled(self, partial: Mapping[str, str]) -> Network:
        """The network with the fan-out ratios of the variants in `partial`; other operators keep the smallest ones."""
        key = tuple(partial.get(name) for name in self.problem.varying)
        if not any(key):
            return self
        if key not in self._settled:
            self._settled[key] = Network(settled(self.problem, partial), self.crossings, self.apart)
        return self._settled[key]

    def demand(self, partial: Mapping[str, str]) -> Demand:
        """The demand of a selection; for operators not in `partial`, the minimum over their variants."""
        return self.settled(partial)._demand(partial)

    def _demand(self, partial: Mapping[str, str]) -> Demand:
        sent = {key: self._bytes_per_s(key, partial.get(key[0])) for key in self.inner}
        return Demand(
            {name: self._of_pools(self._workers, name, partial, min) for name in self.names},
            self._entry,
            {key: self._traffic(key, per_s) for key, per_s in sent.items()},
            sent,
            {name: self._of_pools(self._memory, name, partial, Memory.least) for name in self.names},
        )

    def _of_pools(
        self,
        table: Mapping[tuple[str, str], Mapping[str, T]],
        name: str,
        partial: Mapping[str, str],
        least: Callable[[T, T], T],
    ) -> Mapping[str, T]:
        """Pool -> figure of an operator's variant, from a table by (operator, variant); of all variants the least."""
        if name in partial:
            return table[name, partial[name]]
        key = (name, id(table))
        if key not in self._leasts:
            found: dict[str, T] = {}
            for variant in self.runnable[name]:
                for pool, figure in table[name, variant].items():
                    found[pool] = least(figure, found.get(pool, figure))
            self._leasts[key] = found
        return self._leasts[key]

    def _bytes_per_s(self, key: EdgeKey, variant: str | None) -> float:
        """Bytes per second on an edge if the upstream has this variant; None: the least of all that can run."""
        sizes = self._sent[key]
        if variant is not None:
            return sizes[variant]
        return min((sizes[one] for one in self.runnable[key[0]]), default=0.0)

    def _traffic(self, key: EdgeKey, bytes_per_s: float) -> Mapping[Tiers, float]:
        """(Upstream tier, downstream tier) -> USD per hour of so much traffic on an edge."""
        if (key, bytes_per_s) not in self._priced:
            prices = self._prices[key].items()
            self._priced[key, bytes_per_s] = {tiers: traffic_usd_per_h(bytes_per_s, price) for tiers, price in prices}
        return self._priced[key, bytes_per_s]

    def entry_bytes_per_s(self, name: str, tier: str) -> Mapping[Tiers, float]:
        """Tiers of a link -> bytes per second from sources to the operator if it runs in `tier`."""
        found: dict[Tiers, float] = {}
        for edge in self.problem.operator_by_name[name].inputs:
            source = self.problem.source_by_name.get(edge.upstream)
            if source is not None and source.tier != tier:
                sent = self.problem.edge_rate_per_s(edge) * source.message_bytes
                found[source.tier, tier] = found.get((source.tier, tier), 0.0) + sent
        return found

    @cached_property
    def _workers(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        rates, utilisation = self.problem.rate_per_s, self.problem.utilisation
        sites = {pool: self.problem.sites_of(tier) for pool, tier in self.tier_of.items()}

        def busy(name: str, variant: Variant, pool: str) -> float:
            load = rates[name] * self.request_s(name, variant, pool) / utilisation / sites[pool]
            return max(LEAST_BUSY, load) if load else 0.0

        return {
            (operator.name, variant.name): {
                pool: busy(operator.name, variant, pool) for pool in self._memory[operator.name, variant.name]
            }
            for operator in self.problem.operators
            for variant in operator.variants
        }

    @cached_property
    def _memory(self) -> Mapping[tuple[str, str], Mapping[str, Memory]]:
        """(operator, variant) -> pool -> what it takes, for pools of whose workers one can run the variant."""
        found: dict[tuple[str, str], dict[str, Memory]] = {}
        for operator in self.problem.operators:
            pools = [pool for pool in self.pools if operator.tiers is None or pool.tier in operator.tiers]
            for variant in operator.variants:
                needed = (
                    (pool.name, memory_of(variant, pool, device_is_scarcer=self.device_is_scarcer[pool.name]))
                    for pool in pools
                    if 1 in variant.service.get(pool.name, ())
                )
                found[operator.name, variant.name] = {
                    pool: memory for pool, memory in needed if memory.fits(self.memory_limits[pool])
                }
        return found

    def request_s(self, operator: str, variant: Variant, pool: str) -> float:
        """Seconds of a worker's time per request of a variant in a pool, at the batch size that plans use."""
        times = self.problem.times(operator, variant, pool)
        return request_s(times, max(times))

    @cached_property
    def _entry(self) -> Mapping[str, Mapping[str, float]]:
        entry: dict[str, Mapping[str, float]] = {}
        for operator in self.problem.operators:
            tables = [
                {
                    tier: traffic_usd_per_h(self.problem.edge_rate_per_s(edge) * source.message_bytes, price)
                    for (origin, tier), price in self._usd_per_gib([edge]).items()
                    if origin == source.tier
                }
                for edge in operator.inputs
                if (source := self.problem.source_by_name.get(edge.upstream)) is not None
            ]
            entry[operator.name] = {
                tier: sum(table[tier] for table in tables)
                for tier in self.problem.tiers
                if all(tier in table for table in tables)
            }
        return entry

    @cached_property
    def _sent(self) -> Mapping[EdgeKey, Mapping[str, float]]:
        """Edge -> variant of the upstream -> bytes per second; edges between the same two nodes are added up."""
        return {
            key: {
                variant.name: sum(self.problem.edge_rate_per_s(edge) for edge in edges) * variant.message_bytes[key[1]]
                for variant in self.problem.operator_by_name[key[0]].variants
            }
            for key, edges in self.inner.items()
        }

    @cached_property
    def _prices(self) -> Mapping[EdgeKey, Mapping[Tiers, float]]:
        return {key: self._usd_per_gib(edges) for key, edges in self.inner.items()}

    def _usd_per_gib(self, edges: Sequence[Edge]) -> dict[Tiers, float]:
        """(Upstream tier, downstream tier) -> price of traffic, where that of edges between the same nodes may flow."""
        found: dict[Tiers, float] = {}
        allowed = self.crossings.get((edges[0].upstream, edges[0].downstream))
        for up, down in itertools.product(self.problem.tiers, repeat=2):
            is_allowed = allowed is None or (up, down) in allowed
            if is_allowed and all(self.problem.may_cross(edge, up, down) for edge in edges):
                link = self.problem.link_by_tiers.get((up, down))
                found[up, down] = 0.0 if link is None else link.price_usd_per_gib
        return found
