"""Bar charts of the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2

from jellybean.display import formats
from jellybean.display.palette import SHADES
from jellybean.report.breakdown import Breakdown, CostShare
from jellybean.report.charts import BarRow, Chart, Dot, Part, Tick, axis, round_up
from jellybean.report.comparison import METRIC_BY_KEY, Comparison, ComparisonVerdict
from jellybean.report.report import Report
from jellybean.report.utilisation import WorkerUse

NUMBERED = 7.0  # least width of a segment, in percent, in which the operator's number can be read


@dataclass(frozen=True, slots=True)
class CostCharts:
    """Cost by operator and by tier, both with the traffic and on one scale. `idle`: tiers without workers."""

    operators: Chart
    tiers: Chart
    idle: tuple[str, ...]


def cost_charts(breakdown: Breakdown, total_usd_per_h: float) -> CostCharts:
    """The workers' cost by operator and by tier, and the traffic's; each chart adds up to the total."""
    used = [share for share in breakdown.tiers if share.usd_per_h > 0]
    highest = max((share.usd_per_h for share in (*breakdown.operators, *used)), default=breakdown.traffic.usd_per_h)
    scale = round_up(max(highest, breakdown.traffic.usd_per_h))
    return CostCharts(
        _cost_chart(breakdown.operators, breakdown.traffic, total_usd_per_h, scale),
        _cost_chart(used, breakdown.traffic, total_usd_per_h, scale),
        tuple(share.name for share in breakdown.tiers if share.usd_per_h <= 0),
    )


def _cost_chart(shares: Sequence[CostShare], traffic: CostShare, total: float, scale: float) -> Chart:
    costs = [(share.name, share.usd_per_h, "worker") for share in shares]
    costs += [(traffic.name, traffic.usd_per_h, "traffic")] if traffic.usd_per_h > 0 else []
    figures = formats.usd_column([cost for _, cost, _ in costs])
    rows = tuple(
        BarRow(
            name, "", f"{figure} · {formats.percent(cost / total) if total > 0 else formats.MISSING}",
            (Part(0.0, 100 * cost / scale, style, ""),),
        )
        for (name, cost, style), figure in zip(costs, figures, strict=True)
    )  # fmt: skip
    ends = Tick(0.0, "0"), Tick(100.0, f"{formats.plain(scale)} USD/h")
    return Chart(rows, axis(ends, (Tick(50.0, formats.plain(scale / 2)),)))


def ratio_chart(report: Report) -> Chart:
    """Measured / predicted on a logarithmic scale from 0.5 to 2, with the tolerance as a band, where it is judged."""
    judged = [item for item in report.comparisons if item.ratio is not None and item.requests_needed is None]
    rows = tuple(map(_ratio_row, judged))
    return Chart(rows, (Tick(0.0, "× 0.5"), Tick(50.0, "as predicted"), Tick(100.0, "× 2")))


def _ratio_row(item: Comparison) -> BarRow:
    metric = METRIC_BY_KEY[item.metric]
    ratio = item.ratio or 0.0
    relative = item.tolerance / item.predicted if metric.absolute and item.predicted else item.tolerance
    low, high = _log_position(1 - relative), _log_position(1 + relative)
    band = Part(low, high - low, "tolerance", f"tolerance {item.shown_tolerance}")
    style = "good" if item.verdict is ComparisonVerdict.WITHIN else "warn"
    dot = Dot(_log_position(ratio), style, 1 if ratio > 2 else -1 if ratio < 0.5 else 0)
    return BarRow(metric.label, "", f"× {ratio:.2f}", (band,), ((50.0, "axis"),), dot)


def _log_position(ratio: float) -> float:
    """Position of a ratio in percent: 0.5 -> 0, 1 -> 50, 2 -> 100, clipped outside."""
    return 100.0 if ratio >= 2 else 0.0 if ratio <= 0.5 else 50 * (1 + log2(ratio))


def latency_chart(report: Report) -> Chart | None:
    """Predicted and measured p50, p90 and p99 on one scale, which includes the p99 target if it is near.

    None if no latency is known.
    """
    items = [report.comparison(f"latency_{name}_s") for name in ("p50", "p90", "p99")]
    values = [value for item in items for value in (item.predicted, item.measured) if value is not None]
    if not values:
        return None
    slo = report.plan.slo
    target, word = (slo.latency_p99_s, "target") if slo.soft_latency_p99_s is None else (slo.soft_latency_p99_s, "soft")
    shown = target if target is not None and target <= 4 * max(values) else None
    scale = round_up(max([*values, shown] if shown is not None else values))
    rows: list[BarRow] = []
    for item in items:
        name = METRIC_BY_KEY[item.metric].label.removeprefix("Latency ")
        marks = ((100 * shown / scale, "limit"),) if shown is not None and name == "p99" else ()
        for word, value in (("predicted", item.predicted), ("measured", item.measured)):
            if value is not None:
                rows.append(
                    BarRow(name, word, formats.duration(value), (Part(0.0, 100 * value / scale, word, ""),), marks)
                )
    targets = [Tick(100 * shown / scale, f"{word} {formats.duration(shown)}")] if shown is not None else []
    return Chart(tuple(rows), axis(targets, (Tick(0.0, "0"), Tick(100.0, formats.axis_duration(scale)))))


@dataclass(frozen=True, slots=True)
class AccuracyChart:
    """Predicted and measured accuracy on a scale from `low` to `high` percent that shows the distance to the target."""

    low: float
    high: float
    target: float | None
    chart: Chart


def accuracy_chart(report: Report) -> AccuracyChart | None:
    """Chart of predicted and measured accuracy with the target; None if neither is known."""
    item, target = report.comparison("accuracy"), report.plan.slo.accuracy_of_plan
    known = [(word, value) for word, value in (("predicted", item.predicted), ("measured", item.measured)) if value]
    if not known:
        return None
    values = [value for _, value in known] + ([target] if target is not None else [])
    margin = max(1.0, (max(values) - min(values)) * 0.6)
    low, high = float(max(0, floor(min(values) - margin))), float(min(100, ceil(max(values) + margin)))
    span = high - low or 1.0
    place = 100 * (target - low) / span if target is not None else 0.0
    marks = ((place, "limit"),) if target is not None else ()
    rows = tuple(
        BarRow(word, "", f"{formats.accuracy(value)} %", (), marks, Dot(100 * (value - low) / span, word))
        for word, value in known
    )
    targets = [Tick(place, f"target {formats.plain(target)} %")] if target is not None else []
    ends = Tick(0.0, f"{formats.plain(low)} %"), Tick(100.0, f"{formats.plain(high)} %")
    return AccuracyChart(low, high, target, Chart(rows, axis(targets, ends)))


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """How an operator is marked in bars: its number, in the plan's order, and one of the shades of load."""

    number: int
    shade: str


