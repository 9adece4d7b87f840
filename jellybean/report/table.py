"""The report as terminal tables."""

from __future__ import annotations

from itertools import groupby
from statistics import mean

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, LOAD, WARN
from jellybean.report.comparison import METRIC_BY_KEY, Comparison, ComparisonVerdict, SloState
from jellybean.report.plan_view import plan_text
from jellybean.report.report import HeadlineLevel, Report

BAR_CELLS = 20
WORKFLOW_FIGURES = ("accuracy", "throughput_per_s", "latency_p50_s", "latency_p99_s")
MAX_WORKERS = 12
STYLE = {
    HeadlineLevel.GOOD: GOOD,
    HeadlineLevel.WARNING: WARN,
    HeadlineLevel.BAD: BAD,
    HeadlineLevel.OPEN: "default",
}


def to_table(report: Report) -> RenderableType:
    """Plan, predicted and measured figures, targets, utilisation of the workers, and commands for missing figures."""
    baselines = [(item.name, item.cost_usd_per_h, item.note) for item in report.baselines]
    solve_s = report.planning.get("solve_s")
    parts: list[RenderableType] = [plan_text(report.plan, solve_s, baselines), "", _headline(report)]
    parts += [*(Text(f"  caveat: {text}", WARN) for text in report.caveats), ""]
    parts.append(Padding(_figures(report), (0, 0, 0, 2), expand=False))
    parts += [*map(_interval, filter(_has_interval, report.comparisons)), ""]
    if report.workflows:
        parts += [Padding(_workflows(report), (0, 0, 0, 2), expand=False), ""]
    parts += [Padding(_costs(report), (0, 0, 0, 2), expand=False), ""]
    parts.append(Padding(_workers(report), (0, 0, 0, 2), expand=False))
    if report.drift and (moved := [item for item in report.drift if item.verdict is not ComparisonVerdict.WITHIN]):
        parts.append("")
        for item in moved:
            metric = METRIC_BY_KEY[item.metric]
            earlier = f"{metric.show(item.earlier)} over {item.runs} earlier runs"
            parts.append(Text(f"  drift: {metric.label} {metric.show(item.latest)}, was {earlier}", WARN))
    if report.advice:
        parts.append("")
        parts += [Text(f"  {'next: ' if line.startswith('jellybean ') else ''}{line}") for line in report.advice]
    return Group(*parts)


def _headline(report: Report) -> Text:
    text = Text(report.headline.title, f"bold {STYLE[report.headline.level]}")
    return text.append(": " + "; ".join(report.headline.reasons), "not bold")


def _figures(report: Report) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("figure", no_wrap=True)
    for heading in ("predicted", "measured", "ratio", "tolerance"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("target")
    targets = {slo.metric: slo for slo in report.slos}
    for item in report.comparisons:
        metric = METRIC_BY_KEY[item.metric]
        target = ""
        if (slo := targets.get(item.metric)) is not None:
            state = slo.measured_state if slo.measured_state is not SloState.UNKNOWN else slo.predicted_state
            target = f"{'<=' if metric.lower_is_better else '>='} {metric.show(slo.target)} {state.value}"
        table.add_row(
            metric.label + (f" ({metric.unit})" if metric.unit in {"USD/h", "%"} else ""),
            metric.show(item.predicted),
            metric.show(item.measured),
            formats.MISSING if item.ratio is None else f"{item.ratio:.2f}",
            metric.shown_tolerance(),
            _verdict(item),
            Text(target, BAD if target.endswith("broken") else ""),
        )
    return table


def _has_interval(item: Comparison) -> bool:
    return item.predicted_between is not None


def _interval(item: Comparison) -> Text:
    """A line below the table, which has no room for intervals in a terminal of 80 columns."""
    return Text(f"  {METRIC_BY_KEY[item.metric].label} predicted: {item.shown_prediction}", "dim")


def _costs(report: Report) -> Table:
    """Table of the workers' cost by operator, and of the traffic between tiers; the rows add up to the plan's cost."""
    breakdown, total = report.breakdown, report.plan.cost.total_usd_per_h
    costs = [(share.name, share.usd_per_h) for share in breakdown.operators]
    traffic = [(breakdown.traffic.name, breakdown.traffic.usd_per_h)]
    costs += traffic if breakdown.traffic.usd_per_h > 0 else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("cost of", overflow="fold")
    table.add_column("USD/h", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for (name, cost), figure in zip(costs, formats.usd_column([cost for _, cost in costs]), strict=True):
        table.add_row(Text(name), figure, formats.percent(cost / total if total > 0 else None))
    return table


def _workflows(report: Report) -> Table:
    """Table of predicted figures and targets by workflow."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("workflow", overflow="fold")
    for key in WORKFLOW_FIGURES:
        table.add_column(METRIC_BY_KEY[key].label, justify="right", no_wrap=True)
    table.add_column("targets")
    for own in report.workflows:
        targets = [
            f"{metric.label} {'<=' if metric.lower_is_better else '>='} {metric.show(slo.target)} "
            f"{slo.predicted_state.value}"
            for slo in own.slos
            for metric in [METRIC_BY_KEY[slo.metric]]
        ]
        broken = any(slo.predicted_state is SloState.BROKEN for slo in own.slos)
        figures = [METRIC_BY_KEY[key].show(own.predicted.get(key)) for key in WORKFLOW_FIGURES]
        table.add_row(Text(own.name), *figures, Text(", ".join(targets), BAD if broken else ""))
    return table


def _verdict(item: Comparison) -> Text:
    if item.verdict is ComparisonVerdict.UNKNOWN:
        return Text("not measured" if item.measured is None else "not predicted", "dim")
    return Text(item.verdict.value, GOOD if item.verdict is ComparisonVerdict.WITHIN else WARN)


def _workers(report: Report) -> Table:
    """Table of the utilisation of each worker, or of each pool if there are many workers."""
    pools = len(report.workers) > MAX_WORKERS
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("pool" if pools else "worker", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    table.add_column("utilisation", no_wrap=True)
    planned = all(worker.expected == worker.load for worker in report.workers)
    for heading in ("planned" if planned else "predicted", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for key, members in groupby(report.workers, key=lambda worker: worker.pool if pools else worker.name):
        workers = list(members)
        expected = mean(worker.expected for worker in workers)
        known = [worker.measured for worker in workers if worker.measured is not None]
        measured = mean(known) if known else None
        cells = round(min(1.0, max(0.0, expected if measured is None else measured)) * BAR_CELLS)
        table.add_row(
            Text(f"{key} × {len(workers)}" if pools else key),
            Text(formats.tier(workers[0].tier, report.plan.sites)),
            Text.assemble(("━" * cells, LOAD), ("─" * (BAR_CELLS - cells), "dim")),
            formats.percent(expected),
            formats.percent(measured),
        )
    return table
