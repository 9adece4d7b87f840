"""The text of a plan: cost and proof, placements, p99 latencies, and comparison with the baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import GOOD, WARN
from jellybean.documents import override_options
from jellybean.documents.cascades.cascade import FIRST, THEN, part_name
from jellybean.planning.cascades import planned_cascades
from jellybean.planning.predicted_latency import Judged
from jellybean.planning.simulation import load_by_link
from jellybean.planning.soft_targets import planned_late_p99_s
from jellybean.report.plans.audit_view import audit_lines
from jellybean.report.plans.proof import proof
from jellybean.report.plans.selections import selection_lines
from jellybean.report.plans.workflows_summary import (
    MOST_NAMED,
    admission_lines,
    is_summarised,
    noun,
    summary,
)
from jellybean_solver import (
    CLOSED_FORM_RATIO,
    CPU,
    LossKind,
    Objective,
    Placement,
    Plan,
    Problem,
    Slo,
    amount_text,
    distinct_usd,
    head_name,
    losses,
    planned_cuts,
    served_shares,
    unqueued_and_hops_s,
)

MAX_RANGES = 3
MOST_LISTED = 6  # losses, or workflows that are alike, that are named in a line
MOSTLY_HOPS = 0.5  # share of a request's time above which hops are said to decide its latency
LEAST_ROOM = 0.01  # share of the rates: room below it is not told
SAME_COST = 0.001  # relative difference below which two costs are said to be the same


def plan_text(
    plan: Plan,
    solve_s: float | None = None,
    baselines: Sequence[tuple[str, float | None, str]] = (),
    latencies: Sequence[str] = (),
) -> RenderableType:
    """Text of a plan. `baselines`: (name, USD/h or None if infeasible, why the baseline is not a valid plan).

    `solve_s`: time of the search. `latencies`: lines about the plan's p99 latencies.
    """
    parts: list[RenderableType] = [plan_line(plan, solve_s)]
    parts += [Padding(Text(line, WARN), (0, 0, 0, 2), expand=False) for line in stale_lines(plan)]
    if is_summarised(plan):
        parts += [Padding(part, (0, 0, 0, 2), expand=False) for part in summary(plan)]
    else:
        tables = [_workflows(plan), _placements(plan)] if plan.workflows else [_placements(plan)]
        parts += [Padding(table, (0, 0, 0, 2), expand=False) for table in tables]
    main = (*admission_lines(plan), *latencies, *audit_lines(plan))
    parts += [Padding(Text(line), (0, 0, 0, 2), expand=False) for line in main]
    parts_of_models = (*cascade_lines(plan), *cut_lines(plan))
    notes = (
        *margin_lines(plan),
        *survival_lines(plan),
        *selection_lines(plan),
        *spread_lines(plan),
        *parts_of_models,
        *hop_lines(plan),
        *option_lines(plan),
    )
    parts += [Padding(Text(line, "dim"), (0, 0, 0, 2), expand=False) for line in notes]
    if plan.sites:
        note = "all sites have the same plan: workers and load are per site, the rate is the total"
        parts.append(Padding(Text(note, "dim"), (0, 0, 0, 2), expand=False))
    if baselines:
        parts.append(Padding(comparison(plan.cost.total_usd_per_h, baselines), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def p99_lines(judged: Judged) -> Iterator[str]:
    """One line per p99 target: the predicted p99 with its interval, and the closed form with its measured error.

    Of many workflows only those nearest to their targets.
    """
    closed, (low, high) = judged.closed_form_s, CLOSED_FORM_RATIO
    nearest = sorted(judged.p99, key=lambda name: -judged.p99[name].p99_s / judged.targets_s[name])
    shown = nearest[:MOST_NAMED] if is_summarised(judged.plan) else list(judged.p99)
    for name in shown:
        p99 = judged.p99[name]
        of, target = f" of {name}" if name else "", _target_text(judged, name)
        made = formats.count(p99.simulations, "simulation")
        made += "" if p99.complete else f" of {p99.requests:,} requests or fewer, no more for lack of time"
        if not p99.simulations:
            made = "the closed form, as there was no time for a simulation"
        estimate = (
            f"closed form {formats.duration(closed[name])}, {low:g} to {high:g} times the simulated in benchmarks"
        )
        yield (
            f"p99 latency{of} {formats.interval(p99.p99_s, p99.low_s, p99.high_s)} {target} ({made}; "
            f"{estimate if math.isfinite(closed[name]) else 'no closed form: a queue has no spare capacity'})"
        )
    if len(shown) < len(judged.p99):
        yield f"the other {formats.count(len(judged.p99) - len(shown), noun(judged.plan))}: further below their targets"


def _target_text(judged: Judged, name: str) -> str:
    """The p99 target of a workflow; a soft one with what the p99 counts where it exceeds it."""
    target = formats.duration(judged.targets_s[name])
    penalty = judged.penalties_usd_per_h.get(name)
    if penalty is None:
        return f"<= {target}" if judged.p99[name].p99_s <= judged.targets_s[name] else f"> {target}: missed"
    return f"> {target}, soft: counts {formats.usd(penalty)} USD/h" if penalty else f"<= {target}, soft"


def stale_lines(plan: Plan) -> tuple[str, ...]:
    """One line per change since the profiles were measured that the plan does not know: its figures may be wrong."""
    return tuple(f"planned with stale profiles: {text}" for text in plan.stale_profiles)


def hop_lines(plan: Plan) -> tuple[str, ...]:
    """One line if messages between processes take most of a request's time; none otherwise."""
    total_s, hops_s = unqueued_and_hops_s(plan)
    if hops_s <= MOSTLY_HOPS * total_s:
        return ()
    return (
        f"messages between processes take {formats.duration(hops_s)} of the {formats.duration(total_s)} of a request "
        f"on the most used route with zero queueing delay: hop, {formats.duration(plan.hop_s)} each, decides its "
        "latency",
    )


