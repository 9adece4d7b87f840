"""The headline of a report: whether the plan meets its targets and is as predicted, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jellybean.display import formats
from jellybean.folders import shell_text
from jellybean.report.comparison import (
    ACCURACY_MARGIN,
    COMPLETED,
    METRIC_BY_KEY,
    Comparison,
    ComparisonVerdict,
    SloState,
    SloVerdict,
    figure,
)
from jellybean.report.store import Record
from jellybean.report.utilisation import WorkerUse
from jellybean.serving.outcomes import OutcomeKind, outcome_text

MAX_WORKERS = 3  # workers whose deviation is named in the headline
LONGER_BENCH = 2  # length of an advised bench, in lengths of one that sent too few requests


class HeadlineLevel(StrEnum):
    """Overall status of a report."""

    GOOD = "good"  # targets met, figures as predicted
    WARNING = "warning"  # targets met, figures not as predicted
    BAD = "bad"  # a target missed, or requests failed
    OPEN = "open"  # not measured yet, or not at the planned rate


@dataclass(frozen=True, slots=True)
class Headline:
    """Summary at the top of a report: status, title and reasons."""

    level: HeadlineLevel
    title: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a headline is made of. `comparisons`, `targets`: each with its workflow.

    `benches`: by workflow what is shown. A single workflow, and all of several together, have the empty name.
    """

    project: str  # as argument of a command
    options: str  # those that the plan was made with, as further arguments
    comparisons: Sequence[tuple[str, Comparison]]
    targets: Sequence[tuple[str, SloVerdict]]
    workers: Sequence[WorkerUse]
    benches: Mapping[str, Record]
    is_whole: bool  # all workflows were measured at the same time
    is_simulated: bool  # by `simulate`, which predicts more than `plan`
    is_scaled: bool  # there are measurements at other rates than planned


def make_headline(judgement: Judgement) -> Headline:
    """The headline: missed targets and failures first, then deviations, then what is not known."""
    bad = (*_missed(judgement.targets), *_failures(judgement.benches))
    if bad:
        return Headline(HeadlineLevel.BAD, "Misses its targets", bad)
    gaps = (*_unsure(judgement), *_gaps(judgement))
    deviations = (*_deviations(judgement.comparisons), *_utilisations(judgement.workers))
    if deviations:
        return Headline(HeadlineLevel.WARNING, "Not as predicted", (*deviations, *gaps))
    if not any(comparison.measured is not None for _, comparison in judgement.comparisons):
        title = "Not measured at the planned rate" if judgement.is_scaled else "Not measured yet"
        return Headline(HeadlineLevel.OPEN, title, ("All figures are predictions",))
    within = (*_within(judgement), *gaps)
    if not judgement.is_whole:
        return Headline(HeadlineLevel.OPEN, "Measured in part", within)
    title = "Meets its targets, as predicted" if judgement.targets else "As predicted"
    return Headline(HeadlineLevel.GOOD, title, within)


def _missed(targets: Sequence[tuple[str, SloVerdict]]) -> Iterator[str]:
    for workflow, slo in targets:
        for state, value, word in (
            (slo.measured_state, slo.measured, "measured"),
            (slo.predicted_state, slo.predicted, "predicted"),
        ):
            if state is SloState.BROKEN:
                metric = METRIC_BY_KEY[slo.metric]
                yield f"{_prefix(workflow)}{metric.label} {metric.show(value)} {word}, target {metric.show(slo.target)}"


def _unsure(judgement: Judgement) -> Iterator[str]:
    """Targets that lie within the sampling error of what was measured: not every held-out input was sent."""
    remedy = ""
    if duration_s := max((figure(bench, "duration_s") or 0.0 for bench in judgement.benches.values()), default=0.0):
        command = f"jellybean bench {shell_text(judgement.project)} --duration {LONGER_BENCH * duration_s:.0f}"
        remedy = f" (measure longer: `{command}`)"
    for workflow, slo in judgement.targets:
        if slo.measured_state is SloState.UNSURE:
            margin = figure(judgement.benches.get(workflow, {}), ACCURACY_MARGIN)
            metric = METRIC_BY_KEY[slo.metric]
            yield (
                f"{_prefix(workflow)}{metric.label} {metric.show(slo.measured)} ± {metric.show(margin)} measured, "
                f"target {metric.show(slo.target)}: too few requests to tell{remedy}"
            )


