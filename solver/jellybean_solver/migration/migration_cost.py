"""Migration cost between two plans: the price of the models that workers must load because they do not hold them yet.

Computed from the two plans alone. A worker that continues keeps its models; the cheapest matching of old to new workers
is taken (plan_matching.py). Every solve checks the migration term of its objective against this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jellybean_solver.migration.plan_matching import HostedModel, LoadPrice, match_workers, worker_changes
from jellybean_solver.model.model_ref import ModelRef
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.problem import GIB, Link
from jellybean_solver.model.sites import both_sites
from jellybean_solver.outcome import Clock
from jellybean_solver.time_limit import work_limit


@dataclass(frozen=True, slots=True)
class MigrationPrices:
    """`start_usd`: price of starting one replica (a model on one worker), whatever its size.

    `download_usd_per_gib`: price of sending a model to a worker; None for the price of the links from the top tier,
    where models are stored.
    """

    start_usd: float = 0.0
    download_usd_per_gib: float | None = None

    def per_gib(self, tiers: Sequence[str], links: Sequence[Link]) -> Mapping[str, float | None]:
        """USD per GiB sent to a worker, by tier; None without a price if no links lead to the top tier."""
        if self.download_usd_per_gib is not None:
            return dict.fromkeys(tiers, self.download_usd_per_gib)
        leaving: dict[str, list[Link]] = {}
        for link in links:
            leaving.setdefault(link.upstream_tier, []).append(link)
        known = {tiers[-1]: 0.0}
        for low in reversed(tiers[:-1]):
            ways = [
                link.price_usd_per_gib + known[link.downstream_tier]
                for link in leaving.get(low, ())
                if link.downstream_tier in known
            ]
            if ways:
                known[low] = min(ways)
        return {tier: known.get(tier) for tier in tiers}


@dataclass(frozen=True, slots=True)
class ModelLoads:
    """One model that `replicas` workers of a pool must load.

    If `size_bytes` or `usd_per_gib` is None (unknown), the download counts as free.
    """

    pool: str
    tier: str
    operator: str
    variant: str
    sha256: str | None
    replicas: int
    size_bytes: float | None
    usd_per_gib: float | None
    replica_start_usd: float

    @property
    def replica_usd(self) -> float:
        """USD for start and download of one replica."""
        return self.replica_start_usd + (self.size_bytes or 0.0) / GIB * (self.usd_per_gib or 0.0)

    @property
    def start_usd(self) -> float:
        return self.replicas * self.replica_start_usd

    @property
    def download_usd(self) -> float:
        return self.replicas * (self.replica_usd - self.replica_start_usd)


@dataclass(frozen=True, slots=True)
class Migration:
    """Changes from one plan to another. `kept`: replicas that stay on their worker. `dropped`: replicas unloaded.

    `out_of_time`: a time limit ended the matching of workers, so that another one may cost less.
    """

    loads: tuple[ModelLoads, ...]
    kept: int
    dropped: int
    out_of_time: bool = False

    @property
    def replicas(self) -> int:
        return sum(load.replicas for load in self.loads)

    @property
    def start_usd(self) -> float:
        return sum(load.start_usd for load in self.loads)

    @property
    def download_usd(self) -> float:
        return sum(load.download_usd for load in self.loads)

    @property
    def total_usd(self) -> float:
        return self.start_usd + self.download_usd


def model_bytes(model: ModelRef | None, memory_bytes: float | None) -> float | None:
    """Bytes to download for a model: the size of its file, or if unknown its memory on the worker (None if unknown)."""
    return model.size_bytes if model is not None and model.size_bytes is not None else memory_bytes


def cheapest_migration(before: Plan, after: Plan, prices: MigrationPrices, limit: Clock | None = None) -> Migration:
    """The cheapest migration from `before` to `after`; workers of a pool are interchangeable.

    At the `limit`, by default that of the work, it is the best one found, which `out_of_time` says.
    Counts only the sites that both plans have: a new or closed site loads or drops all its models in any case.
    """
    priced = _Priced(after, prices)
    loads: Counter[tuple[str, str, HostedModel]] = Counter()
    matching, dropped = match_workers(before, after, priced.load_price, limit or work_limit()), 0
    sites = {tier: both_sites(before.sites, after.sites, tier) for tier in (*before.tiers, *after.tiers)}
    for change in worker_changes(before, after, matching.pairs):
        dropped += len(change.unload) * sites[change.tier]
        loads.update({(change.pool, change.tier, model): sites[change.tier] for model in change.load})
    kept = sum(len(worker.rates_per_s) * sites[worker.tier] for worker in after.workers) - loads.total()
    ordered = sorted(loads.items(), key=lambda item: (after.tiers.index(item[0][1]), item[0][0], item[0][2].operator))
    every = tuple(priced.loads(*place, count) for place, count in ordered)
    return Migration(every, kept, dropped, matching.out_of_time)


def load_prices(after: Plan, prices: MigrationPrices) -> LoadPrice:
    """The price in USD of loading a model on a worker of `after`, with which `cheapest_migration` matches workers."""
    return _Priced(after, prices).load_price


class _Priced:
    """Load prices of the replicas of a plan."""

    def __init__(self, plan: Plan, prices: MigrationPrices) -> None:
        self.plan, self.prices = plan, prices
        self.per_gib = prices.per_gib(plan.tiers, plan.links)

    def loads(self, pool: str, tier: str, model: HostedModel, replicas: int) -> ModelLoads:
        operator = self._variant(model) or self.plan.operator_by_name[model.operator]
        size = model_bytes(operator.model, operator.memory_bytes.get(pool))
        names = (pool, tier, model.operator, model.variant, model.sha256)
        return ModelLoads(*names, replicas, size, self.per_gib[tier], self.prices.start_usd)

    def _variant(self, model: HostedModel) -> PlannedOperator | None:
        """The operator with the model's variant; None if the plan does not use it."""
        operator = self.plan.operator_by_name[model.operator]
        return next((one for one in operator.variants if one.variant == model.variant), None)

    def load_price(self, model: HostedModel, worker: PlannedWorker) -> float:
        """USD saved if the worker already holds the model; 0 for a model that the plan does not use."""
        if model.operator not in self.plan.operator_by_name or worker.tier not in self.per_gib:
            return 0.0
        return self.loads(worker.pool, worker.tier, model, 1).replica_usd
