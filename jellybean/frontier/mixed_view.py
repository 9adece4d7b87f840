"""The curve of the least cost over the mean accuracy, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD
from jellybean.frontier.find import Frontier
from jellybean.planning.mixing import selections_json
from jellybean_solver import CostAccuracy, MixedCurve, MixedPoint, Objective, Plan, selection_shares

PROVEN = 5e-5  # relative: a gap that no figure shows; programs of mixtures end within a part of it
MOST_SELECTIONS = 4  # lines per point in the table; JSON has all


def mixed_answer(frontier: Frontier, curve: MixedCurve) -> Text:
    """The ends of the curve, and how far its points may be from the least cost."""
    first, last = curve.points[0], curve.points[-1]
    count = formats.count(len(curve.points), "point")
    return Text.assemble(
        (frontier.problem.name, "bold"),
        f": {count}, from ",
        (f"{formats.usd(first.cost_usd_per_h)} USD/h", "bold"),
        f" at a mean accuracy{frontier.of} of {formats.accuracy(first.accuracy)} to ",
        (f"{formats.usd(last.cost_usd_per_h)} USD/h", "bold"),
        f" at {formats.accuracy(last.accuracy)}; {proof_text(curve)}, in {frontier.elapsed_s:.2f} s",
    )


def proof_text(curve: MixedCurve) -> str:
    """How far the cost of a point may be from the least."""
    most = max((point.gap for point in curve.points), default=0.0)
    return "each the least cost" if most <= PROVEN else f"gaps of at most {100.0 * most:.2g} %"


def mixed_table(frontier: Frontier, curve: MixedCurve) -> Padding:
    """A row for each point, with the selections that its requests get and what one selection for all would cost."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    gaps = any(point.gap > PROVEN for point in curve.points)
    for heading in ("mean accuracy", "USD/h", "increase", *(("gap",) if gaps else ()), "one selection"):
        table.add_column(heading, justify="right", no_wrap=heading != "one selection")
    table.add_column("requests", overflow="fold")
    varied = varied_operators([point.plan for point in curve.points])
    for before, point in zip((None, *curve.points), curve.points, strict=False):
        more = "" if before is None else f"+{formats.usd(point.cost_usd_per_h - before.cost_usd_per_h)}"
        gap = (f"{point.gap:.2%}",) if gaps else ()
        figures = (formats.accuracy(point.accuracy), formats.usd(point.cost_usd_per_h), more, *gap)
        table.add_row(*figures, _single_text(frontier.accuracy, point), _described(frontier, point, varied))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _single_text(single: CostAccuracy, point: MixedPoint) -> str:
    """What the cheapest plan costs that is as accurate with one selection for all requests; empty if none is known."""
    corner = single.at_least(point.accuracy)
    return "" if corner is None else formats.usd(corner.cost_usd_per_h)


def _described(frontier: Frontier, point: MixedPoint, varied: Sequence[str]) -> Text:
    marks = [Text(mark, f"bold {GOOD}") for mark in chosen_text(frontier, point)]
    broken = [Text(f"misses a target: {breach.split(' (')[0]}", BAD) for breach in point.breaches]
    shares = [*share_lines(point.plan, varied)]
    lines = [Text(line) for line in shares[:MOST_SELECTIONS]]
    if len(shares) > MOST_SELECTIONS:
        lines.append(Text(f"and {len(shares) - MOST_SELECTIONS} more selections (--json has all)", "dim"))
    return Text("\n").join(chain(marks, broken, lines))


def chosen_text(frontier: Frontier, point: MixedPoint) -> Iterator[str]:
    """That a point is the cheapest one for the target, the most accurate one, or what a soft target weighs out."""
    if point is not frontier.cheapest:
        return
    slo = frontier.problem.slo
    text = "the plan of `jellybean plan`"
    if frontier.problem.objective is Objective.MEAN_ACCURACY:
        text += ": the most accurate" + ("" if slo.budget_usd_per_h is None else " within the budget")
    elif frontier.target is not None and not frontier.is_soft:
        text = f"cheapest for a mean of {formats.plain(frontier.target)}"
    yield text + ("" if point is frontier.chosen else " (`jellybean plan` finds one that meets all targets)")


def varied_operators(plans: Sequence[Plan]) -> tuple[str, ...]:
    """The operators that have more than one variant in some plans."""
    chosen: dict[str, set[str]] = {}
    for plan in plans:
        for operator in plan.operators:
            chosen.setdefault(operator.name, set()).update(one.variant for one in operator.variants)
    return tuple(name for name, variants in chosen.items() if len(variants) > 1)


def share_lines(plan: Plan, varied: Sequence[str]) -> Iterator[str]:
    """`60 %: first two, last large`: each selection with its share of the requests, the largest first."""
    for part in sorted(selection_shares(plan), key=lambda part: -part.share):
        variants = ", ".join(f"{name} {part.selection[name]}" for name in varied if name in part.selection)
        share = "all" if not plan.mixes else formats.percent(part.share)
        yield f"{share}: {variants}" if variants else share


def shares_text(plan: Plan, varied: Sequence[str]) -> str:
    """The same in short, without the operators' names: `60 % two + large; 40 % five + large`."""
    parts = sorted(selection_shares(plan), key=lambda part: -part.share)
    share = "" if not plan.mixes else "{} "
    return "; ".join(
        share.format(formats.percent(part.share)) + " + ".join(part.selection[name] for name in varied)
        for part in parts
    )


def mixed_json(point: MixedPoint) -> dict[str, Any]:
    """What a point of a mixed curve has beyond one with a single selection."""
    return {"target": point.target, "selections": selections_json(point.plan)}


def single_json(single: CostAccuracy) -> list[dict[str, float]]:
    """The corners of the curve of one selection for all requests."""
    return [
        {"accuracy": one.accuracy, "cost_usd_per_h": one.cost_usd_per_h, "bound_usd_per_h": one.bound_usd_per_h}
        for one in single.corners
    ]