def _prefix(workflow: str) -> str:
    return f"{workflow}: " if workflow else ""


def _failures(benches: Mapping[str, Record]) -> Iterator[str]:
    for workflow, bench in benches.items():
        prefix, offered = _prefix(workflow), f"{figure(bench, 'offered') or 0:.0f}"
        if kinds := outcome_text(outcomes := bench.get("outcomes") or {}, answered=False):
            unanswered = sum(outcomes.values()) - outcomes[OutcomeKind.ANSWERED]
            yield f"{prefix}{unanswered} of {offered} requests had no answer: {kinds}"
        elif errors := figure(bench, "errors"):  # stored before outcomes were
            yield f"{prefix}{errors:.0f} of {offered} requests failed"
        if bench.get("sustained") is False:
            yield prefix + str(bench.get("verdict") or "the offered rate was not sustained")


def _deviations(comparisons: Sequence[tuple[str, Comparison]]) -> Iterator[str]:
    for workflow, comparison in comparisons:
        if comparison.verdict in (ComparisonVerdict.HIGHER, ComparisonVerdict.LOWER):
            metric = METRIC_BY_KEY[comparison.metric]
            measured, predicted = metric.show(comparison.measured), comparison.shown_value
            yield f"{_prefix(workflow)}{metric.label} {measured} measured, {predicted} predicted"


def _utilisations(workers: Sequence[WorkerUse]) -> Iterator[str]:
    deviating = [worker for worker in workers if worker.deviates]
    for worker in deviating[:MAX_WORKERS]:
        yield f"Utilisation of {worker.name} {worker.shown_deviation}"
    if (more := len(deviating) - MAX_WORKERS) > 0:
        yield f"Utilisation of {more} more {formats.plural('worker', more)} not as predicted"


def _within(judgement: Judgement) -> Iterator[str]:
    """How many figures are within tolerance, where none is outside; nothing if none was compared.

    Those that were not compared count in the total: `_gaps` names them.
    """
    known = [c.verdict for _, c in judgement.comparisons if c.measured is not None or c.predicted is not None]
    workers = [worker.verdict for worker in judgement.workers]
    verdicts = ((known, "figures"), (workers, "utilisations"))
    counts = [(of.count(ComparisonVerdict.WITHIN), len(of), what) for of, what in verdicts]
    if compared := [f"{count} of {total} {what}" for count, total, what in counts if count]:
        yield f"{' and '.join(compared)} within tolerance of the prediction"


def _gaps(judgement: Judgement) -> Iterator[str]:
    """What was measured but not predicted, and what was predicted but not measured."""
    comparisons = judgement.comparisons
    unpredicted = [(name, c.metric) for name, c in comparisons if c.measured is not None and c.predicted is None]
    unmeasured = [(name, c.metric) for name, c in comparisons if c.measured is None and c.predicted is not None]
    if unpredicted:
        simulate = f"jellybean simulate {shell_text(judgement.project)}{judgement.options}"
        command = "" if judgement.is_simulated else f" (run `{simulate}`)"
        yield f"{_labels(unpredicted)}: not predicted{command}"
    if unmeasured:
        yield f"{_labels(unmeasured)}: not measured"
    for workflow, comparison in comparisons:
        if comparison.requests_needed is not None:
            bench = judgement.benches.get(workflow, {})
            count = f"{figure(bench, COMPLETED) or 0:.0f} requests, {comparison.requests_needed} needed"
            yield f"{_labels([(workflow, comparison.metric)])}: too few requests to judge it ({count})"


def _labels(metrics: Sequence[tuple[str, str]]) -> str:
    """The names of figures, those of a workflow after its name."""
    by_workflow: dict[str, list[str]] = {}
    for workflow, metric in metrics:
        by_workflow.setdefault(workflow, []).append(METRIC_BY_KEY[metric].label)
    return "; ".join(_prefix(workflow) + ", ".join(labels) for workflow, labels in by_workflow.items())
