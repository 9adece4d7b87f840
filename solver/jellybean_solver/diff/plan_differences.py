"""How two plans differ, in short phrases: variants, tiers of operators, workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from jellybean_solver.diff.plan_diff import changes, mixed_operators, shares_of, variants_of, worker_counts
from jellybean_solver.model.forms import planned_cuts
from jellybean_solver.model.plan import Plan

LEAST_MOVED = 0.005  # share of the requests; smaller shifts between variants are not told


def plan_differences(base: Plan, other: Plan) -> tuple[str, ...]:
    """How `other` differs from `base`: who is served, variants, tiers, workers; a short phrase per difference."""
    return tuple(_differences(base, other))


def _differences(base: Plan, other: Plan) -> Iterator[str]:
    before, after = ({one.name for one in plan.left_out} for plan in (base, other))
    for word, names in (("leaves out", after - before), ("serves", before - after)):
        if names:
            yield f"{word} {', '.join(sorted(names))}"
    yield from _variant_differences(base, other)
    for name, was, now in changes(_cuts(base), _cuts(other), "whole"):
        yield f"{name}: {was} -> {now}"
    moves: dict[str, list[str]] = {}
    for name, was, now in changes(_tiers(base), _tiers(other), ""):
        if was and now:
            moves.setdefault(f"{was} -> {now}", []).append(name)
    yield from (f"{', '.join(names)}: {move}" for move, names in moves.items())
    counts = [(now - was, *key) for key, was, now in changes(worker_counts(base), worker_counts(other), 0)]
    each = {tier: f" in each {tier}" for plan in (base, other) for tier in plan.sites}
    if counts:
        counts.sort(key=lambda one: -one[0])
        yield ", ".join(f"{more:+d} {pool}{each.get(tier, '')}" for more, pool, tier in counts)


def _variant_differences(base: Plan, other: Plan) -> Iterator[str]:
    """A phrase per operator of both plans whose variants differ, with their shares where a plan mixes them."""
    both = base.operator_by_name.keys() & other.operator_by_name.keys()
    mixed = mixed_operators(base, other) & both
    for name, was, now in changes(variants_of(base), variants_of(other), ""):
        if name in both - mixed:
            yield f"{name}: {was} -> {now}"
    shares = changes(shares_of(base, mixed), shares_of(other, mixed), 0.0)
    for name, group in groupby(shares, key=lambda change: change[0][0]):
        moved = [(key[1], 100 * was, 100 * now) for key, was, now in group if abs(now - was) >= LEAST_MOVED]
        if moved:
            yield f"{name}: " + ", ".join(f"{variant} {was:.0f} -> {now:.0f} %" for variant, was, now in moved)


def _cuts(plan: Plan) -> dict[str, str]:
    return {cut.operator: f"cut after {cut.layers} of {cut.of} layers" for cut in planned_cuts(plan)}


def _tiers(plan: Plan) -> dict[str, str]:
    """Operator -> the tiers where it runs."""
    used: dict[str, set[str]] = {}
    for place in plan.placements:
        used.setdefault(place.operator, set()).add(place.tier)
    return {name: " and ".join(tier for tier in plan.tiers if tier in tiers) for name, tiers in used.items()}
