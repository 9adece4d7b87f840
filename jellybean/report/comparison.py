"""Compare predicted with measured figures, and both with the targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from jellybean.display import formats
from jellybean.report.store import StoreRow
from jellybean_solver import Slo

ROUNDING = 1e-9
RANGES = "ranges"  # key of a measurement: figure -> its least and greatest in simulations of its arrivals
COMPLETED = "completed"  # key of a measurement: requests that were answered
ACCURACY_MARGIN = "accuracy_margin"  # key of a measurement: two standard errors of its accuracy


class ComparisonVerdict(StrEnum):
    """Whether a measured figure is within the tolerance of the predicted one, above it or below it."""

    WITHIN = "within"
    HIGHER = "higher"
    LOWER = "lower"
    UNKNOWN = "unknown"  # the measured or the predicted figure is missing


class SloState(StrEnum):
    """Whether a figure meets its target."""

    MET = "met"
    BROKEN = "broken"
    UNSURE = "unsure"  # measured with too few requests to tell: the target lies within the sampling error
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that is both predicted and measured.

    The tolerance is relative to the expected figure, or, if `absolute`, in the unit of the figure. `by_arrivals`: a
    measurement's own arrivals decide it, so that the tolerance is around what simulations of these give.
    """

    key: str
    label: str
    unit: str
    tolerance: float
    lower_is_better: bool
    show: Callable[[float | None], str]
    absolute: bool = False
    by_arrivals: bool = False

    def shown_tolerance(self, sampling_error: float = 0.0) -> str:
        """The tolerance as text. `sampling_error`: of the measured figure, which counts where it is larger."""
        if self.absolute and sampling_error > self.tolerance:
            return f"± {sampling_error:.1f} points, sampling error"
        if self.absolute:
            return f"± {formats.plain(self.tolerance)} point{'' if self.tolerance == 1 else 's'}"
        return f"± {self.tolerance * 100:.0f} %"


METRICS = (
    Metric("cost_usd_per_h", "Cost", "USD/h", 0.05, True, formats.usd),
    Metric("accuracy", "Accuracy", "%", 1.0, False, formats.accuracy, absolute=True),
    Metric("throughput_per_s", "Throughput", "requests/s", 0.05, False, formats.rate, by_arrivals=True),
    Metric("highest_rate_per_s", "Highest sustained rate", "requests/s", 0.15, False, formats.rate),
    Metric("latency_p50_s", "Latency p50", "s", 0.25, True, formats.duration),
    Metric("latency_p90_s", "Latency p90", "s", 0.35, True, formats.duration),
    Metric("latency_p99_s", "Latency p99", "s", 0.50, True, formats.duration),
)
METRIC_BY_KEY: Mapping[str, Metric] = {metric.key: metric for metric in METRICS}
LEAST_REQUESTS = {"latency_p90_s": 10, "latency_p99_s": 100}  # of fewer, the slowest alone is the quantile
INTERVAL_KEYS: Mapping[str, tuple[str, str]] = {"latency_p99_s": ("latency_p99_low_s", "latency_p99_high_s")}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric, predicted and measured. `difference` = measured - predicted, `ratio` = measured / predicted.

    `tolerance`: the metric's; of an accuracy of few inputs its sampling error, which says nothing against a prediction.
    `sampled_between`: of few requests, what simulations of the same arrivals give. `requests_needed`: to judge a
    quantile that was measured with fewer; else None.
    """

    metric: str
    predicted: float | None
    measured: float | None
    difference: float | None
    ratio: float | None
    tolerance: float
    verdict: ComparisonVerdict
    predicted_between: tuple[float, float] | None = None  # confidence interval of the prediction, if it has one
    sampled_between: tuple[float, float] | None = None
    predicted_at_least: bool = False  # the search of the prediction ended there: the plan may do more
    requests_needed: int | None = None

    @property
    def unknown_reason(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if self.verdict is not ComparisonVerdict.UNKNOWN:
            return ""
        if self.requests_needed is not None:
            return f"too few requests, {self.requests_needed} needed"
        return "not measured" if self.measured is None else "not predicted"

    @property
    def shown_prediction(self) -> str:
        """The prediction as text, with its interval."""
        if self.predicted_between is not None:
            return formats.interval(self.predicted, *self.predicted_between)
        return self.shown_value

    @property
    def shown_value(self) -> str:
        """The prediction as text, without its interval."""
        at_least = "at least " if self.predicted_at_least else ""
        return at_least + METRIC_BY_KEY[self.metric].show(self.predicted)

    @property
    def shown_tolerance(self) -> str:
        """The tolerance as text; names the sampling error where that is larger than the metric's tolerance."""
        shown = METRIC_BY_KEY[self.metric].shown_tolerance(self.tolerance)
        if self.sampled_between is None or self._covers(self.sampled_between):
            return shown
        low, high = map(METRIC_BY_KEY[self.metric].show, self.sampled_between)
        return f"{shown} or {low} to {high}"

    def _covers(self, between: tuple[float, float]) -> bool:
        """True if the metric's tolerance has all of a range."""
        predicted, tolerance = self.predicted or 0.0, METRIC_BY_KEY[self.metric].tolerance
        return predicted * (1.0 - tolerance) <= between[0] and between[1] <= predicted * (1.0 + tolerance)


