"""What a project has served and what that cost, from its ledger, beside what its plans predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jellybean.display import formats
from jellybean.ledger.answers import LabelledBy, ServedAccuracy
from jellybean.ledger.events import Event, EventKind
from jellybean.ledger.queries.accuracy_timeline import AccuracyPoint
from jellybean.ledger.queries.questions import By, CostLine, TimelinePoint
from jellybean.ledger.queries.source import LedgerSource
from jellybean.ledger.span import Span
from jellybean.report.charts import Tick
from jellybean.report.served.served_curves import ServedCurve, TimeAxis, accuracy_curve, cost_curve, request_curves
from jellybean.report.served.served_prediction import PlannedFigures, ServedPrediction, served_prediction, serving_steps

DAYS = 7
PIECES = 60  # of time in a curve, at most
ACCURACY_PIECES = 20  # fewer, so that each has labels enough for an interval that says something
MOST_LINES = 8  # of operators or clients that are named
_DAY_S = 86_400
_FINE_S, _FINE_FOR_S = 10, 600.0  # pieces of a short time; later intervals are added up to five minutes
_PIECES_S = (300, 1_800, 3_600, 10_800, 21_600, _DAY_S, 2 * _DAY_S)  # a curve has the shortest that makes few enough
_WEEK_S = 7 * _DAY_S


@dataclass(frozen=True, slots=True)
class ServedQuestion:
    """What is asked of the ledger: a span of time or a plan. `workflows`: whose labels count.

    `planned`: hash -> what the plan predicted; plans that it lacks have no prediction.
    """

    span: Span
    workflows: tuple[str, ...] = ()
    planned: Mapping[str, PlannedFigures] = field(default_factory=dict)


def last_days(now_unix_s: float) -> Span:
    """The span that a report shows if none is asked for."""
    return Span(now_unix_s - DAYS * _DAY_S)


@dataclass(frozen=True, slots=True)
class Served:
    """What was served in the span of a question. `operators`, `clients`: the dearest, the last with all others' sum.

    `since_unix_s`, `until_unix_s`: begin of the first interval and end of the last one. `paid_s`: for which workers
    were paid. `accuracy`: of each workflow with labels. `predicted`: None if a plan that was served is unknown.
    """

    since_unix_s: float
    until_unix_s: float
    plan: str
    paid_s: float
    usd: float
    answered: int
    failed: int
    accuracy: tuple[ServedAccuracy, ...]
    predicted: ServedPrediction | None
    operators: tuple[CostLine, ...]
    clients: tuple[CostLine, ...]
    changes: tuple[Event, ...]  # another plan took over
    points: tuple[TimelinePoint, ...]
    labelled: Mapping[str, tuple[AccuracyPoint, ...]]  # workflow -> accuracy over time
    curves: tuple[ServedCurve, ...]

    @property
    def usd_per_thousand(self) -> float | None:
        """USD for a thousand answered requests."""
        return 1_000 * self.usd / self.answered if self.answered else None

    @property
    def usd_per_h(self) -> float | None:
        """USD for an hour for which workers were paid."""
        return 3_600 * self.usd / self.paid_s if self.paid_s else None

    @property
    def plans(self) -> int:
        """Number of plans that took over."""
        return len(self.changes)

    @property
    def ticks(self) -> tuple[Tick, Tick]:
        """Begin and end of the axis of time."""
        return Tick(0.0, formats.moment(self.since_unix_s)), Tick(100.0, formats.moment(self.until_unix_s))

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values; times are Unix times. The curves are `timeline` and `accuracy_over_time`."""
        plan = self.predicted
        predicted = None if plan is None else asdict(plan) | {"usd_per_thousand": plan.usd_per_thousand}
        return {
            "since_unix_s": self.since_unix_s,
            "until_unix_s": self.until_unix_s,
            **({"plan": self.plan} if self.plan else {}),
            "paid_s": self.paid_s,
            "usd": self.usd,
            "usd_per_h": self.usd_per_h,
            "usd_per_thousand": self.usd_per_thousand,
            "answered": self.answered,
            "failed": self.failed,
            "accuracy": {line.name: _accuracy(line) for line in self.accuracy},
            "predicted": predicted,
            "operators": [asdict(line) for line in self.operators],
            "clients": [asdict(line) for line in self.clients],
            "plans": self.plans,
            "plan_changes": [{"at_unix_s": change.at_unix_s, "plan": change.plan} for change in self.changes],
            "timeline": [asdict(point) for point in self.points],
            "accuracy_over_time": {
                workflow: [{"begin_s": point.begin_s, **_accuracy(point.accuracy)} for point in points]
                for workflow, points in self.labelled.items()
            },
        }


