"""The report as terminal tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, LOAD, WARN
from jellybean.report.comparison import METRIC_BY_KEY, Comparison, ComparisonVerdict, SloState, soft_latency_text
from jellybean.report.headline import HeadlineLevel
from jellybean.report.plans.plan_view import plan_text
from jellybean.report.plans.workflows_summary import (
    MOST_NAMED,
    is_summarised,
    noun,
    operator_in_workflow,
    written_pool,
    written_tier,
)
from jellybean.report.report import Report, WorkflowUse
from jellybean.report.utilisation import TOLERANCE, WorkerUse

BAR_CELLS = 16
WORKFLOW_FIGURES = ("cost_usd_per_h", "accuracy", "throughput_per_s", "latency_p50_s", "latency_p99_s")
MAX_WORKERS = 12
UNBOUNDED = 10_000  # characters; more than any row of the table has
DEVIATIONS = (ComparisonVerdict.HIGHER, ComparisonVerdict.LOWER)
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
    parts += [*(_indented(Text(f"caveat: {text}", WARN)) for text in report.caveats), ""]
    parts += [_Figures(report), ""]
    if report.workflows:
        parts += [_indented(_workflows(report)), ""]
    parts += [_indented(_costs(report)), ""]
    parts.append(_indented(_workers(report)))
    parts += [_indented(Text(text, WARN)) for text in _deviations(report)]
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


@dataclass(frozen=True, slots=True)
class _Figures:
    """Table of predicted and measured figures; intervals and targets are below it where the terminal is too narrow."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for intervals, targets in ((True, True), (False, True), (False, False)):
            table = _indented(_figures(self.report, intervals=intervals, targets=targets))
            if Measurement.get(console, options.update(max_width=UNBOUNDED), table).maximum <= options.max_width:
                break
        yield table
        for item in self.report.comparisons:
            label = METRIC_BY_KEY[item.metric].label
            if not intervals and item.predicted_between is not None:
                yield Text(f"  {label} predicted: {item.shown_prediction}", "dim")
            if not targets and (target := _target(self.report, item)):
                yield Text(f"  {label}: ", "dim").append_text(target)


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)


