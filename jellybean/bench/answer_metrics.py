"""Accuracy metrics of answers against labels, shared by profiler and bench so that their figures are comparable.

An answer is the sink's output for one request; answers and labels are in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from jellybean_solver import JellyBeanError

Array = npt.NDArray[np.generic]


class MetricError(JellyBeanError):
    """Unknown metric, or answers that do not fit the labels."""


def exact_match(answer: Array, label: Array) -> bool:
    """True if answer and label are equal in every element; dimensions of 1 are ignored."""
    return bool(np.array_equal(np.squeeze(answer), np.squeeze(label)))


def top1(answer: Array, label: Array) -> bool:
    """True if the highest score is at the label's index."""
    scores = np.asarray(answer).reshape(-1)
    return scores.size > 0 and int(np.argmax(scores)) == int(np.asarray(label).reshape(-1)[0])


METRICS: dict[str, Callable[[Array, Array], bool]] = {"exact_match": exact_match, "top1": top1}


def is_correct(metric: str, answer: Array, label: Array) -> bool:
    """True if an answer is correct according to `metric`. MetricError if there is no such metric."""
    if metric not in METRICS:
        raise MetricError(f"unknown metric {metric!r}; known: {', '.join(sorted(METRICS))}")
    return METRICS[metric](np.asarray(answer), np.asarray(label))


def score(metric: str, outputs: Array | Sequence[Array], labels: Array) -> float:
    """Percent of correct answers; `outputs[i]` belongs to `labels[i]`.

    MetricError if there are no answers, or not as many as labels.
    """
    if len(outputs) != len(labels):
        raise MetricError(f"{len(outputs)} answers for {len(labels)} labels: one answer per label is needed")
    if len(labels) == 0:
        raise MetricError("no labels: accuracy needs at least one labelled request")
    correct = sum(is_correct(metric, outputs[index], labels[index]) for index in range(len(labels)))
    return 100.0 * correct / len(labels)
