"""Difference of two plans: what must change to turn one into the other.

Workers of a pool are interchangeable, so only the models they hold count: renumbering is no difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from jellybean_solver.diff.plan_figures import FIGURE_TOLERANCE, FigureChange, figure_changes
from jellybean_solver.errors import SolverError
from jellybean_solver.migration.plan_matching import (
    HostedModel,
    LoadPrice,
    Pair,
    colour_workers,
    hosted_models,
    match_workers,
    routes_by_colour,
)
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.plan import Cost, Plan, PlannedWorker

K = TypeVar("K", bound=str | tuple[str, str])


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """Models that one worker loads and unloads. `before` is None for a new worker, `after` for a stopped one."""

    pool: str
    tier: str
    before: str | None
    after: str | None
    load: tuple[HostedModel, ...]
    unload: tuple[HostedModel, ...]

    @property
    def load_bytes(self) -> float:
        """Memory of the models to load, as far as known."""
        return sum(model.memory_bytes or 0.0 for model in self.load)


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Number of workers in use of one pool."""

    pool: str
    tier: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class VariantChange:
    """An operator's variant; None if the plan has no such operator."""

    operator: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Workers, requests per second and batch size of an operator in one pool; 0 if it does not run there."""

    operator: str
    pool: str
    workers_before: int
    workers_after: int
    rate_before_per_s: float
    rate_after_per_s: float
    batch_before: int
    batch_after: int


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Traffic over one link."""

    upstream_tier: str
    downstream_tier: str
    bytes_before_per_s: float
    bytes_after_per_s: float
    cost_before_usd_per_h: float
    cost_after_usd_per_h: float


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """From one plan to another. `names` maps workers that continue: name before -> name after.

    `routes_changed`: routes differ other than by workers' names. `figures`: other stated figures that differ; those
    that follow from a changed variant or pool are not listed.
    """

    cost_before: Cost
    cost_after: Cost
    accuracy_before: float | None
    accuracy_after: float | None
    variants: tuple[VariantChange, ...]
    pools: tuple[PoolChange, ...]
    placements: tuple[PlacementChange, ...]
    workers: tuple[WorkerChange, ...]
    links: tuple[LinkChange, ...]
    routes_changed: bool
    figures: tuple[FigureChange, ...]
    names: Mapping[str, str]

    @property
    def cost_changed(self) -> bool:
        pairs = (
            (self.cost_before.compute_usd_per_h, self.cost_after.compute_usd_per_h),
            (self.cost_before.network_usd_per_h, self.cost_after.network_usd_per_h),
        )
        return not all(_same(a, b) for a, b in pairs)

    @property
    def accuracy_changed(self) -> bool:
        one, two = self.accuracy_before, self.accuracy_after
        return one != two if one is None or two is None else not _same(one, two)

    @property
    def is_empty(self) -> bool:
        """True if the plans differ in workers' names only."""
        changes = (self.variants, self.pools, self.placements, self.workers, self.links, self.figures)
        return not (any(changes) or self.cost_changed or self.accuracy_changed or self.routes_changed)

    @property
    def started(self) -> tuple[WorkerChange, ...]:
        return tuple(change for change in self.workers if change.before is None)

    @property
    def stopped(self) -> tuple[WorkerChange, ...]:
        return tuple(change for change in self.workers if change.after is None)


def plan_diff(before: Plan, after: Plan, worth: LoadPrice | None = None) -> PlanDiff:
    """Changes from `before` to `after`; exchanging the plans mirrors them.

    In each pool as many workers as possible continue; of these matchings, the fewest models are loaded or unloaded, or
    with `worth` the cheapest ones.
    """
    pairs = sorted(match_workers(before, after, worth), key=_by_plan(before, after))
    marks = colour_workers(before, after)
    names = {one.name: two.name for one, two in pairs if one is not None and two is not None}
    changes = (_worker_change(one, two, before, after) for one, two in pairs)
    return PlanDiff(
        cost_before=before.cost,
        cost_after=after.cost,
        accuracy_before=before.accuracy,
        accuracy_after=after.accuracy,
        variants=_variants(before, after),
        pools=_pool_changes(before, after),
        placements=_placements(before, after),
        workers=tuple(c for c in changes if c.load or c.unload or c.before is None or c.after is None),
        links=_links(before, after),
        routes_changed=routes_by_colour(before, marks[0]) != routes_by_colour(after, marks[1]),
        figures=tuple(figure_changes(before, after)),
        names=names,
    )