@dataclass(frozen=True, slots=True)
class SloVerdict:
    """One target of the plan, with the predicted and the measured figure and whether each meets it."""

    metric: str
    target: float
    predicted: float | None
    predicted_state: SloState
    measured: float | None
    measured_state: SloState

    @property
    def state(self) -> SloState:
        """Whether the target is met, as measured, or as predicted while nothing was measured."""
        return self.predicted_state if self.measured is None else self.measured_state


@dataclass(frozen=True, slots=True)
class Drift:
    """One metric of the newest measurement (`latest`), compared with the median of the plan's earlier ones."""

    metric: str
    earlier: float
    runs: int
    latest: float
    ratio: float | None
    verdict: ComparisonVerdict


def figure(record: Mapping[str, Any] | None, key: str) -> float | None:
    """The number stored under `key` in a flat record; None if the record or the key is missing."""
    value = record.get(key) if record is not None else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def compare(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Comparison, ...]:
    """Compare all metrics, in the order of METRICS; missing figures are included as unknown."""
    comparisons: list[Comparison] = []
    for metric in METRICS:
        before, after = figure(predicted, metric.key), figure(measured, metric.key)
        known = before is not None and after is not None
        difference = after - before if before is not None and after is not None else None
        ratio = after / before if before is not None and after is not None and before != 0 else None
        margin = _sampling_error(metric, measured)
        sampled = _sampled_between(metric, measured)
        verdict = _verdict(metric, difference, before, margin) if known else ComparisonVerdict.UNKNOWN
        if sampled is not None and after is not None and is_sampled(metric.key, after, sampled, metric.tolerance):
            verdict = ComparisonVerdict.WITHIN
        at_least = metric.key == "highest_rate_per_s" and bool(predicted.get("highest_rate_is_limit"))
        if at_least and verdict is ComparisonVerdict.HIGHER:
            verdict = ComparisonVerdict.WITHIN
        needed = _requests_needed(metric, measured) if known else None
        verdict = verdict if needed is None else ComparisonVerdict.UNKNOWN
        low, high = (figure(predicted, key) for key in INTERVAL_KEYS.get(metric.key, ("", "")))
        between = (low, high) if low is not None and high is not None else None
        tolerance = max(metric.tolerance, margin)
        comparisons.append(
            Comparison(
                metric.key, before, after, difference, ratio, tolerance, verdict, between, sampled, at_least, needed
            )
        )
    return tuple(comparisons)