def margin_lines(plan: Plan) -> tuple[str, ...]:
    """One line: by how much times or rates may be higher until a worker or link is full, and the margin of targets.

    None where there is no room and no margin.
    """
    margin = plan.margin
    cap = plan.utilisation * margin.work
    busiest = max(plan.workers, key=lambda worker: worker.load, default=None)
    if busiest is None or busiest.load <= 0:
        return ()
    times = cap / busiest.load
    links = load_by_link(plan)
    fullest = max(links, key=links.__getitem__, default=None)
    rates, where = times, busiest.name
    if fullest is not None and links[fullest] * times > 1.0:
        rates, where = 1.0 / links[fullest], " -> ".join(fullest)
    stated = f"; all targets hold with {margin.text}" if margin.text else ""
    if rates < 1.0 + LEAST_ROOM and not stated:
        return ()
    longer = f"times up to {_more(times)} ({busiest.name} is then busy {cap:g} of the time)"
    return (f"workers and links suffice for rates up to {_more(rates)} ({where}), or {longer}{stated}",)


def _more(factor: float) -> str:
    """How much more a factor is: `+25 %`."""
    return f"+{max(0.0, 100.0 * (factor - 1.0)):.3g} %"


def survival_lines(plan: Plan) -> tuple[str, ...]:
    """What workflows survive, or what is left of them, alike ones in a line; and whether losses need other routes."""
    shares = served_shares(plan)
    if not plan.survives:
        return ()
    alike: dict[str, list[str]] = {}
    for name, slo in plan.slo_by_workflow.items():
        own = [share.get(name, 0.0) for share in shares.values()]
        text = _survival_text(plan, slo.survives) if slo.survives else _left_text(own)
        alike.setdefault(text, []).append(name)
    lines = [f"{_named(names)}{text}" for text, names in alike.items()]
    if others := [one.lost for one in plan.fallbacks if one.weights]:
        lines.append(f"fallbacks, other shares of the routes: without {_shortened(others, 'losses')}")
    return tuple(lines)


def _named(names: Sequence[str]) -> str:
    """The workflows that a line is about; empty for the only one."""
    return f"{_shortened(names, 'in all')}: " if any(names) else ""


def _shortened(texts: Sequence[str], what: str) -> str:
    """The texts, the first few of many, with their number."""
    shown = ", ".join(texts[:MOST_LISTED])
    return shown if len(texts) <= MOST_LISTED else f"{shown}, ... ({len(texts)} {what})"


def _left_text(shares: Sequence[float]) -> str:
    least, most = (f"{100.0 * share:.3g} %" for share in (min(shares, default=1.0), max(shares, default=1.0)))
    part = least if least == most else f"{least} to {most}"
    return f"gets what is left: {part} of its requests are then answered, and the others refused"


