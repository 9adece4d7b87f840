"""The curves as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, WARN
from jellybean.frontier.changes import OperatorChange, changes
from jellybean.frontier.find import Frontier
from jellybean.frontier.mixed_view import mixed_answer, mixed_json, mixed_table, single_json
from jellybean.planning.mixing import selections_json
from jellybean_solver import (
    ACCURACY_TOLERANCE,
    CostRate,
    MixedPoint,
    Plan,
    Problem,
    Termination,
    json_values,
    to_document,
)

MAX_CHANGES = 8  # lines per point in the table; JSON has all changes


def frontier_text(frontier: Frontier) -> RenderableType:
    """Terminal text: summary, points with their changes, and why the curve ends."""
    if not frontier.points:
        parts: list[RenderableType] = [Text.assemble((frontier.problem.name, "bold"), ": no plan was found")]
    elif frontier.mixed is not None:
        parts = [mixed_answer(frontier, frontier.mixed), mixed_table(frontier, frontier.mixed)]
    else:
        parts = [_answer(frontier), _indented(_corners(frontier))]
    parts += _notes(frontier)
    if frontier.rates is not None:
        parts += _rates(frontier.problem, frontier.rates)
    return Group(*parts)


def to_json(frontier: Frontier) -> dict[str, Any]:
    """The curves as JSON values; plans are given by hash, selection and placements."""
    slo, current, chosen, points = frontier.problem.slo, frontier.current, frontier.chosen, frontier.points
    curve, mixed = frontier.accuracy, frontier.mixed
    step = curve.step if mixed is None else mixed.step
    return {
        "name": frontier.problem.name,
        "slo": json_values(slo),
        "corners": [
            {
                "accuracy": corner.accuracy,
                **_point(corner.plan, corner.bound_usd_per_h, corner.gap),
                **(mixed_json(corner) if isinstance(corner, MixedPoint) else {}),
                "breaches": list(corner.breaches),
                "chosen": corner is chosen,
                "changes": [json_values(change) for change in changes(before.plan if before else None, corner.plan)],
            }
            for before, corner in zip((None, *points), points, strict=False)
        ],
        **({} if mixed is None else {"highest_bound": mixed.highest_bound, "one_selection": single_json(curve)}),
        "exact": curve.exact if mixed is None else False,
        "finished": curve.finished if mixed is None else mixed.finished,
        "step": step if step > ACCURACY_TOLERANCE else None,
        "ended": list(frontier.ended),
        **({"workflows": list(frontier.moved.workflows)} if frontier.moved.workflows else {}),
        "rates": None if frontier.rates is None else _rates_json(frontier.problem, frontier.rates),
        "current": None if current is None else json_values(current),
        "notes": list(frontier.notes),
        "elapsed_s": frontier.elapsed_s,
    }


def _point(plan: Plan | None, bound: float, gap: float | None) -> dict[str, Any]:
    if plan is None:
        return {"cost_usd_per_h": None, "gap": None, "bound_usd_per_h": None, "selection": {}, "placements": []}
    cost = plan.cost
    return {
        "cost_usd_per_h": {
            "total": cost.total_usd_per_h,
            "compute": cost.compute_usd_per_h,
            "network": cost.network_usd_per_h,
        },
        "gap": gap,
        "bound_usd_per_h": bound,
        "hash": to_document(plan)["hash"],
        "selection": dict(plan.selection),
        "placements": [json_values(placement) for placement in plan.placements],
    }


def _rates_json(problem: Problem, curve: CostRate) -> dict[str, Any]:
    return {
        "points": [
            {
                "scale": point.scale,
                "rate_per_s": {source.name: source.rate_per_s * point.scale for source in problem.sources},
                "feasible": point.plan is not None if point.finished else None,
                **_point(point.plan, point.bound_usd_per_h, point.gap),
                "accuracy": None if point.plan is None else point.plan.accuracy,
                **({"selections": selections_json(point.plan)} if point.plan is not None and point.plan.mixes else {}),
                "breaches": list(point.breaches),
                "reasons": list(point.reasons),
                "highest": point.scale == curve.highest_scale,
            }
            for point in curve.points
        ],
        "highest_scale": curve.highest_scale,
        "exact": curve.exact,
        "ended": list(curve.ended),
    }


def _answer(frontier: Frontier) -> Text:
    curve, corners = frontier.accuracy, frontier.accuracy.corners
    first, last = corners[0], corners[-1]
    proof = "not proven optimal: time limits were reached"
    if curve.finished and all(corner.plan.certificate.termination != Termination.TIME_LIMIT for corner in corners):
        proof = f"not proven optimal, gaps of at most {max(corner.gap for corner in corners):.2%}"
    if curve.proven:
        proof = "exact" if curve.exact else f"proven optimal, with steps of at least {formats.plain(curve.step)}"
    return Text.assemble(
        (frontier.problem.name, "bold"),
        f": {len(corners)} {'point' if len(corners) == 1 else 'points'}, from ",
        (f"{formats.usd(first.cost_usd_per_h)} USD/h", "bold"),
        f" at accuracy{frontier.of} {formats.accuracy(first.accuracy)} to ",
        (f"{formats.usd(last.cost_usd_per_h)} USD/h", "bold"),
        f" at {formats.accuracy(last.accuracy)}; {proof}, in {frontier.elapsed_s:.2f} s",
    )


def _corners(frontier: Frontier) -> Table:
    corners = frontier.accuracy.corners
    table = _table("accuracy", "USD/h", "increase", gaps=not frontier.accuracy.proven)
    for before, corner in zip((None, *corners), corners, strict=False):
        more = "" if before is None else f"+{formats.usd(corner.cost_usd_per_h - before.cost_usd_per_h)}"
        figures = [formats.accuracy(corner.accuracy), formats.usd(corner.cost_usd_per_h), more]
        if not frontier.accuracy.proven:
            figures.append(f"{corner.gap:.1%}")
        changed = changes(before.plan if before is not None else None, corner.plan)
        mark = ""
        if corner is frontier.cheapest:
            target = frontier.target
            mark = "cheapest" if target is None else f"cheapest for the SLO of {formats.plain(target)}"
            mark += "" if corner is frontier.chosen else " (`jellybean plan` finds one that meets all targets)"
        table.add_row(*figures, _described(changed, mark, corner.breaches))
    return table


def _rates(problem: Problem, curve: CostRate) -> Iterator[RenderableType]:
    source = problem.sources[0]
    target = accuracy_text(problem)
    text = Text.assemble(
        "\ncost by rate", (target, "bold"), f" ({source.name}{problem.in_each(source.tier)}; all sources scaled)"
    )
    if curve.highest_scale is not None:
        text.append(f"; feasible up to {formats.rate(source.rate_per_s * curve.highest_scale)}")
    yield text
    gaps = not curve.exact
    table = _table("rate", "factor", "USD/h", gaps=gaps)
    before: Plan | None = None
    for point in curve.points:
        figures = [
            formats.rate(source.rate_per_s * point.scale),
            formats.plain(point.scale),
            formats.usd(point.cost_usd_per_h),
        ]
        if gaps:
            figures.append("" if point.gap is None else f"{point.gap:.1%}")
        if point.plan is None:
            table.add_row(*figures, Text("no plan: " + "; ".join(point.reasons), BAD))
            continue
        mark = "highest feasible rate" if point.scale == curve.highest_scale else ""
        table.add_row(*figures, _described(changes(before, point.plan), mark, point.breaches))
        before = point.plan
    yield _indented(table)
    if curve.highest_scale is None or all(point.plan is not None for point in curve.points):
        yield _indented(Text("above that: " + "; ".join(curve.ended), "dim"))


def accuracy_text(problem: Problem) -> str:
    """The accuracy target of a curve by rate: ` at accuracy 57`, ` at a mean of 57`; empty without one."""
    slo = problem.slo
    if slo.mean_accuracy is not None:
        soft = "soft " if slo.penalty_usd_per_h is not None else ""
        return f" at a {soft}mean of {formats.plain(slo.mean_accuracy)}"
    return "" if slo.accuracy is None else f" at accuracy {formats.plain(slo.accuracy)}"


def _table(*figures: str, gaps: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in (*figures, *(("gap",) if gaps else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("changes", overflow="fold")
    return table


def _described(changed: Sequence[OperatorChange], mark: str, breaches: Sequence[str]) -> Text:
    lines = [Text(str(change), "" if change.variant_changed else "dim") for change in changed[:MAX_CHANGES]]
    if len(changed) > MAX_CHANGES:
        lines.append(Text(f"and {len(changed) - MAX_CHANGES} more operators (--json has all)", "dim"))
    marks = [Text(mark, f"bold {GOOD}")] if mark else []
    broken = [Text(f"misses a target: {breach.split(' (')[0]}", BAD) for breach in breaches]
    return Text("\n").join(chain(marks, broken, lines)) if marks or broken or lines else Text("only rates", "dim")


def _notes(frontier: Frontier) -> Iterator[RenderableType]:
    yield _indented(Text("end of the curve: " + "; ".join(frontier.ended), "dim"))
    if any(corner.breaches for corner in frontier.points):
        note = "no cheaper plan is as accurate; plans that cost more were not searched"
        yield _indented(Text(f"for points that miss a target: {note}", "dim"))
    current = frontier.current
    if current is not None:
        cost = formats.usd(current.cost_usd_per_h)
        where = f"current plan: accuracy {formats.accuracy(current.accuracy)}, {cost} USD/h"
        if current.dearer_usd_per_h is not None:
            excess = current.dearer_usd_per_h
            on_curve = abs(excess) <= 1e-6 * max(1.0, current.cost_usd_per_h)
            side = "above" if excess > 0 else "below"
            where += ", on the curve" if on_curve else f", {formats.usd(abs(excess))} USD/h {side} the curve"
        yield _indented(Text(where))
    for note in frontier.notes:
        yield _indented(Text(note, WARN))


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)