def judge(slo: Slo, predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[SloVerdict, ...]:
    """Compare each target of the SLO with the predicted and the measured figure."""
    targets = (
        ("accuracy", slo.accuracy_of_plan),
        ("latency_p99_s", slo.latency_p99_s),
        ("cost_usd_per_h", slo.budget_usd_per_h),
    )
    verdicts: list[SloVerdict] = []
    for key, target in targets:
        if target is not None:
            before, after = figure(predicted, key), figure(measured, key)
            metric = METRIC_BY_KEY[key]
            margin = _sampling_error(metric, measured)
            states = _state(metric, target, before), _state(metric, target, after, margin)
            verdicts.append(SloVerdict(key, target, before, states[0], after, states[1]))
    return tuple(verdicts)


def soft_latency_text(slo: Slo, item: Comparison) -> str:
    """The soft p99 target with what the measured or else the predicted p99 counts above it; empty without one."""
    p99_s = item.predicted if item.measured is None else item.measured
    if item.metric != "latency_p99_s" or slo.soft_latency_p99_s is None or p99_s is None:
        return ""
    penalty = slo.latency_penalty(p99_s)
    counts = f": counts {formats.usd(penalty)} USD/h" if penalty else ""
    return f"soft {formats.duration(slo.soft_latency_p99_s)}{counts}"


def drift(benches: Sequence[StoreRow]) -> tuple[Drift, ...]:
    """Compare a plan's newest measurement with the median of the earlier ones; empty for fewer than two rows."""
    if len(benches) < 2:
        return ()
    drifts: list[Drift] = []
    for metric in METRICS:
        latest = figure(benches[-1].record, metric.key)
        earlier = [value for row in benches[:-1] if (value := figure(row.record, metric.key)) is not None]
        if latest is not None and earlier:
            baseline = median(earlier)
            ratio = latest / baseline if baseline else None
            margin = max(_sampling_error(metric, row.record) for row in benches)
            verdict = _verdict(metric, latest - baseline, baseline, margin)
            drifts.append(Drift(metric.key, baseline, len(earlier), latest, ratio, verdict))
    return tuple(drifts)


def is_sampled(key: str, measured: float, between: tuple[float, float], tolerance: float) -> bool:
    """True if a figure is what simulations of its arrivals give, to the tolerance if the arrivals decide it."""
    slack = tolerance if METRIC_BY_KEY[key].by_arrivals else 0.0
    return between[0] * (1.0 - slack) <= measured <= between[1] * (1.0 + slack)


def _sampled_between(metric: Metric, measured: Mapping[str, Any]) -> tuple[float, float] | None:
    """What simulations give for a measurement's own arrivals; None if there were many."""
    found = (measured.get(RANGES) or {}).get(metric.key)
    return None if found is None else (float(found[0]), float(found[1]))


def _requests_needed(metric: Metric, measured: Mapping[str, Any]) -> int | None:
    """How many requests a quantile needs that was measured with fewer; None if they suffice, or are not known."""
    least, count = LEAST_REQUESTS.get(metric.key, 0), figure(measured, COMPLETED)
    return least if count is not None and count < least else None


def _sampling_error(metric: Metric, measured: Mapping[str, Any]) -> float:
    """Sampling error of a measured accuracy, in points; 0 for other metrics and where all inputs were measured."""
    return (figure(measured, ACCURACY_MARGIN) or 0.0) if metric.key == "accuracy" else 0.0


def _verdict(
    metric: Metric, difference: float | None, expected: float | None, margin: float = 0.0
) -> ComparisonVerdict:
    """`margin`: sampling error of the difference, in the metric's unit."""
    if difference is None or expected is None:
        return ComparisonVerdict.UNKNOWN
    allowed = max(metric.tolerance, margin) if metric.absolute else metric.tolerance * abs(expected)
    if abs(difference) <= allowed + ROUNDING:
        return ComparisonVerdict.WITHIN
    return ComparisonVerdict.HIGHER if difference > 0 else ComparisonVerdict.LOWER


def _state(metric: Metric, target: float, value: float | None, margin: float = 0.0) -> SloState:
    """`margin`: sampling error of the value, in its unit."""
    if value is None:
        return SloState.UNKNOWN
    slack = ROUNDING * max(1.0, abs(target))
    met = value <= target + slack if metric.lower_is_better else value >= target - slack
    if met:
        return SloState.MET
    return SloState.UNSURE if abs(value - target) <= margin else SloState.BROKEN
