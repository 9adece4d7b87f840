"""What a selection, whole or partial, asks of the fleet: the figures that bounds and assignments share.

Notation. For operator o, pool p, tier t: `workers[o][p]` is the number of p's workers that all of o's requests would
keep busy up to the cap on utilisation (rate x load / utilisation); `traffic[e][(t, u)]` the USD per hour if all
of edge e's messages went from t to u, left out where data cannot flow. A partial selection takes the least over the
open operators' variants, figure by figure, so that whatever is computed from it bounds every completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from jellybean_solver.bags import Bag, tree_of_bags
from jellybean_solver.flows import traffic_usd_per_h
from jellybean_solver.problem import Edge, Problem

BATCH = 1  # plans of this version serve one request at a time

Tiers = tuple[str, str]
EdgeKey = tuple[str, str]  # upstream, downstream


@dataclass(frozen=True, slots=True)
class Demand:
    """See the module's notation. `entry[o][t]`: USD per hour of o's inputs from sources if o sits in tier t."""

    workers: Mapping[str, Mapping[str, float]]
    entry: Mapping[str, Mapping[str, float]]
    traffic: Mapping[EdgeKey, Mapping[Tiers, float]]


class Network:
    """A problem made ready: everything that does not depend on the selection, computed once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.names = tuple(operator.name for operator in problem.operators)
        self.pools = tuple(pool for pool in problem.pools if pool.count > 0)
        self.tier_of = {pool.name: pool.tier for pool in self.pools}
        inner: dict[EdgeKey, tuple[Edge, ...]] = {}
        for edge in problem.edges:
            if edge.upstream in problem.operator_by_name:
                key = (edge.upstream, edge.downstream)
                inner[key] = (*inner.get(key, ()), edge)
        self.inner: Mapping[EdgeKey, tuple[Edge, ...]] = inner
        self._flows = {(up, down): problem.can_flow(up, down) for up in problem.tiers for down in problem.tiers}

    @cached_property
    def bags(self) -> tuple[Bag, ...]:
        """The workflow's tree of bags."""
        return tree_of_bags(self.names, tuple(self.inner))

    @cached_property
    def homes(self) -> tuple[tuple[tuple[str, ...], tuple[EdgeKey, ...]], ...]:
        """Per bag the operators and edges that are counted there: each in the first bag that holds it."""
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
        """Operator -> variants that some pool can run, in the operator's order."""
        return {
            operator.name: tuple(v.name for v in operator.variants if self._workers[operator.name, v.name])
            for operator in self.problem.operators
        }

    def demand(self, partial: Mapping[str, str]) -> Demand:
        """The figures of a selection; open operators at their least."""
        workers: dict[str, Mapping[str, float]] = {}
        for name in self.names:
            if name in partial:
                workers[name] = self._workers[name, partial[name]]
            else:
                workers[name] = self._least_workers[name]
        traffic: dict[EdgeKey, Mapping[Tiers, float]] = {}
        for key in self.inner:
            upstream = key[0]
            table = self._traffic[key]
            traffic[key] = table[partial[upstream]] if upstream in partial else self._least_traffic[key]
        return Demand(workers, self._entry, traffic)

    @cached_property
    def _workers(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        rates, utilisation = self.problem.rate_per_s, self.problem.utilisation
        return {
            (operator.name, variant.name): {
                pool.name: rates[operator.name] * variant.service[pool.name][BATCH].load_s / BATCH / utilisation
                for pool in self.pools
                if BATCH in variant.service.get(pool.name, ())
            }
            for operator in self.problem.operators
            for variant in operator.variants
        }

    @cached_property
    def _least_workers(self) -> Mapping[str, Mapping[str, float]]:
        least: dict[str, Mapping[str, float]] = {}
        for name in self.names:
            tables = [self._workers[name, variant] for variant in self.runnable[name]]
            found: dict[str, float] = {}
            for table in tables:
                for pool, workers in table.items():
                    found[pool] = min(workers, found.get(pool, workers))
            least[name] = found
        return least

    @cached_property
    def _entry(self) -> Mapping[str, Mapping[str, float]]:
        entry: dict[str, Mapping[str, float]] = {}
        for operator in self.problem.operators:
            edges = [edge for edge in operator.inputs if edge.upstream in self.problem.source_by_name]
            tables = [self._prices(edge, self.problem.source_by_name[edge.upstream].message_bytes) for edge in edges]
            tiers = [self.problem.source_by_name[edge.upstream].tier for edge in edges]
            entry[operator.name] = {
                tier: sum(table[source, tier] for table, source in zip(tables, tiers, strict=True))
                for tier in self.problem.tiers
                if all(self._flows[source, tier] for source in tiers)
            }
        return entry

    @cached_property
    def _traffic(self) -> Mapping[EdgeKey, Mapping[str, Mapping[Tiers, float]]]:
        return {
            key: {
                variant.name: self._prices(edges[0], len(edges) * variant.message_bytes[key[1]])
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

    def _prices(self, edge: Edge, message_bytes: float) -> dict[Tiers, float]:
        """USD per hour of all of an edge's messages per pair of tiers between which data can flow."""
        bytes_per_s = self.problem.edge_rate_per_s(edge) * message_bytes
        return {
            tiers: 0.0
            if tiers[0] == tiers[1]
            else traffic_usd_per_h(bytes_per_s, self.problem.link_by_tiers[tiers].price_usd_per_gib)
            for tiers, flows in self._flows.items()
            if flows
        }