def _figures(report: Report, *, intervals: bool, targets: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("figure", no_wrap=True)
    for heading in ("predicted", "measured", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tolerance", justify="right")  # long words are on two lines before a figure is cut off
    for heading in ("verdict", "target")[: 2 if targets else 1]:
        table.add_column(heading)
    for item in report.known_comparisons:
        metric = METRIC_BY_KEY[item.metric]
        table.add_row(
            metric.label + (f" ({metric.unit})" if metric.unit in {"USD/h", "%"} else ""),
            item.shown_prediction if intervals else item.shown_value,
            metric.show(item.measured),
            formats.MISSING if item.ratio is None else f"{item.ratio:.2f}",
            item.shown_tolerance,
            _verdict(item),
            *([_target(report, item)] if targets else []),
        )
    return table


def _target(report: Report, item: Comparison) -> Text:
    """The target of a figure and whether it is met; empty without one."""
    metric, found = METRIC_BY_KEY[item.metric], soft_latency_text(report.plan.slo, item)
    slo = next((slo for slo in report.slos if slo.metric == item.metric), None)
    if slo is not None:
        state = slo.measured_state if slo.measured_state is not SloState.UNKNOWN else slo.predicted_state
        found = f"{'<=' if metric.lower_is_better else '>='} {metric.show(slo.target)} {state.value}"
    return Text(found, BAD if found.endswith("broken") else "")


def _costs(report: Report) -> Table:
    """Table of the workers' cost by operator, and of the traffic between tiers; the rows add up to the plan's cost."""
    breakdown, total = report.breakdown, report.plan.cost.total_usd_per_h
    costs = _operator_costs(report)
    traffic = [(breakdown.traffic.name, breakdown.traffic.usd_per_h)]
    costs += traffic if breakdown.traffic.usd_per_h > 0 else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("cost of", overflow="fold")
    table.add_column("USD/h", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for (name, cost), figure in zip(costs, formats.usd_column([cost for _, cost in costs]), strict=True):
        table.add_row(Text(name), figure, formats.percent(cost / total if total > 0 else None))
    return table


def _operator_costs(report: Report) -> list[tuple[str, float]]:
    """The workers' cost by operator; with many workflows by operator of all sites, or by workflow."""
    shares = report.breakdown.operators
    if not is_summarised(report.plan):
        return [(share.name, share.usd_per_h) for share in shares]
    of_sites = noun(report.plan) == "site"
    costs: dict[str, float] = {}
    for share in shares:
        name = operator_in_workflow(share.name) if of_sites else report.plan.workflow_of(share.name)
        costs[name] = costs.get(name, 0.0) + share.usd_per_h
    return list(costs.items())


def _shown_workflows(report: Report) -> list[WorkflowUse]:
    """Each workflow; of many those that miss a target, or else the slowest ones."""
    if not is_summarised(report.plan):
        return list(report.workflows)
    broken = [own for own in report.workflows if any(slo.predicted_state is SloState.BROKEN for slo in own.slos)]
    slowest = sorted(report.workflows, key=lambda own: -(own.predicted.get("latency_p99_s") or 0.0))
    return (broken or slowest)[:MOST_NAMED]


def _workflows(report: Report) -> Table:
    """Table of predicted and measured figures and targets by workflow."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("workflow", overflow="fold")
    is_measured = any(own.measured for own in report.workflows)
    if is_measured:
        table.add_column("")
    for key in WORKFLOW_FIGURES:
        table.add_column(METRIC_BY_KEY[key].label, justify="right", no_wrap=True)
    table.add_column("targets")
    for own in _shown_workflows(report):
        targets = [
            f"{metric.label} {'<=' if metric.lower_is_better else '>='} {metric.show(slo.target)} {slo.state.value}"
            for slo in own.slos
            for metric in [METRIC_BY_KEY[slo.metric]]
        ]
        broken = any(slo.state is SloState.BROKEN for slo in own.slos)
        figures = [METRIC_BY_KEY[key].show(own.predicted.get(key)) for key in WORKFLOW_FIGURES]
        kind = [Text("predicted", "dim")] if is_measured else []
        table.add_row(Text(own.name), *kind, *figures, Text(", ".join(targets), BAD if broken else ""))
        if is_measured:
            table.add_row("", Text("measured", "dim"), *_measured_figures(own), "")
    return table


def _measured_figures(own: WorkflowUse) -> Iterator[Text]:
    """Measured figures of a workflow; those outside the tolerance of the prediction are marked."""
    found = {one.metric: one for one in own.comparisons}
    for key in WORKFLOW_FIGURES:
        is_off = found[key].verdict in DEVIATIONS
        yield Text(METRIC_BY_KEY[key].show(found[key].measured), WARN if is_off else "")


def _verdict(item: Comparison) -> Text:
    if item.verdict is ComparisonVerdict.UNKNOWN:
        return Text(item.unknown_reason, "dim")
    return _verdict_word(item.verdict)


def _verdict_word(verdict: ComparisonVerdict) -> Text:
    return Text(verdict.value, GOOD if verdict is ComparisonVerdict.WITHIN else WARN)


def _workers(report: Report) -> Table:
    """Table of the utilisation of each worker, or of each pool if there are many workers."""
    pools = len(report.workers) > MAX_WORKERS
    simulated = any(worker.simulated is not None for worker in report.workers)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("pool" if pools else "worker", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    table.add_column("utilisation", no_wrap=True)
    for heading in ("planned", *(["simulated"] if simulated else []), "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    members: dict[str, list[WorkerUse]] = {}
    for worker in report.workers:
        members.setdefault(written_pool(worker.pool) if pools else worker.name_with_device, []).append(worker)
    for key, workers in members.items():
        tier = workers[0].tier
        figures = [_mean(worker.load for worker in workers)]
        figures += [_mean(worker.simulated for worker in workers)] if simulated else []
        figures += [_mean(worker.measured for worker in workers)]
        shown = next(value for value in reversed(figures) if value is not None)
        cells = round(min(1.0, max(0.0, shown)) * BAR_CELLS)
        table.add_row(
            Text(f"{key} × {len(workers)}" if pools else key),
            Text(formats.tier(written_tier(tier) if pools else tier, report.plan.sites)),
            Text.assemble(("━" * cells, LOAD), ("─" * (BAR_CELLS - cells), "dim")),
            *map(formats.percent, figures),
            _workers_verdict(workers),
        )
    return table


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _workers_verdict(workers: Sequence[WorkerUse]) -> Text:
    """The verdict of one worker or of a pool: `2 of 16 higher` if some of its workers are not within the tolerance."""
    verdicts = {worker.verdict for worker in workers}
    if ComparisonVerdict.UNKNOWN in verdicts:
        return Text("not measured", "dim")
    if len(verdicts) == 1:
        return _verdict_word(verdicts.pop())
    counts = [(sum(worker.verdict is verdict for worker in workers), verdict) for verdict in DEVIATIONS]
    return Text(", ".join(f"{n} of {len(workers)} {verdict.value}" for n, verdict in counts if n), WARN)


def _deviations(report: Report) -> Iterator[str]:
    """Lines about workers whose utilisation is not as predicted: the tolerance, the figures and known causes."""
    deviating = [worker for worker in report.workers if worker.deviates]
    if deviating:
        yield f"utilisation may differ by {TOLERANCE * 100:.0f} points:"
    for worker in deviating[:MAX_WORKERS]:
        yield f"- {worker.name} {worker.shown_deviation}{': ' * bool(worker.reasons)}{'; '.join(worker.reasons)}"
    if (more := len(deviating) - MAX_WORKERS) > 0:
        yield f"- and {more} more"
