"""Early stopping: whether a run ends because a metric on the test rows no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jellybean.documents.training import EarlyStopSpec

Metrics = Mapping[str, float | None]


def reason_to_stop(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> str:
    """Why the run ends after these epochs; empty if it goes on. A function of the history, so a resumed run agrees.

    An epoch without a value (None or nan) is no improvement. Epochs before the first value do not count.
    """
    values = _values(spec, history)
    if spec is None or not values:
        return ""
    sign = -1.0 if spec.minimizes else 1.0
    place, best = values[0]
    for number, value in values[1:]:
        if sign * (value - best) > spec.min_delta:
            place, best = number, value
    if len(history) - 1 - place < spec.patience:
        return ""
    return (
        f"stopped after epoch {len(history)}: {spec.metric} has not improved for {spec.patience} epochs; the best, "
        f"{best:.4g}, was that of epoch {place + 1}"
    )


def why_undefined(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> str:
    """Why the metric cannot end the run, as no epoch has a value of it; empty if one has. Raise it after a save."""
    if spec is None or not history or _values(spec, history):
        return ""
    return (
        f"early_stop: {spec.metric} is not defined for this data: it had no value after epoch {len(history)}, nor "
        "before. Name another metric; the epoch is saved, and the same command resumes after it"
    )


def _values(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> list[tuple[int, float]]:
    """(index of the epoch, value) of each epoch in which the metric has a value."""
    found = [(number, metrics.get(spec.metric)) for number, metrics in enumerate(history)] if spec is not None else []
    return [(number, value) for number, value in found if value is not None and not math.isnan(value)]
