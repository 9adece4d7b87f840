"""What the plans that were served in a span of time predicted of it, beside what the ledger counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jellybean.ledger.answers import ServedAccuracy
from jellybean.ledger.events import Event, EventKind
from jellybean.report.served.served_curves import Step
from jellybean.report.store import Snapshot, Store
from jellybean_solver import from_document, served_streams

_H = 3_600.0


@dataclass(frozen=True, slots=True)
class PlannedFigures:
    """Cost, rate of requests and accuracy (by workflow) that one plan predicted."""

    usd_per_h: float
    rate_per_s: float
    accuracy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServedPrediction:
    """What was predicted of a span: each plan for the time that it was served.

    `answers`: at the planned rates. `accuracy`: by workflow, of the plans of its labelled answers, each as often.
    """

    usd: float
    usd_per_h: float
    answers: float
    answers_per_s: float
    accuracy: Mapping[str, float]

    @property
    def usd_per_thousand(self) -> float | None:
        """USD for a thousand answers at the planned rates."""
        return 1_000 * self.usd / self.answers if self.answers else None


def planned_figures(store: Store, hashes: Iterable[str]) -> Mapping[str, PlannedFigures]:
    """Hash -> what the plan predicted, of those that the store has."""
    snapshots = {plan_hash: store.latest(plan_hash) for plan_hash in hashes}
    return {plan_hash: _figures(found) for plan_hash, found in snapshots.items() if found is not None}


def _figures(snapshot: Snapshot) -> PlannedFigures:
    plan = from_document(snapshot.document)
    several = {workflow.name: workflow.accuracy for workflow in plan.workflows}
    accuracy = several or {plan.name: plan.accuracy}
    return PlannedFigures(
        plan.cost.total_usd_per_h,
        sum(stream.rate_per_s for stream in served_streams(plan)),
        {name: value for name, value in accuracy.items() if value is not None},
    )


def served_prediction(
    planned: Mapping[str, PlannedFigures],
    seconds: Mapping[str, float],
    labelled: Mapping[str, Sequence[ServedAccuracy]],
) -> ServedPrediction | None:
    """`seconds`: for which each plan was served; `labelled`: workflow -> labels by plan.

    None if a plan that was served is not among the `planned` ones, as for the others alone nothing was counted.
    """
    total_s = sum(seconds.values())
    if total_s <= 0 or any(plan not in planned for plan, paid_s in seconds.items() if paid_s):
        return None
    usd = sum(planned[plan].usd_per_h * paid_s / _H for plan, paid_s in seconds.items() if paid_s)
    answers = sum(planned[plan].rate_per_s * paid_s for plan, paid_s in seconds.items() if paid_s)
    accuracy = {
        workflow: value
        for workflow, lines in labelled.items()
        if (value := _mean_accuracy(planned, workflow, lines)) is not None
    }
    return ServedPrediction(usd, usd * _H / total_s, answers, answers / total_s, accuracy)


def _mean_accuracy(
    planned: Mapping[str, PlannedFigures], workflow: str, lines: Sequence[ServedAccuracy]
) -> float | None:
    """The plans' accuracies, weighted by their labels; None if one of them has none."""
    known = [
        (line.labels, planned[line.name].accuracy.get(workflow) if line.name in planned else None) for line in lines
    ]
    labels = sum(number for number, _ in known)
    parts = [number * value for number, value in known if value is not None]
    return sum(parts) / labels if labels and len(parts) == len(known) else None


def serving_steps(
    events: Sequence[Event], begin_s: float, end_s: float, values: Mapping[str, float]
) -> tuple[Step, ...]:
    """When which plan's value was predicted, between two Unix times. A plan that has none leaves a gap."""
    return tuple(
        Step(max(begin_s, since_s), min(end_s, until_s), values[plan])
        for since_s, until_s, plan in _periods(events, end_s)
        if plan in values and since_s < end_s and until_s > begin_s
    )


def _periods(events: Sequence[Event], end_s: float) -> Iterator[tuple[float, float, str]]:
    """When which plan was served, in order."""
    since_s, plan = 0.0, ""
    for event in sorted(events, key=lambda one: one.at_unix_s):
        following = "" if event.kind is EventKind.DOWN else event.plan
        if following != plan:
            if plan:
                yield since_s, event.at_unix_s, plan
            since_s, plan = event.at_unix_s, following
    if plan and since_s < end_s:
        yield since_s, end_s, plan
