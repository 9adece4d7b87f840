"""Difference of two plans: what must change to turn one into the other.

Workers of a pool are interchangeable, so only the models they hold count: renumbering is no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from jellybean_solver.diff.plan_figures import FigureChange, figure_changes, is_same
from jellybean_solver.migration.plan_matching import (
    LoadPrice,
    WorkerChange,
    colour_workers,
    match_workers,
    routes_by_colour,
    worker_changes,
)
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.plan import Cost, Plan
from jellybean_solver.model.selection_shares import selection_shares
from jellybean_solver.outcome import Clock

K = TypeVar("K", bound=str | tuple[str, ...])
V = TypeVar("V")
D = TypeVar("D")

Key = tuple[str, str]  # (operator, pool), (pool, tier), or the two tiers of a link


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Number of workers in use of one pool."""

    pool: str
    tier: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class VariantChange:
    """An operator's variant, or variants by name joined by " + "; None if the plan has no such operator."""

    operator: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ShareChange:
    """Fraction of the requests that get a variant, of an operator that one of the plans mixes variants of."""

    operator: str
    variant: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ModelChange:
    """Another model file of the same variant, as after training it anew. SHA-256; None if the plan states none."""

    operator: str
    variant: str
    sha256_before: str | None
    sha256_after: str | None


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Workers, requests per second and batch size of an operator in one pool; 0 if it does not run there.

    `variant`: of an operator that one of the plans mixes variants of; else empty.
    """

    operator: str
    pool: str
    workers_before: int
    workers_after: int
    rate_before_per_s: float
    rate_after_per_s: float
    batch_before: int
    batch_after: int
    variant: str = ""


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Traffic over one link in bytes per second, and its cost."""

    upstream_tier: str
    downstream_tier: str
    bytes_before_per_s: float
    bytes_after_per_s: float
    cost_before_usd_per_h: float
    cost_after_usd_per_h: float


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Changes from one plan to another. `names`: workers that continue, name before -> name after.

    `routes_changed`: True if routes differ in more than the names of workers. `figures`: differing figures that the
    plans state, except those that follow from a changed variant or pool. `out_of_time`: the time limit ended the
    matching of workers, and another one may load fewer models.
    """

    cost_before: Cost
    cost_after: Cost
    accuracy_before: float | None
    accuracy_after: float | None
    overrides_before: tuple[str, ...]
    overrides_after: tuple[str, ...]
    variants: tuple[VariantChange, ...]
    shares: tuple[ShareChange, ...]
    models: tuple[ModelChange, ...]
    pools: tuple[PoolChange, ...]
    placements: tuple[PlacementChange, ...]
    workers: tuple[WorkerChange, ...]
    links: tuple[LinkChange, ...]
    routes_changed: bool
    figures: tuple[FigureChange, ...]
    names: Mapping[str, str]
    out_of_time: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the plans differ at most in the names of workers, and in the options that they were made with."""
        one, two = self.cost_before, self.cost_after
        changes = (
            *(self.variants, self.shares, self.models, self.pools),
            *(self.placements, self.workers, self.links, self.figures),
        )
        figures_before = one.compute_usd_per_h, one.network_usd_per_h, self.accuracy_before
        figures_after = two.compute_usd_per_h, two.network_usd_per_h, self.accuracy_after
        return not (any(changes) or self.routes_changed) and is_same(figures_before, figures_after)

    @property
    def started(self) -> tuple[WorkerChange, ...]:
        return tuple(change for change in self.workers if change.before is None)

    @property
    def stopped(self) -> tuple[WorkerChange, ...]:
        return tuple(change for change in self.workers if change.after is None)


