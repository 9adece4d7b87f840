"""Metrics of answers against labels, one for profiler and bench, so that predicted and measured mean the same.

Answers are the sink's output of each request, in the labels' order.
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
    """The answer is the label, in every element; a leading dimension of 1 does not count."""
    return bool(np.array_equal(np.squeeze(answer), np.squeeze(label)))


def top1(answer: Array, label: Array) -> bool:
    """The highest score stands at the label's index."""
    scores = np.asarray(answer).reshape(-1)
    return scores.size > 0 and int(np.argmax(scores)) == int(np.asarray(label).reshape(-1)[0])


METRICS: dict[str, Callable[[Array, Array], bool]] = {"exact_match": exact_match, "top1": top1}


def is_correct(metric: str, answer: Array, label: Array) -> bool:
    """Whether one answer counts as right under `metric`."""
    if metric not in METRICS:
        raise MetricError(f"unknown metric {metric!r}; known: {', '.join(sorted(METRICS))}")
    return METRICS[metric](np.asarray(answer), np.asarray(label))


def score(metric: str, outputs: Array | Sequence[Array], labels: Array) -> float:
    """Percent of answers that are right. `outputs[i]` answers the request that `labels[i]` belongs to."""
    if len(outputs) != len(labels):
        raise MetricError(f"{len(outputs)} answers for {len(labels)} labels: one answer per label is needed")
    if len(labels) == 0:
        raise MetricError("no labels: accuracy needs at least one labelled request")
    right = sum(is_correct(metric, outputs[index], labels[index]) for index in range(len(labels)))
    return 100.0 * right / len(labels)
