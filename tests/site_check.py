"""Is a plan with sites possible? Worker by worker and link by link, in every site, sharing no code with the solver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from jellybean_agent import SiteRoutes, Sites
from jellybean_solver import Edge, Plan, Problem, Variant
from tests.brute_force import rates as reference_rates

LITTLE = 1e-6


def complaints(problem: Problem, plan: Plan) -> list[str]:
    """What a worker or a link of any one site could not do; empty when all is well."""
    fleet = _Fleet(problem, plan)
    return [*fleet.wrong, *fleet.workers(), *fleet.pools(), *fleet.links()]


class _Fleet:
    """Every worker and link by its name in its site, with what the routes of all places bring to it."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.sites = {tier: problem.sites.get(tier, 1) for tier in problem.tiers}
        self.variants: Mapping[str, Variant] = {
            o.name: next(v for v in o.variants if v.name == plan.selection[o.name]) for o in problem.operators
        }
        self.rates = reference_rates.rates(problem, plan.selection)
        self.busy: dict[str, float] = defaultdict(float)
        self.held: dict[str, set[str]] = defaultdict(set)
        self.sent: dict[tuple[str, str, str], float] = defaultdict(float)  # site, its tier, the tier above
        self.wrong = list(self._walk())

    def _walk(self) -> Iterator[str]:
        most = max(self.sites.values())
        tiers = {worker.name: worker.tier for worker in self.plan.workers}
        routes = SiteRoutes([route.workers for route in self.plan.routes], tiers, Sites(self.plan.sites))
        if len(routes) != most * len(self.plan.routes):
            yield f"{len(routes)} routes for {most} places"
        for index, route in enumerate(routes):
            place, number = divmod(index, len(self.plan.routes))
            own = {tier: f"{tier}-{place * n // most + 1}" if n > 1 else tier for tier, n in self.sites.items()}
            at = {source.name: source.tier for source in self.problem.sources}
            share = self.plan.routes[number].weight / most
            for name, worker in route.items():
                at[name] = tiers[_planned(worker)]
                if (worker.rpartition("/")[0] or at[name]) != own[at[name]]:
                    yield f"a request of place {place} is sent to {worker}"
                self._serve(name, worker, share)
            for operator in self.problem.operators:
                for edge in operator.inputs:
                    if at[edge.upstream] != at[edge.downstream]:
                        ends = own[at[edge.upstream]], at[edge.upstream], at[edge.downstream]
                        self.sent[ends] += share * self._bytes_per_s(edge)

    def _serve(self, name: str, worker: str, share: float) -> None:
        pool = self.plan.worker_by_name[_planned(worker)].pool
        size = self.plan.operator_by_name[name].batch[pool]
        self.busy[worker] += share * self.rates[name] * self.variants[name].service[pool][size].load_s / size
        self.held[worker].add(name)

    def _bytes_per_s(self, edge: Edge) -> float:
        source = next((s for s in self.problem.sources if s.name == edge.upstream), None)
        size = source.message_bytes if source else self.variants[edge.upstream].message_bytes[edge.downstream]
        return self.rates[edge.upstream] * reference_rates.rows(self.problem, edge, self.plan.selection) * size

    def workers(self) -> Iterator[str]:
        """Load, memory and sharing of each."""
        pools = {pool.name: pool for pool in self.problem.pools}
        for name, busy in self.busy.items():
            worker = self.plan.worker_by_name[_planned(name)]
            pool = pools[worker.pool]
            if busy > self.problem.utilisation * (1 + LITTLE) or abs(busy - worker.load) > LITTLE:
                yield f"{name} is busy {busy}, the plan says {worker.load}"
            memory = sum(self.variants[own].memory_bytes.get(pool.name, 0.0) for own in self.held[name])
            if pool.memory_bytes is not None and memory > pool.memory_bytes * (1 + LITTLE):
                yield f"{name} holds {memory} of {pool.memory_bytes} bytes"
            if pool.sharing.value == "exclusive" and len(self.held[name]) > 1:
                yield f"{name} serves {self.held[name]}"

    def pools(self) -> Iterator[str]:
        """Workers of each, in all sites."""
        for pool in self.problem.pools:
            used = sum(self.plan.worker_by_name[_planned(name)].pool == pool.name for name in self.busy)
            if used > pool.count * self.sites[pool.tier]:
                yield f"{used} workers of {pool.name}"

    def links(self) -> Iterator[str]:
        """Bytes on the link of each site."""
        limits = {(k.upstream_tier, k.downstream_tier): k.bandwidth_bytes_per_s for k in self.problem.links}
        for (site, *tiers), bytes_per_s in self.sent.items():
            limit = limits[tiers[0], tiers[1]]
            if limit is not None and bytes_per_s > limit * (1 + LITTLE):
                yield f"the link of {site} to {tiers[1]} carries {bytes_per_s} of {limit}"


def _planned(worker: str) -> str:
    return worker.rpartition("/")[2]