def operator_keys(report: Report) -> Mapping[str, OperatorKey]:
    """Operator -> its mark. Neighbours have different shades, for any number of operators."""
    names = enumerate(report.plan.operators)
    return {operator.name: OperatorKey(index + 1, SHADES[index % len(SHADES)]) for index, operator in names}


def worker_charts(workers: Sequence[WorkerUse], cap: float, keys: Mapping[str, OperatorKey]) -> Mapping[str, Chart]:
    """Tier -> bars of planned load by operator, with the utilisation limit as a line and the measurement as a dot."""
    rows: dict[str, list[BarRow]] = {}
    for worker in workers:
        figure = formats.percent(worker.expected)
        if worker.measured is not None:
            figure = f"{figure} → {formats.percent(worker.measured)}"
        dot = Dot(min(100.0, 100 * worker.measured), "measured") if worker.measured is not None else None
        if dot is not None and worker.measured is not None and worker.measured > 1:
            dot = Dot(100.0, "measured", 1)
        note = "" if worker.sites == 1 else f"in each of {worker.sites:,}"
        row = BarRow(worker.name_with_device, note, figure, _load_parts(worker, keys), ((100 * cap, "limit"),), dot)
        rows.setdefault(worker.tier, []).append(row)
    limit = (Tick(100 * cap, f"limit {formats.percent(cap)}"),)
    ticks = axis(limit, (Tick(0.0, "0"), Tick(100.0, "100 %")))
    return {tier: Chart(tuple(members), ticks) for tier, members in rows.items()}


def _load_parts(worker: WorkerUse, keys: Mapping[str, OperatorKey]) -> tuple[Part, ...]:
    parts: list[Part] = []
    start = 0.0
    for operator, load in worker.loads.items():
        key, width = keys[operator], min(100 * load, 100 - start)
        label = str(key.number) if width >= NUMBERED else ""
        parts.append(Part(start, width, key.shade, f"{operator} {formats.percent(load)}", label))
        start += width
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Trend:
    """One metric over all measurements of a plan; `points`: SVG polyline in a box of 100 x 30 units."""

    label: str
    points: str
    first: str
    last: str
    runs: int


def trends(report: Report) -> tuple[Trend, ...]:
    """Trends of accuracy, throughput and latency over three or more measurements."""
    found: list[Trend] = []
    for key in ("accuracy", "throughput_per_s", "latency_p50_s", "latency_p99_s"):
        values = [run.figures[key] for run in report.runs if run.kind == "bench" and key in run.figures]
        if len(values) < 3:
            continue
        low, span = min(values), (max(values) - min(values)) or 1.0
        step = 100 / (len(values) - 1)
        points = " ".join(f"{i * step:.1f},{27 - 24 * (value - low) / span:.1f}" for i, value in enumerate(values))
        metric = METRIC_BY_KEY[key]
        found.append(Trend(metric.label, points, metric.show(values[0]), metric.show(values[-1]), len(values)))
    return tuple(found)
