"""Changes of variants and placements between adjacent plans of a curve."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from jellybean.display import formats
from jellybean_solver import Curve, CurvePoint, Placement, Plan, PlannedOperator, selection_shares


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """An operator whose variant or placement changes between adjacent plans.

    The previous values are None for the first plan of a curve, and for the first stage of a model that was not cut in
    the previous plan.
    """

    operator: str
    variant_before: str | None
    variant: str
    where_before: str | None
    where: str

    @property
    def variant_changed(self) -> bool:
        return self.variant != self.variant_before

    def __str__(self) -> str:
        parts = []
        if self.variant_changed:
            parts.append(self.variant if self.variant_before is None else f"{self.variant_before} → {self.variant}")
        if self.where != self.where_before:
            parts.append(f"on {self.where}" if self.where_before is None else f"now on {self.where}")
        return f"{self.operator}: {', '.join(parts)}"


def with_changes(curve: Curve) -> Iterator[tuple[CurvePoint, tuple[OperatorChange, ...]]]:
    """Each point, with the changes from the plan before; none where there is no plan."""
    before: Plan | None = None
    for point in curve.points:
        yield point, () if point.plan is None else changes(before, point.plan)
        before = point.plan or before


def changes(before: Plan | None, after: Plan) -> tuple[OperatorChange, ...]:
    """Operators whose variant or placement differs between the plans, those with another variant first."""
    old, new = ({} if plan is None else _described(plan) for plan in (before, after))
    found = []
    for name, (variant, where) in new.items():
        variant_before, where_before = old.get(name, (None, None))
        if (variant_before, where_before) != (variant, where):
            found.append(OperatorChange(name, variant_before, variant, where_before, where))
    return tuple(sorted(found, key=lambda change: not change.variant_changed))


def _described(plan: Plan) -> dict[str, tuple[str, str]]:
    """Operator -> its variant and where it is placed."""
    return {one.name: (_variant_text(plan, one), _placement_text(plan, one.name)) for one in plan.operators}


def _variant_text(plan: Plan, operator: PlannedOperator) -> str:
    """The variant; of several ones each with its share of the requests, the most frequent first."""
    if not operator.others:
        return operator.label
    parts = [(part.selection.get(operator.name), part.share) for part in selection_shares(plan)]
    shares = ((sum(share for name, share in parts if name == one.variant), one.label) for one in operator.variants)
    return " + ".join(f"{formats.percent(share)} {label}" for share, label in sorted(shares, reverse=True))


def _placement_text(plan: Plan, operator: str) -> str:
    """Pools and worker counts by tier, for example `edge: cpu-1, box x 2; cloud: gpu`."""
    placed = (one for one in plan.placements if one.operator == operator)
    return "; ".join(
        f"{formats.tier(tier, plan.sites)}: {', '.join(map(_workers_text, group))}"
        for tier, group in itertools.groupby(placed, key=lambda one: one.tier)
    )


def _workers_text(placement: Placement) -> str:
    return placement.pool if placement.count == 1 else f"{placement.pool} x {placement.count}"