def _survival_text(plan: Plan, kinds: Sequence[LossKind]) -> str:
    found = losses(plan, kinds)
    workers = sum(loss.kind is LossKind.WORKER for loss in found)
    spot = "" if LossKind.WORKER in kinds else "spot "
    lost = [f"one of its {workers} {spot}workers"] if workers else []
    if places := [str(loss) for loss in found if loss.kind is not LossKind.WORKER]:
        lost.append(_shortened(places, "sites and links"))
    busy = f"no worker is then busy more than {plan.utilisation:g} of the time"
    return f"any of these may be lost: {', '.join(lost)}; {busy}" if lost else "nothing that may be lost is used"


def reserved_text(problem: Problem) -> str:
    """What reserved workers cost beside any plan; empty without them."""
    if not problem.paid_usd_per_h:
        return ""
    pools = ", ".join(f"{pool.count} {pool.name}" for pool in problem.pools if pool.paid_usd_per_h)
    return f"beside the plan {formats.usd(problem.paid_usd_per_h)} USD/h for reserved workers, used or not: {pools}"


def option_lines(plan: Plan) -> tuple[str, ...]:
    """The `--set` options that the plan was made with, in one line; none without."""
    return (f"planned with{override_options(plan.overrides)}",) if plan.overrides else ()


def cut_lines(plan: Plan) -> tuple[str, ...]:
    """One line per cut model: `answer is cut: first 7 of big's 12 layers in edge, the rest in cloud, ...`."""
    return tuple(
        f"{cut.operator} is cut: first {cut.layers} of {cut.variant}'s {cut.of} layers in "
        f"{_tiers(plan, head_name(cut.operator))}, the rest in {_tiers(plan, cut.operator)}, "
        f"{formats.size(cut.crossing_bytes)} between them"
        for cut in planned_cuts(plan)
    )


def cascade_lines(plan: Plan) -> Iterator[str]:
    """One line per cascade: `read is a cascade: small first, in edge; wide for 20 %, in cloud (scores < 0.8)`."""
    for cascade in planned_cascades(plan):
        first, then = (_tiers(plan, part_name(cascade.operator, part)) for part in (FIRST, THEN))
        when = f" ({cascade.when})" if cascade.when else ""
        yield (
            f"{cascade.operator} is a cascade: {cascade.first} first, in {first}; then {cascade.then} for "
            f"{formats.percent(cascade.passed_on)}, in {then}{when}"
        )


def spread_lines(plan: Plan) -> Iterator[str]:
    """One line if the children of a request are spread over identical workers."""
    if plan.spread:
        groups = ", ".join(f"{name} ({' + '.join(str(len(one)) for one in own)})" for name, own in plan.spread.items())
        yield f"the children of a request are spread round-robin over identical workers: {groups}"


def _tiers(plan: Plan, operator: str) -> str:
    return " and ".join(dict.fromkeys(place.tier for place in plan.placements if place.operator == operator))


def plan_line(plan: Plan, solve_s: float | None = None) -> Text:
    """One line: cost, accuracy with its target, and proof of optimality."""
    cost = plan.cost
    text = Text.assemble(
        (plan.name, "bold"),
        ": ",
        (f"{formats.usd(cost.total_usd_per_h)} USD/h", "bold"),
        f" (compute {formats.usd(cost.compute_usd_per_h)}, network {formats.usd(cost.network_usd_per_h)})",
        uses_text(plan),
    )
    if plan.accuracy is not None:
        text.append(f", {'mean ' if plan.mixes else ''}accuracy {formats.accuracy(plan.accuracy)}")
        text.append(_beside_target(plan.slo, plan.accuracy))
    elif plan.certificate.objective_of is Objective.MEAN_ACCURACY:
        text.append(f", {formats.accuracy(plan.mean_accuracy)} in the mean of the workflows")
    if (p99_s := planned_late_p99_s(plan)) is not None:
        counts = formats.usd(plan.late_usd_per_h)
        target = formats.duration(plan.slo.soft_latency_p99_s)
        text.append(f", p99 latency {formats.duration(p99_s)} (soft target {target}: counts {counts} USD/h)")
    elif penalty := plan.late_usd_per_h:
        text.append(f", p99 latencies above soft targets count {formats.usd(penalty)} USD/h")
    text.append(f", {proof(plan)}")
    if solve_s is not None:
        text.append(f" in {solve_s:.2f} s")
    return text


