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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jellybean_solver.demand.memory import Memory, MemoryLimits, is_device_scarcer, limits_of, memory_of
from jellybean_solver.demand.tree_decomposition import Bag, tree_decomposition
from jellybean_solver.model.flows import traffic_usd_per_h
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.model.workflow import Edge, Variant, request_s

# In workers kept busy; smaller coefficients are raised to this. HiGHS' presolve drops coefficients close to its
# tolerance and then reports a more expensive solution as optimal (observed: 8e-8 at a tolerance of 1e-9).
LEAST_BUSY = 1e-6

Tiers = tuple[str, str]
EdgeKey = tuple[str, str]  # upstream, downstream
Crossings = Mapping[EdgeKey, frozenset[Tiers]]


@dataclass(frozen=True, slots=True)
class Demand:
    """Coefficients of a selection; `workers` and `traffic` as in the module's docstring, with o, p, t, e as there.

    `entry[o][t]`: USD per hour of the traffic from sources to o if o runs in tier t. `sent[e]`: bytes per second on
    edge e. `memory[o][p]`: bytes of o's model in the scarcer memory of a worker of p; `other_memory[o][p]`: in the
    other (memory.py).
    """

    workers: Mapping[str, Mapping[str, float]]
    entry: Mapping[str, Mapping[str, float]]
    traffic: Mapping[EdgeKey, Mapping[Tiers, float]]
    sent: Mapping[EdgeKey, float]
    memory: Mapping[str, Mapping[str, float]]
    other_memory: Mapping[str, Mapping[str, float]]

    def memory_of(self, name: str, pool: str) -> Memory:
        """What an operator's model takes of a worker of a pool."""
        return Memory(self.memory[name][pool], self.other_memory[name][pool])


def restricted(demand: Demand, pairs: Collection[tuple[str, str]]) -> Demand:
    """The demand without the (operator, pool) pairs that are not in `pairs`."""

    def kept(table: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        return {
            name: {pool: figure for pool, figure in figures.items() if (name, pool) in pairs}
            for name, figures in table.items()
        }

    return replace(
        demand, workers=kept(demand.workers), memory=kept(demand.memory), other_memory=kept(demand.other_memory)
    )


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
        self._leasts: dict[tuple[str, int], Mapping[str, float]] = {}
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
        workers: dict[str, Mapping[str, float]] = {}
        memory: dict[str, Mapping[str, float]] = {}
        other: dict[str, Mapping[str, float]] = {}
        for name in self.names:
            own = (name, partial[name]) if name in partial else None
            workers[name] = self._workers[own] if own else self._least(name, self._workers)
            memory[name] = self._memory[own] if own else self._least(name, self._memory)
            other[name] = self._other_memory[own] if own else self._least(name, self._other_memory)
        traffic: dict[EdgeKey, Mapping[Tiers, float]] = {}
        sent: dict[EdgeKey, float] = {}
        for key in self.inner:
            upstream = key[0]
            table, sizes = self._traffic[key], self._sent[key]
            known = upstream in partial
            traffic[key] = table[partial[upstream]] if known else self._least_traffic[key]
            sent[key] = (
                sizes[partial[upstream]] if known else min((sizes[v] for v in self.runnable[upstream]), default=0.0)
            )
        return Demand(workers, self._entry, traffic, sent, memory, other)

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
    def _memories(self) -> Mapping[tuple[str, str], Mapping[str, Memory]]:
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

    @cached_property
    def _memory(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        return {key: {p: memory.scarcer for p, memory in by.items()} for key, by in self._memories.items()}

    @cached_property
    def _other_memory(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        return {key: {p: memory.other for p, memory in by.items()} for key, by in self._memories.items()}

    def request_s(self, operator: str, variant: Variant, pool: str) -> float:
        """Seconds of a worker's time per request of a variant in a pool, at the batch size that plans use."""
        times = self.problem.times(operator, variant, pool)
        return request_s(times, max(times))

    def _least(self, name: str, tables: Mapping[tuple[str, str], Mapping[str, float]]) -> Mapping[str, float]:
        """Pool -> minimum over the operator's variants, of a table by (operator, variant) and pool."""
        key = (name, id(tables))
        if key not in self._leasts:
            found: dict[str, float] = {}
            for variant in self.runnable[name]:
                for pool, figure in tables[name, variant].items():
                    found[pool] = min(figure, found.get(pool, figure))
            self._leasts[key] = found
        return self._leasts[key]

    @cached_property
    def _entry(self) -> Mapping[str, Mapping[str, float]]:
        entry: dict[str, Mapping[str, float]] = {}
        for operator in self.problem.operators:
            edges = [edge for edge in operator.inputs if edge.upstream in self.problem.source_by_name]
            sources = [self.problem.source_by_name[edge.upstream] for edge in edges]
            tables = [self._prices((edge,), s.message_bytes) for edge, s in zip(edges, sources, strict=True)]
            entry[operator.name] = {
                tier: sum(table[source.tier, tier] for table, source in zip(tables, sources, strict=True))
                for tier in self.problem.tiers
                if all((source.tier, tier) in table for table, source in zip(tables, sources, strict=True))
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
    def _traffic(self) -> Mapping[EdgeKey, Mapping[str, Mapping[Tiers, float]]]:
        return {
            key: {
                variant.name: self._prices(edges, variant.message_bytes[key[1]])
                for variant in self.problem.operator_by_name[key[0]].variants
            }
            for key, edges in self.inner.items()
        }

    @cached_property
    def _least_traffic(self) -> Mapping[EdgeKey, Mapping[Tiers, float]]:
        least: dict[EdgeKey, Mapping[Tiers, float]] = {}
        for key, tables in self._traffic.items():
            kept = [tables[variant] for variant in self.runnable[key[0]]]
            least[key] = {tiers: min(table[tiers] for table in kept) for tiers in (kept[0] if kept else ())}
        return least

    def _prices(self, edges: Sequence[Edge], message_bytes: float) -> dict[Tiers, float]:
        """(upstream tier, downstream tier) -> USD per hour of all messages of edges between the same two nodes."""
        bytes_per_s = sum(self.problem.edge_rate_per_s(edge) for edge in edges) * message_bytes
        found: dict[Tiers, float] = {}
        allowed = self.crossings.get((edges[0].upstream, edges[0].downstream))
        for up, down in itertools.product(self.problem.tiers, repeat=2):
            if allowed is not None and (up, down) not in allowed:
                continue
            if all(self.problem.may_cross(edge, up, down) for edge in edges):
                link = self.problem.link_by_tiers.get((up, down)) if up != down else None
                price = link.price_usd_per_gib if link is not None else 0.0
                found[up, down] = traffic_usd_per_h(bytes_per_s, price)
        return found
