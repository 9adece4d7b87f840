"""Changes of variants and placements between adjacent plans of a curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jellybean.display import formats
from jellybean_solver import Plan, PlannedOperator


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


def changes(before: Plan | None, after: Plan) -> tuple[OperatorChange, ...]:
    """Operators whose variant or placement differs between the plans, those with another variant first."""
    return tuple(sorted(_changes(before, after), key=lambda change: not change.variant_changed))


def _changes(before: Plan | None, after: Plan) -> Iterator[OperatorChange]:
    for operator in after.operators:
        name, variant, placed = operator.name, _variants_text(operator), _placement_text(after, operator.name)
        old = before.operator_by_name.get(name) if before is not None else None
        if before is None or old is None:
            yield OperatorChange(name, None, variant, None, placed)
            continue
        old_variant, old_placed = _variants_text(old), _placement_text(before, name)
        if (old_variant, old_placed) != (variant, placed):
            yield OperatorChange(name, old_variant, variant, old_placed, placed)


def _variants_text(operator: PlannedOperator) -> str:
    """The variant, or of a plan that mixes variants all of them."""
    return " + ".join(one.label for one in operator.variants)


def _placement_text(plan: Plan, operator: str) -> str:
    """Pools and worker counts by tier, for example `edge: cpu-1, box x 2; cloud: gpu`."""
    tiers: dict[str, list[str]] = {}
    for placement in plan.placements:
        if placement.operator == operator:
            pool = placement.pool if placement.count == 1 else f"{placement.pool} x {placement.count}"
            tiers.setdefault(placement.tier, []).append(pool)
    return "; ".join(f"{formats.tier(tier, plan.sites)}: {', '.join(pools)}" for tier, pools in tiers.items())