def uses_text(plan: Plan) -> str:
    """What the plan uses beside money, each after a comma."""
    return "".join(f", {name} {amount_text(name, amount)}" for name, amount in plan.uses.items())


def _beside_target(slo: Slo, accuracy: float | None) -> str:
    """Text after an accuracy: its target, and what it counts if that is soft and missed; empty without a target."""
    target, penalty = slo.accuracy_of_plan, slo.penalty(accuracy)
    if slo.penalty_usd_per_h is not None and not penalty:
        return f" >= {formats.plain(slo.mean_accuracy)}, soft"
    text = "" if target is None else f" >= {formats.plain(target)}"
    if penalty:
        text += f" (soft target {formats.plain(slo.mean_accuracy)}: counts {formats.usd(penalty)} USD/h)"
    return text


def _workflows(plan: Plan) -> Table:
    """Table of each workflow's share of the cost and its accuracy."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("workflow", overflow="fold")
    for heading in ("USD/h", "compute", "network"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("accuracy", no_wrap=True)
    for workflow in plan.workflows:
        cost, mean = workflow.cost, "mean " if workflow.slo.mean_accuracy is not None else ""
        table.add_row(
            Text(workflow.name),
            formats.usd(cost.total_usd_per_h),
            formats.usd(cost.compute_usd_per_h),
            formats.usd(cost.network_usd_per_h),
            f"{mean}{formats.accuracy(workflow.accuracy)}{_beside_target(workflow.slo, workflow.accuracy)}",
        )
    return table


def where(plan: Plan, placement: Placement) -> str:
    """Workers of a placement: `edge: cpu-1..3`, or with sites `1,000 x store: box-1`."""
    prefix = f"{placement.pool}-"
    numbers = [
        int(worker.name.removeprefix(prefix))
        for worker in plan.workers
        if worker.pool == placement.pool
        and placement.operator in worker.rates_per_s
        and worker.variants.get(placement.operator, placement.variant) == placement.variant
    ]
    ranges, tier = _ranges(sorted(numbers)), formats.tier(placement.tier, plan.sites)
    device = next(worker.device for worker in plan.workers if worker.pool == placement.pool)
    on = "" if device == CPU else f" on {device}"
    if len(ranges) > MAX_RANGES:
        return f"{tier}: {placement.pool} x {placement.count}{on}"
    return f"{tier}: {placement.pool}-{','.join(ranges)}{on}"


def comparison(cost_usd_per_h: float, baselines: Sequence[tuple[str, float | None, str]]) -> Text:
    """Lines of text: savings against the baselines, then baselines that are not valid plans, then infeasible ones."""
    lines: list[Text] = []
    for name, cost, note in baselines:
        if cost is None or note:
            continue
        lines.append(_saving(cost_usd_per_h, name, cost))
    for name, cost, note in baselines:
        if cost is not None and note:
            lines.append(Text(f"{name} ({formats.usd(cost)}) is not a valid plan: {note}", "dim"))
    for name, cost, note in baselines:
        if cost is None:
            lines.append(Text(f"{name}: {note or 'infeasible'}", "dim"))
    return Text("\n").join(lines)


def _saving(cost_usd_per_h: float, name: str, cost: float) -> Text:
    """A baseline's line: what the plan saves against it, or that both cost the same to 0.1 %."""
    saved = 1 - cost_usd_per_h / cost if cost > 0 else 0.0
    if abs(saved) < SAME_COST:
        return Text(f"costs the same as {name} ({formats.usd(cost)}), to {formats.plain(100 * SAME_COST)} %", "dim")
    shown = f"{saved * 100:3.0f} %" if abs(saved) >= 0.005 else f"{saved * 100:.1f} %"
    line = Text.assemble(("saves ", "dim"), (shown, GOOD if saved >= 0.005 else "dim"))
    return line.append(f" against {name} ({distinct_usd(cost_usd_per_h, cost)[1]})")


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
        before = ""
        for index, placement in enumerate(group):
            table.add_row(
                Text(name if index == 0 else ""),
                Text(placement.variant if index == 0 or placement.variant != before else ""),
                Text(where(plan, placement)),
                *([f"{placement.batch}"] if batches else []),
                f"{placement.rate_per_s:.1f}",
                formats.load(placement.load),
            )
            before = placement.variant
    return table


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Merge consecutive numbers into ranges: 1, 2, 3, 5 gives `1..3` and `5`."""
    ranges: list[str] = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        ranges.append(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}")
    return ranges
