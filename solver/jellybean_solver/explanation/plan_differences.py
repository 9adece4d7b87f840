"""How two plans differ, in short phrases: variants, tiers of operators, workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jellybean_solver.model.forms import planned_cuts
from jellybean_solver.model.plan import Plan

LEAST_MOVED = 0.005  # share of an operator's requests; smaller shifts between its variants are not told


def plan_differences(base: Plan, other: Plan) -> tuple[str, ...]:
    """How `other` differs from `base`: who is served, variants, tiers, workers; a short phrase per difference."""
    found = [*_served_differences(base, other), *_variant_differences(base, other), *_cut_differences(base, other)]
    before, after = _tiers(base), _tiers(other)
    moves: dict[str, list[str]] = {}
    for name, tiers in after.items():
        if tiers != before.get(name, tiers):
            moves.setdefault(f"{' and '.join(before[name])} -> {' and '.join(tiers)}", []).append(name)
    found += [f"{', '.join(names)}: {move}" for move, names in moves.items()]
    counts = Counter(worker.pool for worker in other.workers)
    counts.subtract(worker.pool for worker in base.workers)
    each = {w.pool: f" in each {w.tier}" for plan in (base, other) for w in plan.workers if w.tier in plan.sites}
    moved = [f"{count:+d} {pool}{each.get(pool, '')}" for pool, count in counts.most_common() if count]
    return (*found, ", ".join(moved)) if moved else tuple(found)


def _served_differences(base: Plan, other: Plan) -> Iterator[str]:
    """A phrase for the workflows that only one of the plans serves."""
    before, after = ({one.name for one in plan.left_out} for plan in (base, other))
    for word, names in (("leaves out", after - before), ("serves", before - after)):
        if names:
            yield f"{word} {', '.join(sorted(names))}"


def _cut_differences(base: Plan, other: Plan) -> Iterator[str]:
    """A phrase for each operator that is cut in one of the plans, or in both after other layers."""
    before, after = (
        {cut.operator: f"cut after {cut.layers} of {cut.of} layers" for cut in planned_cuts(plan)}
        for plan in (base, other)
    )
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name, 'whole')} -> {after.get(name, 'whole')}"


def _variant_differences(base: Plan, other: Plan) -> Iterator[str]:
    """A phrase per operator whose variants differ, with their shares of its requests where a plan mixes them."""
    if not base.mixes and not other.mixes:
        both = (
            (name, base.selection[name], other.selection[name]) for name in other.selection if name in base.selection
        )
        yield from (f"{name}: {before} -> {after}" for name, before, after in both if before != after)
        return
    before, after = _shares(base), _shares(other)
    for name, shares in ((name, shares) for name, shares in after.items() if name in before):
        pairs = {v: (before[name].get(v, 0.0), shares.get(v, 0.0)) for v in {**before[name], **shares}}
        moved = {variant: pair for variant, pair in pairs.items() if abs(pair[1] - pair[0]) >= LEAST_MOVED}
        if moved:
            yield f"{name}: " + ", ".join(
                f"{v} {100 * old:.0f} -> {100 * new:.0f} %" for v, (old, new) in moved.items()
            )


def _shares(plan: Plan) -> dict[str, dict[str, float]]:
    """Operator -> variant -> its share of the operator's requests."""
    found: dict[str, dict[str, float]] = {}
    for place in plan.placements:
        of_operator = found.setdefault(place.operator, {})
        of_operator[place.variant] = of_operator.get(place.variant, 0.0) + place.rate_per_s
    return {name: {v: rate / sum(rates.values()) for v, rate in rates.items()} for name, rates in found.items()}


def _tiers(plan: Plan) -> dict[str, tuple[str, ...]]:
    used: dict[str, set[str]] = {}
    for place in plan.placements:
        used.setdefault(place.operator, set()).add(place.tier)
    return {name: tuple(tier for tier in plan.tiers if tier in tiers) for name, tiers in used.items()}
