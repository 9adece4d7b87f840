"""Accuracy of selections on held-out labelled requests, end to end.

With more selections than `LIMIT` only variations of the best found selection are measured and the operators' effects
are taken as independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jellybean.bench.answer_metrics import is_correct
from jellybean.profiler.cache import Cache, key_of
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import Flow
from jellybean.profiler.workload import Selection, Workload

LIMIT = 512
CHUNK = 25  # requests that are finished, kept and reported together

Step = Callable[[int], None]  # called with the number of requests done


@dataclass(frozen=True)
class Measured:
    """Percent right, by selection; and what the messages of those runs were like."""

    selections: tuple[dict[str, str], ...]
    percent: tuple[float, ...]


def all_selections(workload: Workload) -> tuple[dict[str, str], ...]:
    """Every way to choose one variant per operator, in the documents' order."""
    names = [step.name for step in workload.steps]
    variants = [[model.variant for model in step.models] for step in workload.steps]
    return tuple(dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*variants))


def selection_count(workload: Workload) -> int:
    return math.prod(len(step.models) for step in workload.steps)


def covering_selections(workload: Workload) -> tuple[dict[str, str], ...]:
    """Few selections that contain every variant at least once."""
    most = max(len(step.models) for step in workload.steps)
    return tuple(
        {step.name: step.models[min(index, len(step.models) - 1)].variant for step in workload.steps}
        for index in range(most)
    )


def measure_accuracy(
    workload: Workload, flow: Flow, selections: Sequence[Selection], cache: Cache, step: Step
) -> Measured:
    """Percent of held-out requests answered right under each selection."""
    if workload.labels is None:
        raise ProfileError("there are no labels, so accuracy cannot be measured; set `labels:` in workflow.yaml")
    right = [0] * len(selections)
    total = workload.request_count
    models = [(model.operator, model.variant, model.sha256) for one in workload.steps for model in one.models]
    for first in range(0, total, CHUNK):
        chunk = range(first, min(total, first + CHUNK))
        key = key_of(kind="accuracy", work=workload.digest, models=models, selections=list(selections), first=first)
        if key not in cache:
            cache.put(key, _right_in(workload, flow, selections, chunk))
        right = [count + more for count, more in zip(right, cache[key], strict=True)]
        step(chunk.stop)
    kept = tuple(dict(selection) for selection in selections)
    return Measured(kept, tuple(100.0 * count / total for count in right))


def _right_in(workload: Workload, flow: Flow, selections: Sequence[Selection], chunk: range) -> list[int]:
    right = [0] * len(selections)
    labels = workload.labels
    if labels is None:
        return right
    sink = workload.sinks[0]
    for request in chunk:
        for index, selection in enumerate(selections):
            answer = flow.answer(request, selection)[sink]
            right[index] += is_correct(workload.metric, answer, labels[request])
    return right


def independent(workload: Workload, flow: Flow, cache: Cache, step: Step) -> dict[str, dict[str, float]]:
    """Percent per operator and variant whose product is near a selection's accuracy.

    Climbs, one operator at a time, to a selection that no single exchange improves; each variant's figure is then its
    share of that accuracy, and the last operator's figures carry the accuracy itself.
    """
    best = {step_.name: step_.models[-1].variant for step_ in workload.steps}
    while True:
        trials = [{**best, one.name: model.variant} for one in workload.steps for model in one.models]
        measured = measure_accuracy(workload, flow, trials, cache, step)
        top = max(measured.percent)
        reference = measured.percent[trials.index(best)]
        if top <= reference:
            break
        best = dict(trials[measured.percent.index(top)])
    found: dict[str, dict[str, float]] = {}
    percents = iter(measured.percent)
    for one in workload.steps:
        whole = 100.0 if one is workload.steps[-1] or reference == 0 else reference
        found[one.name] = {model.variant: 100.0 * (next(percents) / whole) for model in one.models}
    return found
