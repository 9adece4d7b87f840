"""Migration cost from a running plan, in the form that the assignment needs: per pool, by the models that workers hold.

Load prices are divided by a horizon in hours, so that they can be added to prices per hour.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from jellybean_solver.demand.demand import Network
from jellybean_solver.migration.migration_cost import Migration, MigrationPrices, cheapest_migration, model_bytes
from jellybean_solver.migration.plan_matching import HostedModel, Models, hosted_models
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import GIB
from jellybean_solver.model.sites import both_sites
from jellybean_solver.model.workflow import Variant
from jellybean_solver.outcome import Clock

Instance = tuple[str, str]  # operator, variant
HeldModels = frozenset[str]  # operators whose selected model a running worker holds


@dataclass(frozen=True, slots=True)
class LoadCosts:
    """Load costs of one selection. `held`: pool -> models of the selection on a running worker -> number of workers.

    `load_usd_per_h`: (operator, pool) -> start and download of one replica, divided by the horizon; not negative.
    """

    held: Mapping[str, Mapping[HeldModels, int]]
    load_usd_per_h: Mapping[tuple[str, str], float]

    def cost_usd_per_h(self, names: Iterable[str], pool: str) -> float:
        """Cost of loading the models of operators `names` on one worker of the pool."""
        return sum(self.load_usd_per_h[name, pool] for name in names)

    def paid_in(self, pool: str, names: Iterable[str]) -> bool:
        """True if loading any of the models of operators `names` in the pool has a cost."""
        return any(self.load_usd_per_h[name, pool] > 0 for name in names)

    def holding(self, name: str, pool: str) -> int:
        """Number of running workers of the pool that hold the operator's model."""
        return sum(count for held, count in self.held[pool].items() if name in held)


class RunningPlan:
    """A running plan, and the cost of migrating from it, divided by `horizon_h` hours. `limit`: of matching workers."""

    def __init__(
        self, network: Network, plan: Plan, prices: MigrationPrices, horizon_h: float, limit: Clock = Clock()
    ) -> None:
        self.network, self.plan, self.prices, self.horizon_h, self.limit = network, plan, prices, horizon_h, limit
        problem = network.problem
        self.per_gib = {tier: usd or 0.0 for tier, usd in prices.per_gib(problem.tiers, problem.links).items()}

    def usd_per_h(self, after: Plan) -> float:
        """Migration cost to plan `after` per hour of the horizon, computed from the two plans, not from `moves`."""
        return self.migration(after).total_usd / self.horizon_h

    def migration(self, after: Plan) -> Migration:
        """The cheapest migration to plan `after`, or the best one found by the time limit."""
        return cheapest_migration(self.plan, after, self.prices, self.limit)

    def moves(self, selection: Mapping[str, str]) -> LoadCosts:
        """Load costs for a complete selection."""
        held = {
            pool.name: {
                frozenset(name for name, _ in instances): count
                for instances, count in self.holding_sets(selection.items(), pool.name).items()
            }
            for pool in self.network.pools
        }
        prices = {
            (name, pool.name): self.load_usd_per_h(name, variant, pool.name)
            for name, variant in selection.items()
            for pool in self.network.pools
        }
        return LoadCosts(held, prices)

    def least_usd_per_h(self, partial: Mapping[str, str]) -> float:
        """Lower bound on migration cost of a partial selection: a model that no running worker holds is loaded once."""
        demand = self.network.demand(partial)
        total = 0.0
        for name, variant in partial.items():
            ways = (
                0.0 if self.holding(name, variant, pool) else self.load_usd_per_h(name, variant, pool)
                for pool in demand.workers[name]
            )
            total += min(ways, default=0.0)
        return total

    def load_usd_per_h(self, name: str, variant: str, pool: str) -> float:
        """Cost of loading one replica of a variant in the pool, in every site, per hour of the horizon."""
        one, tier = self._variants[name, variant], self.network.tier_of[pool]
        size = model_bytes(one.model, one.memory_bytes.get(pool)) or 0.0
        sites = both_sites(self.plan.sites, self.network.problem.sites, tier)
        return (self.prices.start_usd + size / GIB * self.per_gib[tier]) * sites / self.horizon_h

    def holding(self, name: str, variant: str, pool: str) -> int:
        """Number of running workers of the pool that hold the variant's model."""
        return sum(self.holding_sets([(name, variant)], pool).values())

    def holding_sets(self, instances: Iterable[Instance], pool: str) -> Mapping[frozenset[Instance], int]:
        """The variants that a running worker of the pool holds, of those in `instances` -> number of such workers."""
        keys = {one: self._key(*one) for one in instances}
        found: Counter[frozenset[Instance]] = Counter()
        for models, count in self._kinds.get((pool, self.network.tier_of[pool]), {}).items():
            found[frozenset(one for one, key in keys.items() if key in models)] += count
        found.pop(frozenset(), None)
        return found

    def _key(self, name: str, variant: str) -> HostedModel:
        model = self._variants[name, variant].model
        return HostedModel(name, variant, model.sha256 if model is not None else None)

    @cached_property
    def _variants(self) -> Mapping[tuple[str, str], Variant]:
        operators = self.network.problem.operators
        return {(operator.name, variant.name): variant for operator in operators for variant in operator.variants}

    @cached_property
    def _kinds(self) -> Mapping[tuple[str, str], Mapping[Models, int]]:
        """(pool, tier) -> models held by a running worker -> number of such workers."""
        found: defaultdict[tuple[str, str], Counter[Models]] = defaultdict(Counter)
        for worker in self.plan.workers:
            found[worker.pool, worker.tier][hosted_models(self.plan, worker)] += 1
        return found
