"""What `jellybean plan` prints: the answer, then why, then what it beat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import figures as units
from jellybean_solver import Placement, Plan, Termination, head_name, planned_cuts

MAX_RANGES = 3


def plan_text(
    plan: Plan,
    solve_s: float | None = None,
    baselines: Sequence[tuple[str, float | None, str]] = (),
    latencies: Sequence[str] = (),
) -> RenderableType:
    """A compact view of a plan. `baselines` as (name, USD/h or None when infeasible, why it is no answer).

    `latencies`: lines on the p99 that it keeps.
    """
    parts: list[RenderableType] = [answer(plan, solve_s)]
    if plan.workflows:
        parts.append(Padding(_workflows(plan), (0, 0, 0, 2), expand=False))
    parts.append(Padding(_placements(plan), (0, 0, 0, 2), expand=False))
    parts += [Padding(Text(told), (0, 0, 0, 2), expand=False) for told in latencies]
    parts += [Padding(Text(told, "dim"), (0, 0, 0, 2), expand=False) for told in cut_lines(plan)]
    if plan.sites:
        told = "sites are planned alike: workers and load of each, rate of all together"
        parts.append(Padding(Text(told, "dim"), (0, 0, 0, 2), expand=False))
    if baselines:
        parts.append(Padding(comparison(plan.cost.total_usd_per_h, baselines), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def cut_lines(plan: Plan) -> tuple[str, ...]:
    """`answer is cut: first 7 of big's 12 layers at the edge, 49 KiB across`, for each model that is."""
    return tuple(
        f"{cut.operator} is cut: first {cut.layers} of {cut.variant}'s {cut.of} layers in "
        f"{_tiers(plan, head_name(cut.operator))}, the rest in {_tiers(plan, cut.operator)}, "
        f"{units.size(cut.crossing_bytes)} across"
        for cut in planned_cuts(plan)
    )


def _tiers(plan: Plan, operator: str) -> str:
    return " and ".join(dict.fromkeys(place.tier for place in plan.placements if place.operator == operator))


def answer(plan: Plan, solve_s: float | None = None) -> Text:
    """One line: cost, accuracy against its target, and the proof."""
    cost = plan.cost
    text = Text.assemble(
        (plan.name, "bold"),
        ": ",
        (f"{units.usd(cost.total_usd_per_h)} USD/h", "bold"),
        f" (compute {units.usd(cost.compute_usd_per_h)}, network {units.usd(cost.network_usd_per_h)})",
    )
    if plan.accuracy is not None:
        text.append(f", accuracy {units.accuracy(plan.accuracy)}")
        if plan.slo.accuracy is not None:
            text.append(f" >= {units.plain(plan.slo.accuracy)}")
    text.append(f", {proof(plan)}")
    if solve_s is not None:
        text.append(f" in {solve_s:.2f} s")
    return text


def _workflows(plan: Plan) -> Table:
    """Each workflow's part of the cost, and what it reaches."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("workflow", overflow="fold")
    for heading in ("USD/h", "compute", "network"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("accuracy", no_wrap=True)
    for workflow in plan.workflows:
        cost, target = workflow.cost, workflow.slo.accuracy
        asked = "" if target is None else f" >= {units.plain(target)}"
        table.add_row(
            Text(workflow.name),
            units.usd(cost.total_usd_per_h),
            units.usd(cost.compute_usd_per_h),
            units.usd(cost.network_usd_per_h),
            f"{units.accuracy(workflow.accuracy)}{asked}",
        )
    return table


def proof(plan: Plan) -> str:
    """What the certificate says, in words."""
    certificate = plan.certificate
    if certificate.is_optimal:
        return "proven optimal"
    stopped = " (time limit)" if certificate.termination == Termination.TIME_LIMIT else ""
    if certificate.bound <= 0:
        return f"nothing proven{stopped}"
    return f"gap {certificate.gap:.2%} to the proven bound{stopped}"


def where(plan: Plan, placement: Placement) -> str:
    """`edge: cpu-1..3`: the workers of a pool that serve an operator; `1,000 x store: box-1` for one in each store."""
    prefix = f"{placement.pool}-"
    numbers = [
        int(worker.name.removeprefix(prefix))
        for worker in plan.workers
        if worker.pool == placement.pool and placement.operator in worker.rates_per_s
    ]
    ranges, tier = _ranges(sorted(numbers)), units.tier(placement.tier, plan.sites)
    if len(ranges) > MAX_RANGES:
        return f"{tier}: {placement.pool} x {placement.count}"
    return f"{tier}: {placement.pool}-{','.join(ranges)}"


def comparison(cost_usd_per_h: float, baselines: Sequence[tuple[str, float | None, str]]) -> Text:
    """What the plan saves against each baseline; a note says why a baseline is no answer."""
    lines: list[Text] = []
    for name, cost, note in baselines:
        if cost is None or note:
            continue
        saved = 1 - cost_usd_per_h / cost if cost > 0 else 0.0
        line = Text.assemble(("saves ", "dim"), (f"{saved * 100:3.0f} %", "green" if saved >= 0.005 else "dim"))
        lines.append(line.append(f" against {name} ({units.usd(cost)})"))
    for name, cost, note in baselines:
        if cost is not None and note:
            lines.append(Text(f"{name} ({units.usd(cost)}) is no answer: {note}", "dim"))
    for name, cost, note in baselines:
        if cost is None:
            lines.append(Text(f"{name}: {note or 'infeasible'}", "dim"))
    return Text("\n").join(lines)


def _placements(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("operator", "variant", "where"):
        table.add_column(heading, overflow="fold")
    batches = any(placement.batch > 1 for placement in plan.placements)
    if batches:
        table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("rate/s", justify="right", no_wrap=True)
    table.add_column("load", justify="right", no_wrap=True)
    for name, group in groupby(plan.placements, key=lambda placement: placement.operator):
        for index, placement in enumerate(group):
            table.add_row(
                Text(name if index == 0 else ""),
                Text(placement.variant if index == 0 else ""),
                Text(where(plan, placement)),
                *([f"{placement.batch}"] if batches else []),
                f"{placement.rate_per_s:.1f}",
                f"{placement.load:.2f}",
            )
    return table


def _ranges(numbers: Sequence[int]) -> list[str]:
    """1, 2, 3, 5 as 1..3 and 5."""
    found: list[str] = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}")
    return found
