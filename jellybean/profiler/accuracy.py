"""Accuracy of selections on held-out labelled requests, end to end, and how often they answer as the most accurate one.

With more than `LIMIT` selections, a local search measures single exchanges of one variant, and the variants' effects on
accuracy are assumed independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jellybean.answer_metrics import correctness
from jellybean.profiler.agreements import Agreements, agreements_of
from jellybean.profiler.cache import Cache, key_of
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import Flow
from jellybean.profiler.workload import Selection, Workload

LIMIT = 512
CHUNK = 5  # requests per cache entry and progress report; each is answered by every selection

Step = Callable[[int], None]  # progress callback: its argument is the number of requests done


@dataclass(frozen=True)
class Measured:
    """Measured accuracy: `percent[i]` belongs to `selections[i]` (operator -> variant).

    `agreement[i]`: percent of the answers that are those of the selection number `reference`, the first of the most
    accurate ones. `requests`: number of held-out requests.
    """

    selections: tuple[dict[str, str], ...]
    percent: tuple[float, ...]
    reference: int
    agreement: tuple[float, ...]
    requests: int


def all_selections(workload: Workload) -> tuple[dict[str, str], ...]:
    """Every way to choose one variant per operator, in the documents' order."""
    names = [step.name for step in workload.steps]
    variants = [[model.variant for model in step.models] for step in workload.steps]
    return tuple(dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*variants))


def selection_count(workload: Workload) -> int:
    """Number of ways to choose one variant per operator."""
    return math.prod(len(step.models) for step in workload.steps)


def covering_selections(workload: Workload) -> tuple[dict[str, str], ...]:
    """A few selections that together contain every variant."""
    most = max(len(step.models) for step in workload.steps)
    return tuple(
        {step.name: step.models[min(index, len(step.models) - 1)].variant for step in workload.steps}
        for index in range(most)
    )


def measure_accuracy(
    workload: Workload, flow: Flow, selections: Sequence[Selection], cache: Cache, step: Step
) -> Measured:
    """Measure the accuracy of each selection on the held-out requests. ProfileError if they have no labels."""
    if workload.labels is None:
        raise ProfileError("there are no labels, so accuracy cannot be measured; set `labels:` in workflow.yaml")
    correct = [0.0] * len(selections)
    agreements: list[Agreements] = []
    total = workload.request_count
    models = [(model.operator, model.variant, model.sha256) for one in workload.steps for model in one.models]
    for first in range(0, total, CHUNK):
        chunk = range(first, min(total, first + CHUNK))
        asked = {"models": models, "selections": list(selections), "requests": [first, chunk.stop]}
        key = key_of(kind="answers", work=workload.digest, **asked)
        if key not in cache:
            cache.put(key, _judged(workload, flow, selections, chunk))
        more, answered = cache[key]
        correct = [count + one for count, one in zip(correct, more, strict=True)]
        agreements += [Agreements(*one) for one in answered]
        step(chunk.stop)
    kept = tuple(dict(selection) for selection in selections)
    percent = tuple(100.0 * count / total for count in correct)
    reference = percent.index(max(percent))
    agreed = (sum(one.between(index, reference) for one in agreements) for index in range(len(selections)))
    return Measured(kept, percent, reference, tuple(100.0 * count / total for count in agreed), total)


def _judged(
    workload: Workload, flow: Flow, selections: Sequence[Selection], chunk: range
) -> tuple[list[float], list[tuple[list[int], list[list[float]]]]]:
    """The correct answers of each selection in a chunk, and the agreements in each of its requests."""
    correct = [0.0] * len(selections)
    answered: list[tuple[list[int], list[list[float]]]] = []
    labels = workload.labels
    if labels is None:
        return correct, answered
    sink = workload.labelled_sink
    for request in chunk:
        answers = [flow.answer(request, selection)[sink] for selection in selections]
        found = agreements_of(workload.metric, answers)
        answered.append((list(found.answer), [list(row) for row in found.agreement]))
        for index, answer in enumerate(answers):
            correct[index] += correctness(workload.metric, answer, labels[request])
    return correct, answered


def independent(workload: Workload, flow: Flow, cache: Cache, step: Step) -> dict[str, dict[str, float]]:
    """Operator -> variant -> accuracy in percent; a selection's accuracy is approximated by the product over operators.

    Hill climbing finds a selection that no exchange of a single variant improves. A variant's figure is the accuracy
    with that variant exchanged, relative to the accuracy of the found selection; only the last operator's figures are
    absolute accuracies.
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
