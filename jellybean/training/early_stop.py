"""Early stopping: whether a run ends as a metric on the test rows no longer improves, and with which weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from jellybean.documents.training import EarlyStopSpec

Metrics = Mapping[str, float | None]


def reason_to_stop(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> str:
    """Why the run ends after these epochs; empty if it goes on. A function of the history, so a resumed run agrees.

    An epoch without a value (None or nan) is no improvement. Epochs before the first value do not count.
    """
    best = _best(spec, history)
    if spec is None or best is None or len(history) - best.epoch < spec.patience:
        return ""
    return (
        f"stopped after epoch {len(history)}: {spec.metric} has not improved for {spec.patience} epochs; the best, "
        f"{best.value:.4g}, was that of epoch {best.epoch}"
    )


def epoch_to_restore(spec: EarlyStopSpec | None, history: Sequence[Metrics], lost: Collection[int] = ()) -> int | None:
    """The epoch, counted from 1, whose weights the run would end with now; None: those that it has.

    `lost`: epochs without a checkpoint, which do not compete. A function of what a manifest has, so a resumed run
    agrees.
    """
    best = _best(spec, [{} if epoch in lost else metrics for epoch, metrics in enumerate(history, 1)])
    return best.epoch if spec is not None and spec.restore == "best" and best is not None else None


def why_undefined(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> str:
    """Why the metric cannot end the run, as no epoch has a value of it; empty if one has. Raise it after a save."""
    if spec is None or not history or _values(spec, history):
        return ""
    return (
        f"early_stop: {spec.metric} is not defined for this data: it had no value after epoch {len(history)}, nor "
        "before. Name another metric; the epoch is saved, and the same command resumes after it"
    )


class _Best(NamedTuple):
    epoch: int  # counted from 1
    value: float


def _best(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> _Best | None:
    """The last epoch that improved on the best before it; None if no epoch has a value."""
    values = _values(spec, history)
    if spec is None or not values:
        return None
    sign = -1.0 if spec.minimizes else 1.0
    best = _Best(values[0][0] + 1, values[0][1])
    for index, value in values[1:]:
        if sign * (value - best.value) > spec.min_delta:
            best = _Best(index + 1, value)
    return best


def _values(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> list[tuple[int, float]]:
    """(index of the epoch, value) of each epoch in which the metric has a value."""
    values = [(number, metrics.get(spec.metric)) for number, metrics in enumerate(history)] if spec is not None else []
    return [(number, value) for number, value in values if value is not None and not math.isnan(value)]
