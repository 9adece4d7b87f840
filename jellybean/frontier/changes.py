"""What differs between two plans that stand side by side on a curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jellybean.display import figures as units
from jellybean_solver import Plan


@dataclass(frozen=True, slots=True)
class Change:
    """An operator whose variant or place is another. Before is None for the first plan of a curve, and for the first
    layers of a model that was whole.
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


def changes(before: Plan | None, after: Plan) -> tuple[Change, ...]:
    """Operators whose variant or place changes, those with another variant first."""
    return tuple(sorted(_changes(before, after), key=lambda change: not change.variant_changed))


def _changes(before: Plan | None, after: Plan) -> Iterator[Change]:
    for operator in after.operators:
        name, variant, here = operator.name, operator.label, _places(after, operator.name)
        old = before.operator_by_name.get(name) if before is not None else None
        if before is None or old is None:
            yield Change(name, None, variant, None, here)
            continue
        was, there = old.label, _places(before, name)
        if (was, there) != (variant, here):
            yield Change(name, was, variant, there, here)


def _places(plan: Plan, operator: str) -> str:
    """`edge: cpu-1, box x 2; cloud: gpu`: pools by tier with how many workers; which of equal workers says nothing."""
    tiers: dict[str, list[str]] = {}
    for placement in plan.placements:
        if placement.operator == operator:
            pool = placement.pool if placement.count == 1 else f"{placement.pool} x {placement.count}"
            tiers.setdefault(placement.tier, []).append(pool)
    return "; ".join(f"{units.tier(tier, plan.sites)}: {', '.join(pools)}" for tier, pools in tiers.items())
