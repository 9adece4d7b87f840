"""Bar charts of the HTML page; positions are percentages of the chart width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

from jellybean.display import formats
from jellybean.report.breakdown import CostShare
from jellybean.report.comparison import METRIC_BY_KEY, Comparison, ComparisonVerdict
from jellybean.report.report import Report, WorkerUse


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of a bar. Start and width are in percent of the chart's width; `style` is its CSS class."""

    start: float
    width: float
    style: str
    hint: str


@dataclass(frozen=True, slots=True)
class BarRow:
    """One row of a bar chart. `marks` are vertical lines (position in percent, CSS class)."""

    name: str
    note: str
    figure: str
    parts: tuple[Part, ...]
    marks: tuple[tuple[float, str], ...] = ()
    dot: tuple[float, str] | None = None

    @property
    def about(self) -> str:
        return "; ".join([f"{self.name}: {self.figure}", *(part.hint for part in self.parts)])


def cost_rows(shares: Sequence[CostShare], total: float) -> tuple[BarRow, ...]:
    """Compute and network cost as stacked bars; the most expensive row has full width."""
    scale = max((share.total_usd_per_h for share in shares), default=0.0) or 1.0
    rows: list[BarRow] = []
    for share in shares:
        compute = 100 * share.compute_usd_per_h / scale
        network = 100 * share.network_usd_per_h / scale
        part_of = formats.percent(share.total_usd_per_h / total) if total > 0 else formats.MISSING
        parts = (
            Part(0.0, compute, "compute", f"compute {formats.usd(share.compute_usd_per_h)} USD/h"),
            Part(compute, network, "network", f"network {formats.usd(share.network_usd_per_h)} USD/h"),
        )
        rows.append(BarRow(share.name, "", f"{formats.usd(share.total_usd_per_h)} · {part_of}", parts))
    return tuple(rows)


def ratio_rows(report: Report) -> tuple[BarRow, ...]:
    """Measured / predicted on a logarithmic scale from 0.5 to 2, with the tolerance as a band."""
    return tuple(_ratio_row(item) for item in report.comparisons if item.ratio is not None)


def _ratio_row(item: Comparison) -> BarRow:
    metric = METRIC_BY_KEY[item.metric]
    ratio = item.ratio or 0.0
    relative = item.tolerance / item.predicted if metric.absolute and item.predicted else item.tolerance
    low, high = _log_position(1 - relative), _log_position(1 + relative)
    band = Part(low, high - low, "tolerance", f"tolerance {metric.shown_tolerance()}")
    figure = f"× {ratio:.2f}"
    style = "mark" if item.verdict is ComparisonVerdict.WITHIN else "mark off"
    return BarRow(metric.label, "", figure, (band,), ((50.0, "axis"),), (_log_position(ratio), style))


def _log_position(ratio: float) -> float:
    """Position of a ratio in percent: 0.5 -> 0, 1 -> 50, 2 -> 100, clipped outside."""
    return 100.0 if ratio >= 2 else 0.0 if ratio <= 0.5 else 50 * (1 + log2(ratio))


def latency_rows(report: Report) -> tuple[BarRow, ...]:
    """Predicted and measured p50, p90 and p99 on one scale, which includes the p99 target if it is near."""
    items = [report.comparison(f"latency_{name}_s") for name in ("p50", "p90", "p99")]
    values = [value for item in items for value in (item.predicted, item.measured) if value is not None]
    if not values:
        return ()
    target = report.plan.slo.latency_p99_s
    near = target is not None and target <= 4 * max(values)
    scale = max([*values, target] if near and target is not None else values) * 1.02 or 1.0
    rows: list[BarRow] = []
    for item in items:
        name = METRIC_BY_KEY[item.metric].label.removeprefix("Latency ")
        marks = ((100 * target / scale, "target"),) if near and target is not None and name == "p99" else ()
        for word, value in (("predicted", item.predicted), ("measured", item.measured)):
            if value is not None:
                part = Part(0.0, 100 * value / scale, word, f"{word} {formats.duration(value)}")
                rows.append(BarRow(name, word, formats.duration(value), (part,), marks))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class AccuracyChart:
    """Accuracy chart on a scale from `low` to `high` that shows the difference to the target; positions in percent."""

    low: float
    high: float
    target: float | None
    rows: tuple[BarRow, ...]


def accuracy_chart(report: Report) -> AccuracyChart | None:
    """Chart of predicted and measured accuracy with the target; None if neither is known."""
    item, target = report.comparison("accuracy"), report.plan.slo.accuracy
    known = [(word, value) for word, value in (("predicted", item.predicted), ("measured", item.measured)) if value]
    if not known:
        return None
    values = [value for _, value in known] + ([target] if target is not None else [])
    margin = max(1.0, (max(values) - min(values)) * 0.6)
    low, high = max(0.0, min(values) - margin), min(100.0, max(values) + margin)
    span = high - low or 1.0
    marks = ((100 * (target - low) / span, "target"),) if target is not None else ()
    rows = tuple(
        BarRow(word, "", f"{formats.accuracy(value)} %", (), marks, (100 * (value - low) / span, word))
        for word, value in known
    )
    return AccuracyChart(low, high, target, rows)


def worker_rows(workers: Sequence[WorkerUse], cap: float, colours: Mapping[str, int]) -> Mapping[str, Sequence[BarRow]]:
    """Tier -> bars of planned load by operator, with the utilisation limit as a line and the measurement as a dot."""
    rows: dict[str, list[BarRow]] = {}
    for worker in workers:
        parts: list[Part] = []
        start = 0.0
        for operator, load in worker.loads.items():
            width = min(100 * load, 100 - start)
            parts.append(Part(start, width, f"c{colours[operator] % 8}", f"{operator} {formats.percent(load)}"))
            start += width
        figure = formats.percent(worker.expected)
        if worker.measured is not None:
            figure = f"{figure} → {formats.percent(worker.measured)}"
        dot = (min(100.0, 100 * worker.measured), "mark") if worker.measured is not None else None
        row = BarRow(
            worker.name,
            "" if worker.sites == 1 else f"in each of {worker.sites:,}",
            figure,
            tuple(parts),
            ((100 * cap, "cap"),),
            dot,
        )
        rows.setdefault(worker.tier, []).append(row)
    return rows


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
