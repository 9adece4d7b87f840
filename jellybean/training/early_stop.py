"""Early stopping: whether a run ends because a metric on the test rows no longer improves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean.documents.training import EarlyStopSpec
from jellybean.training.errors import TrainingError

Metrics = Mapping[str, float | None]


def reason_to_stop(spec: EarlyStopSpec | None, history: Sequence[Metrics]) -> str:
    """Why the run ends after these epochs; empty if it goes on. A function of the history, so a resumed run agrees.

    TrainingError if the metric is not defined for this data.
    """
    if spec is None or not history:
        return ""
    if history[-1].get(spec.metric) is None:
        raise TrainingError(f"early_stop: {spec.metric} is not defined for this data: name another metric")
    sign = -1.0 if spec.minimizes else 1.0
    best, place = None, 0
    for number, metrics in enumerate(history):
        value = metrics.get(spec.metric)  # None in epochs before the metric was measured
        if value is not None and (best is None or sign * (value - best) > spec.min_delta):
            best, place = value, number
    if best is None or len(history) - 1 - place < spec.patience:
        return ""
    return (
        f"stopped after epoch {len(history)}: {spec.metric} has not improved for {spec.patience} epochs; the best, "
        f"{best:.4g}, was that of epoch {place + 1}"
    )
