"""Curves as a table, as JSON, and as files with the plan of each point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, WARN
from jellybean.frontier.changes import OperatorChange, with_changes
from jellybean.frontier.find import RESOURCES, Current, Frontier
from jellybean.planning.plan_file import write_plan_file
from jellybean.report.plans.selections import selections_json
from jellybean_solver import Curve, CurvePoint, Figure, amount_text, json_values, to_document

MAX_CHANGES = 8  # lines per point in the table; JSON has all changes
LEAST_GAP = 5e-5  # relative: a gap that no figure shows; programs of mixtures end within a part of it
TEXTS: Mapping[Figure, Callable[[Any], str]] = {
    Figure.COST: lambda usd: f"{formats.usd(usd)} USD/h",
    Figure.ACCURACY: formats.accuracy,
    Figure.LATENCY: formats.duration,
    Figure.RATE: formats.rate,
    Figure.ENERGY: lambda watts: "" if watts is None else amount_text(Figure.ENERGY, watts),
    Figure.CARBON: lambda grams: "" if grams is None else amount_text(Figure.CARBON, grams),
}


def frontier_text(frontier: Frontier) -> RenderableType:
    """Terminal text: of each curve a summary, its points with their changes, and why it ends; then what lies beside."""
    parts: list[RenderableType] = []
    for curve in frontier.curves:
        below: list[RenderableType] = [curve_table(frontier, curve)] if curve.points else []
        if curve.ended and not (curve.points and curve.points[-1].plan is None):  # whose row says why
            below.append(Text("end of the curve: " + "; ".join(curve.ended), "dim"))
        parts += [_summary(frontier, curve), _indented(below)]
    current = [] if frontier.current is None else [Text(f"current plan: {_current_text(frontier.current)}")]
    return Group(*parts, _indented([*current, *(Text(note, WARN) for note in frontier.notes)]))


def _current_text(current: Current) -> str:
    excess, where = current.dearer_usd_per_h, ""
    if excess is not None:
        where = f", {TEXTS[Figure.COST](abs(excess))} {'above' if excess > 0 else 'below'} the curve"
        where = ", on the curve" if abs(excess) <= LEAST_GAP * max(1.0, current.cost_usd_per_h) else where
    return f"accuracy {formats.accuracy(current.accuracy)}, {TEXTS[Figure.COST](current.cost_usd_per_h)}{where}"


def title_text(frontier: Frontier, curve: Curve) -> str:
    """What a curve shows: `lowest cost by rate of image at accuracy 56`."""
    best = "highest" if curve.y is Figure.RATE else "lowest"
    target = None if curve.x is Figure.ACCURACY else frontier.stated(Figure.ACCURACY)
    at = "" if target is None else f" at accuracy {formats.plain(target)}"
    return f"{best} {figure_name(frontier, curve.y)} by {figure_name(frontier, curve.x)}{at}"


def figure_name(frontier: Frontier, figure: Figure) -> str:
    """The name of a figure, and whose it is."""
    moved = frontier.moved
    if figure is Figure.RATE:
        source = moved.sources[0]
        return f"rate of {source.name}{moved.problem.in_each(source.tier)}"
    if figure in (Figure.COST, *RESOURCES):
        return figure
    return f"{'mean ' if figure is Figure.ACCURACY and moved.is_mean else ''}{figure}{moved.label}"


def proof_text(curve: Curve) -> str:
    """How far the points may be from the best."""
    if curve.gap > LEAST_GAP:
        return f"not proven optimal, gaps of at most {curve.gap:.2%} in cost"
    if curve.y is not Figure.COST:
        return "of the plans found"
    if curve.exact and curve.step is not None:
        return "exact"
    return f"each point proven optimal{'' if curve.finished else ', but not the end of the curve'}"


def _summary(frontier: Frontier, curve: Curve) -> Text:
    name = frontier.moved.problem.name, "bold"
    planned = [point for point in curve.points if point.plan is not None]
    if not planned:
        return Text.assemble(name, f": {title_text(frontier, curve)}: no plan was found")
    y, x = ([TEXTS[figure](point.figures.get(figure)) for point in planned] for figure in (curve.y, curve.x))
    count = formats.count(len(planned), "point")
    summary = (
        f": {title_text(frontier, curve)}: {count}, from {y[0]} at {x[0]} to {y[-1]} at {x[-1]}; {proof_text(curve)}"
    )
    took = f", in {frontier.elapsed_s:.2f} s" if curve is frontier.curve else ""
    return Text.assemble(name, summary, took)


def curve_table(frontier: Frontier, curve: Curve) -> Table:
    """A row for each point: its figures, but for those that are alike everywhere, and what changes."""
    planned = [point.figures for point in curve.points if point.plan is not None]
    shown = [
        figure
        for figure in Figure
        if figure in (curve.x, curve.y) or len({TEXTS[figure](known.get(figure)) for known in planned}) > 1
    ]
    single = frontier.single if curve is frontier.curve else None
    headings: list[str] = [*shown]
    headings += ["gap"] if curve.gap > LEAST_GAP else []
    headings += ["one selection"] if single is not None else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in headings:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("changes", overflow="fold")
    for point, changed in with_changes(curve):
        cells = [TEXTS[figure](point.figures[figure]) if figure in point.figures else "" for figure in shown]
        if point.plan is not None:
            cells += [f"{point.gap:.2%}"] if curve.gap > LEAST_GAP else []
            corner = None if single is None else single.at_least(point.x)
            cells += [] if corner is None else [TEXTS[Figure.COST](corner.cost_usd_per_h)]
        cells += [""] * (len(headings) - len(cells))
        table.add_row(*cells, Text("\n").join(_described(frontier, curve, point, changed)))
    return table


def _described(frontier: Frontier, curve: Curve, point: CurvePoint, changed: Sequence[OperatorChange]) -> list[Text]:
    if point.plan is None:
        return [Text(("no plan: " if point.finished else "not known: ") + "; ".join(point.reasons), BAD)]
    mark = "highest feasible rate" if curve is frontier.rates and point.x == curve.highest else ""
    if point is frontier.cheapest:
        other = "cheapest for the accuracy target; `jellybean plan` searches for a plan that meets all targets"
        mark = "the plan of `jellybean plan`" if point is frontier.chosen else other
    lines = [Text(mark, f"bold {GOOD}")] if mark else []
    lines += [Text(f"misses a target: {breach.split(' (')[0]}", BAD) for breach in point.breaches]
    lines += [Text(str(change), "" if change.variant_changed else "dim") for change in changed[:MAX_CHANGES]]
    if len(changed) > MAX_CHANGES:
        lines.append(Text(f"and {len(changed) - MAX_CHANGES} more operators (--json has all)", "dim"))
    return lines or [Text("only rates" if curve.x is Figure.RATE else "the same plan", "dim")]


def to_json(frontier: Frontier) -> dict[str, Any]:
    """The curves as JSON values; plans are given by hash, selection and placements."""
    moved, curve, rates = frontier.moved, frontier.curve, frontier.rates
    document = {"name": moved.problem.name, "slo": json_values(moved.problem.slo), **_curve_json(frontier, curve)}
    if curve.step is not None:
        document["corners"] = document.pop("points")
    single = () if frontier.single is None else frontier.single.points
    return {
        **document,
        "highest_bound": curve.highest,
        "one_selection": [
            {"accuracy": one.x, "cost_usd_per_h": one.cost_usd_per_h, "bound_usd_per_h": one.bound_usd_per_h}
            for one in single
        ],
        "workflows": list(moved.workflows),
        "rates": None if rates is None else {**_curve_json(frontier, rates), "highest_scale": rates.highest},
        "current": None if frontier.current is None else json_values(frontier.current),
        "notes": list(frontier.notes),
        "elapsed_s": frontier.elapsed_s,
    }


def _curve_json(frontier: Frontier, curve: Curve) -> dict[str, Any]:
    return {
        "x": curve.x,
        "y": curve.y,
        "points": [_point_json(frontier, curve, point, changed) for point, changed in with_changes(curve)],
        "exact": curve.exact,
        "finished": curve.finished,
        "step": curve.step or None,
        "ended": list(curve.ended),
    }


def _point_json(
    frontier: Frontier, curve: Curve, point: CurvePoint, changed: Sequence[OperatorChange]
) -> dict[str, Any]:
    plan = point.plan
    document = {
        **json_values(point.figures),
        "feasible": plan is not None if point.finished else None,
        "breaches": list(point.breaches),
        "reasons": list(point.reasons),
        "chosen": point is frontier.chosen,
        "options": list(point.options),
        "changes": json_values(changed),
    }
    if curve is frontier.rates:
        rates = {one.name: one.rate_per_s for one in frontier.moved.scaled(frontier.moved.problem, point.x).sources}
        document |= {"scale": point.x, "rate_per_s": rates, "highest": point.x == curve.highest}
    else:
        document["fixed"] = point.x
    if frontier.single is not None and curve is frontier.curve:
        document["target"] = point.start
    if plan is None:
        unknown = dict.fromkeys(("cost_usd_per_h", "gap", "bound_usd_per_h"))
        return {**document, **unknown, "selection": {}, "placements": []}
    if plan.mixes:
        document["selections"] = selections_json(plan)
    return {
        **document,
        "cost_usd_per_h": {part: getattr(plan.cost, f"{part}_usd_per_h") for part in ("total", "compute", "network")},
        "gap": point.gap,
        "bound_usd_per_h": point.bound_usd_per_h,
        "hash": to_document(plan)["hash"],
        "selection": dict(plan.selection),
        "placements": json_values(plan.placements),
    }


def save_plans(frontier: Frontier, folder: Path) -> tuple[Path, ...]:
    """Write the plan document of each point of the curves; returns the paths in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    points = [(curve.x, point) for curve in frontier.curves for point in curve.points]
    plans = {folder / f"{x}-{point.figures[x]:.10g}.json": point.plan for x, point in points if point.plan is not None}
    for path, plan in plans.items():
        write_plan_file(path, to_document(plan))
    return tuple(plans)


def _indented(parts: Sequence[RenderableType]) -> Padding:
    return Padding.indent(Group(*parts), 2)