def plan_diff(before: Plan, after: Plan, worth: LoadPrice | None = None, *, limit: Clock = Clock()) -> PlanDiff:
    """Changes from `before` to `after`; with the plans exchanged, the same changes in reverse.

    In each pool as many workers as possible continue. Among these matchings, the one with the fewest models loaded and
    unloaded is taken, or with `worth` the one with the cheapest. `limit`: see `match_workers`.
    """
    matching = match_workers(before, after, worth, limit)
    marks = colour_workers(before, after)
    order = [{worker.name: index for index, worker in enumerate(plan.workers)} for plan in (before, after)]
    workers = sorted(  # by the worker's position in `before`, then started workers by that in `after`
        worker_changes(before, after, matching.pairs),
        key=lambda one: (order[0].get(one.before or "", len(order[0])), order[1].get(one.after or "", -1)),
    )
    mixed = mixed_operators(before, after)
    placed = _placed(before, mixed), _placed(after, mixed)
    return PlanDiff(
        cost_before=before.cost,
        cost_after=after.cost,
        accuracy_before=before.accuracy,
        accuracy_after=after.accuracy,
        overrides_before=before.overrides,
        overrides_after=after.overrides,
        variants=tuple(VariantChange(*change) for change in changes(variants_of(before), variants_of(after), None)),
        shares=tuple(
            ShareChange(*key, was, now)
            for key, was, now in changes(shares_of(before, mixed), shares_of(after, mixed), 0.0)
        ),
        models=tuple(
            ModelChange(*key, was, now)
            for key, was, now in changes(_model_files(before, after), _model_files(after, before), None)
        ),
        pools=tuple(
            PoolChange(*key, was, now) for key, was, now in changes(worker_counts(before), worker_counts(after), 0)
        ),
        placements=tuple(
            PlacementChange(operator, pool, *(*_alternating(was, now), variant))
            for (operator, pool, variant), was, now in changes(*placed, (0, 0.0, 0))
        ),
        workers=tuple(c for c in workers if c.load or c.unload or c.before is None or c.after is None),
        links=tuple(
            LinkChange(*key, *_alternating(was, now))
            for key, was, now in changes(_traffic(before), _traffic(after), (0.0, 0.0))
        ),
        routes_changed=routes_by_colour(before, marks[0]) != routes_by_colour(after, marks[1]),
        figures=tuple(figure_changes(before, after)),
        names={one.before: one.after for one in workers if one.before is not None and one.after is not None},
        out_of_time=matching.out_of_time,
    )


def mixed_operators(before: Plan, after: Plan) -> AbstractSet[str]:
    """The operators that one of the plans mixes variants of."""
    return {operator.name for plan in (before, after) for operator in plan.operators if operator.others}


def variants_of(plan: Plan) -> Mapping[str, str]:
    """Operator -> its variants by name, in one order in every plan."""
    return {operator.name: " + ".join(sorted(one.variant for one in operator.variants)) for operator in plan.operators}


def shares_of(plan: Plan, mixed: Collection[str]) -> Mapping[Key, float]:
    """(operator, variant) -> fraction of the requests that get it, for operators in `mixed`."""
    found: dict[Key, float] = {}
    for part in selection_shares(plan) if mixed else ():
        for key in part.selection.items():
            if key[0] in mixed:
                found[key] = found.get(key, 0.0) + part.share
    return found


def _model_files(plan: Plan, other: Plan) -> Mapping[Key, str | None]:
    """(operator, variant) -> SHA-256 of its model, for the variants that both plans use."""
    return {
        (operator.name, operator.variant): operator.model.sha256 if operator.model is not None else None
        for operator in plan.variants
        if any(one.variant == operator.variant for one in other.variants if one.name == operator.name)
    }


def worker_counts(plan: Plan) -> Mapping[Key, int]:
    """(pool, tier) -> workers in use."""
    return Counter((worker.pool, worker.tier) for worker in plan.workers)


def _placed(plan: Plan, mixed: Collection[str]) -> Mapping[tuple[str, str, str], tuple[int, float, int]]:
    """(operator, pool, its variant if it is in `mixed`) -> workers, requests per second, batch size."""
    return {
        (place.operator, place.pool, place.variant if place.operator in mixed else ""): (
            *(place.count, place.rate_per_s),
            place.batch,
        )
        for place in plan.placements
    }


def _traffic(plan: Plan) -> Mapping[Key, tuple[float, float]]:
    return {(use.upstream_tier, use.downstream_tier): (use.bytes_per_s, use.cost_usd_per_h) for use in link_uses(plan)}


def changes(before: Mapping[K, V], after: Mapping[K, V], missing: D) -> Iterator[tuple[K, V | D, V | D]]:
    """(key, value before, value after) for keys whose values differ, sorted by key; `missing`: for absent values."""
    keys: set[K] = {*before, *after}
    for key in sorted(keys, key=lambda key: (key,) if isinstance(key, str) else key):
        was, now = before.get(key, missing), after.get(key, missing)
        if not is_same(was, now):
            yield key, was, now


def _alternating(before: Iterable[Any], after: Iterable[Any]) -> Iterator[Any]:
    """Interleave two tuples: the first figure before and after, then the second, and so on."""
    return chain.from_iterable(zip(before, after, strict=True))