def _accuracy(line: ServedAccuracy) -> dict[str, float]:
    return {"labels": line.labels, "accuracy": line.accuracy, "low": line.low, "high": line.high}


def served(ledger: LedgerSource, question: ServedQuestion) -> Served | None:
    """What was served in the span that is asked for; None if nothing was."""
    span, time = question.span, ledger.served_time(question.span)
    if time is None:
        return None
    begin_s, end_s = time.begin_s, time.end_s
    piece_s = _piece_s(end_s - begin_s, PIECES)
    happened = ledger.events()
    changes = tuple(one for one in happened if one.kind is EventKind.PLAN and begin_s <= one.at_unix_s <= end_s)
    axis = TimeAxis(begin_s, end_s, piece_s, tuple(change.at_unix_s for change in changes))
    points = ledger.timeline(piece_s, span)
    operators, clients = (_dearest(ledger.cost(by, span)) for by in (By.OPERATOR, By.CLIENT))
    by_plan = {name: _with_labels(ledger.accuracy(LabelledBy.PLAN, name, span).lines) for name in question.workflows}
    labels = _Labels(ledger, question, happened, axis)
    labelled = {name: labels.over_time(name) for name, lines in by_plan.items() if lines}
    cost_steps = serving_steps(
        happened, begin_s, end_s, {plan: own.usd_per_h for plan, own in question.planned.items()}
    )
    costs = cost_curve(points, axis, cost_steps)
    accuracy = (ledger.accuracy(LabelledBy.ALL, name, span).lines[0] for name in labelled)
    return Served(
        since_unix_s=begin_s,
        until_unix_s=end_s,
        plan=span.plan,
        paid_s=math.fsum(point.paid_s for point in points),
        usd=math.fsum(point.usd for point in points),
        answered=sum(point.answered for point in points),
        failed=sum(point.failed for point in points),
        accuracy=tuple(accuracy),
        predicted=served_prediction(question.planned, time.plans, by_plan),
        operators=operators,
        clients=clients,
        changes=changes,
        points=points,
        labelled=labelled,
        curves=(*([] if costs is None else [costs]), *labels.curves(labelled), *request_curves(points, axis)),
    )


@dataclass(frozen=True, slots=True)
class _Labels:
    """Accuracy over time of a question's workflows."""

    ledger: LedgerSource
    question: ServedQuestion
    events: Sequence[Event]
    axis: TimeAxis

    @property
    def piece_s(self) -> int:
        return _piece_s(self.axis.end_s - self.axis.begin_s, ACCURACY_PIECES)

    def over_time(self, workflow: str) -> tuple[AccuracyPoint, ...]:
        return self.ledger.accuracy_timeline(workflow, self.piece_s, self.question.span)

    def curves(self, labelled: Mapping[str, Sequence[AccuracyPoint]]) -> list[ServedCurve]:
        found = []
        for workflow, points in labelled.items():
            values = {plan: own.accuracy.get(workflow) for plan, own in self.question.planned.items()}
            known = {plan: value for plan, value in values.items() if value is not None}
            steps = serving_steps(self.events, self.axis.begin_s, self.axis.end_s, known)
            label = "Accuracy by labels" + (f" of {workflow}" if len(labelled) > 1 else "")
            found.append(accuracy_curve(label, points, self.piece_s, self.axis, steps))
        return [curve for curve in found if curve is not None]


def _with_labels(lines: Sequence[ServedAccuracy]) -> tuple[ServedAccuracy, ...]:
    return tuple(line for line in lines if line.labels)


def _piece_s(seconds: float, most: int) -> int:
    """Length of the pieces of time of a curve over so many seconds, at most about `most` of them."""
    if seconds <= _FINE_FOR_S:
        return max(_FINE_S, _FINE_S * math.ceil(seconds / most / _FINE_S))
    whole_weeks = _WEEK_S * max(1, math.ceil(seconds / most / _WEEK_S))
    return next((size for size in _PIECES_S if seconds / size <= most), whole_weeks)


def _dearest(lines: Sequence[CostLine]) -> tuple[CostLine, ...]:
    if len(lines) <= MOST_LINES:
        return tuple(lines)
    rest = lines[MOST_LINES - 1 :]
    sums = (sum(getattr(line, name) for line in rest) for name in ("workers_usd", "traffic_usd", "done", "failed"))
    return (*lines[: MOST_LINES - 1], CostLine(f"{len(rest)} others", *sums))