def _by_plan(before: Plan, after: Plan) -> Callable[[Pair], tuple[int, int]]:
    """Pairs in the order of the plan before, then started workers in the order of the plan after."""
    order = [{worker.name: index for index, worker in enumerate(plan.workers)} for plan in (before, after)]

    def key(pair: Pair) -> tuple[int, int]:
        one, two = pair
        return (order[0][one.name] if one else len(order[0]), order[1][two.name] if two else -1)

    return key


def _worker_change(one: PlannedWorker | None, two: PlannedWorker | None, before: Plan, after: Plan) -> WorkerChange:
    worker = one if one is not None else two
    if worker is None:
        raise SolverError("a pair of workers has neither")
    had = hosted_models(before, one) if one is not None else frozenset()
    has = hosted_models(after, two) if two is not None else frozenset()
    names = (one.name if one is not None else None, two.name if two is not None else None)
    return WorkerChange(worker.pool, worker.tier, *names, _sorted(has - had), _sorted(had - has))


def _sorted(models: Iterable[HostedModel]) -> tuple[HostedModel, ...]:
    return tuple(sorted(models, key=lambda model: (model.operator, model.variant)))


def _variants(before: Plan, after: Plan) -> tuple[VariantChange, ...]:
    found: list[VariantChange] = []
    for name in _union(before.operator_by_name, after.operator_by_name):
        one, two = before.operator_by_name.get(name), after.operator_by_name.get(name)
        was, now = one.variant if one is not None else None, two.variant if two is not None else None
        if was != now:
            found.append(VariantChange(name, was, now))
    return tuple(found)


def _pool_changes(before: Plan, after: Plan) -> tuple[PoolChange, ...]:
    was = Counter((worker.pool, worker.tier) for worker in before.workers)
    now = Counter((worker.pool, worker.tier) for worker in after.workers)
    return tuple(PoolChange(*key, was[key], now[key]) for key in _union(was, now) if was[key] != now[key])


def _placements(before: Plan, after: Plan) -> tuple[PlacementChange, ...]:
    was = {(p.operator, p.pool): (p.count, p.rate_per_s, p.batch) for p in before.placements}
    now = {(p.operator, p.pool): (p.count, p.rate_per_s, p.batch) for p in after.placements}
    found: list[PlacementChange] = []
    for key in _union(was, now):
        (count, rate, batch), (new_count, new_rate, new_batch) = was.get(key, (0, 0.0, 0)), now.get(key, (0, 0.0, 0))
        if count != new_count or not _same(rate, new_rate) or batch != new_batch:
            found.append(PlacementChange(*key, count, new_count, rate, new_rate, batch, new_batch))
    return tuple(found)


def _links(before: Plan, after: Plan) -> tuple[LinkChange, ...]:
    was = {(use.upstream_tier, use.downstream_tier): use for use in link_uses(before)}
    now = {(use.upstream_tier, use.downstream_tier): use for use in link_uses(after)}
    found: list[LinkChange] = []
    for key in _union(was, now):
        one, two = was.get(key), now.get(key)
        sizes = (one.bytes_per_s if one is not None else 0.0, two.bytes_per_s if two is not None else 0.0)
        costs = (one.cost_usd_per_h if one is not None else 0.0, two.cost_usd_per_h if two is not None else 0.0)
        if not _same(*sizes) or not _same(*costs):
            found.append(LinkChange(*key, *sizes, *costs))
    return tuple(found)


def _union(one: Iterable[K], two: Iterable[K]) -> list[K]:
    """Keys of both, in an order that does not depend on which comes first."""
    keys: set[K] = {*one, *two}
    return sorted(keys, key=lambda key: (key,) if isinstance(key, str) else key)


def _same(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=FIGURE_TOLERANCE, abs_tol=1e-12)
