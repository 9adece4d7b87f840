"""Questions about the ledger and their answers as messages between a gateway and those who ask it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jellybean.ledger.answers import ServedAccuracy
from jellybean.ledger.audits import AuditLine
from jellybean.ledger.events import Event, EventKind
from jellybean.ledger.labels import LabelOutcome, LaterLabel
from jellybean.ledger.queries.accuracy_timeline import AccuracyPoint
from jellybean.ledger.queries.plan_counts import PlanCounts, ReceivedCount, WorkCount
from jellybean.ledger.queries.questions import CostLine, TimelinePoint
from jellybean.ledger.queries.source import Accuracies, ServedTime
from jellybean.ledger.span import Span
from jellybean.ledger.value_figures import Figure, Port, ValueLine
from jellybean_protos.gateway.v1 import ledger_pb2 as pb


def span_message(span: Span) -> pb.Span:
    """A span whose open ends are absent."""
    return pb.Span(
        since_s=span.since_s if math.isfinite(span.since_s) else None,
        until_s=span.until_s if math.isfinite(span.until_s) else None,
        plan=span.plan,
    )


def read_span(message: pb.Span) -> Span:
    """The span of a message."""
    return Span(
        message.since_s if message.HasField("since_s") else -math.inf,
        message.until_s if message.HasField("until_s") else math.inf,
        plan=message.plan,
    )


def cost_message(lines: Iterable[CostLine]) -> pb.CostResponse:
    """The lines of a cost."""
    return pb.CostResponse(
        lines=(
            pb.CostLine(
                name=one.name,
                workers_usd=one.workers_usd,
                traffic_usd=one.traffic_usd,
                done=one.done,
                failed=one.failed,
            )
            for one in lines
        )
    )


def read_cost(message: pb.CostResponse) -> tuple[CostLine, ...]:
    """The lines of a message."""
    return tuple(
        CostLine(
            one.name,
            one.workers_usd,
            one.traffic_usd,
            one.done if one.HasField("done") else None,
            one.failed if one.HasField("failed") else None,
        )
        for one in message.lines
    )


def timeline_message(points: Iterable[TimelinePoint]) -> pb.TimelineResponse:
    """The pieces of a timeline."""
    return pb.TimelineResponse(
        points=(
            pb.TimelinePoint(
                begin_s=one.begin_s,
                paid_s=one.paid_s,
                usd=one.usd,
                answered=one.answered,
                failed=one.failed,
                latency_p99_s=one.latency_p99_s,
            )
            for one in points
        )
    )


def read_timeline(message: pb.TimelineResponse) -> tuple[TimelinePoint, ...]:
    """The pieces of a message."""
    return tuple(
        TimelinePoint(
            one.begin_s,
            one.paid_s,
            one.usd,
            one.answered,
            one.failed,
            one.latency_p99_s if one.HasField("latency_p99_s") else None,
        )
        for one in message.points
    )


def served_time_message(found: ServedTime | None) -> pb.ServedTimeResponse:
    """When something was served; empty if nothing was."""
    if found is None:
        return pb.ServedTimeResponse()
    plans = (pb.PlanTime(plan=plan, seconds=seconds) for plan, seconds in found.plans.items())
    return pb.ServedTimeResponse(begin_s=found.begin_s, end_s=found.end_s, plans=plans)


def read_served_time(message: pb.ServedTimeResponse) -> ServedTime | None:
    """The times of a message; None if nothing was served."""
    if not message.HasField("begin_s"):
        return None
    return ServedTime(message.begin_s, message.end_s, {one.plan: one.seconds for one in message.plans})


def events_message(events: Iterable[Event]) -> pb.EventsResponse:
    """Events of serving."""
    return pb.EventsResponse(
        events=(
            pb.LedgerEvent(at_s=one.at_unix_s, run=one.run, kind=one.kind.value, plan=one.plan, note=one.note)
            for one in events
        )
    )


def read_events(message: pb.EventsResponse) -> tuple[Event, ...]:
    """The events of a message; without those of kinds that a later version has."""
    known = set(EventKind)
    return tuple(
        Event(one.at_s, one.run, EventKind(one.kind), one.plan, one.note) for one in message.events if one.kind in known
    )


def accuracy_message(found: Accuracies) -> pb.AccuracyResponse:
    """Accuracy of labelled answers."""
    return pb.AccuracyResponse(lines=map(_accuracy_line, found.lines), waiting=found.waiting)


def read_accuracy(message: pb.AccuracyResponse) -> Accuracies:
    """The accuracies of a message."""
    return Accuracies(tuple(map(_read_accuracy_line, message.lines)), message.waiting)


def accuracy_timeline_message(points: Iterable[AccuracyPoint]) -> pb.AccuracyTimelineResponse:
    """Accuracy of labelled answers in pieces of time."""
    pieces = (pb.AccuracyPiece(begin_s=one.begin_s, accuracy=_accuracy_line(one.accuracy)) for one in points)
    return pb.AccuracyTimelineResponse(pieces=pieces)


def read_accuracy_timeline(message: pb.AccuracyTimelineResponse) -> tuple[AccuracyPoint, ...]:
    """The pieces of a message."""
    return tuple(AccuracyPoint(one.begin_s, _read_accuracy_line(one.accuracy)) for one in message.pieces)


def _accuracy_line(one: ServedAccuracy) -> pb.AccuracyLine:
    return pb.AccuracyLine(name=one.name, labels=one.labels, accuracy=one.accuracy, low=one.low, high=one.high)


def _read_accuracy_line(one: pb.AccuracyLine) -> ServedAccuracy:
    return ServedAccuracy(one.name, one.labels, one.accuracy, one.low, one.high)


def audits_message(lines: Iterable[AuditLine]) -> pb.AuditsResponse:
    """The audits of one plan."""
    return pb.AuditsResponse(
        lines=(
            pb.AuditLine(
                begin_s=one.begin_s,
                seconds=one.seconds,
                site=one.site,
                audits=one.audits,
                agreed=one.agreed,
                shed=one.shed,
                lost=one.lost,
                selection=one.selection,
            )
            for one in lines
        )
    )


def read_audits(message: pb.AuditsResponse, workflow: str, plan: str) -> tuple[AuditLine, ...]:
    """The audits of a message, which are those of a workflow's plan."""
    return tuple(
        AuditLine(
            one.begin_s,
            one.seconds,
            workflow,
            plan,
            one.site,
            one.audits,
            one.agreed,
            one.shed,
            one.lost,
            one.selection,
        )
        for one in message.lines
    )


def labels_message(labels: Iterable[LaterLabel], workflow: str = "") -> pb.LabelRequest:
    """Labels of a workflow's requests."""
    items = (pb.RequestLabel(id=one.id, label=one.label, client=one.client) for one in labels)
    return pb.LabelRequest(labels=items, workflow=workflow)


def read_labels_message(message: pb.LabelRequest) -> tuple[LaterLabel, ...]:
    """The labels of a message."""
    return tuple(
        LaterLabel(one.id, one.label, one.client if one.HasField("client") else None) for one in message.labels
    )


def outcomes_message(outcomes: Iterable[LabelOutcome]) -> pb.LabelResponse:
    """What became of labels."""
    return pb.LabelResponse(
        outcomes=(
            pb.LabelOutcome(problem=one.problem) if one.verdict is None else pb.LabelOutcome(verdict=one.verdict)
            for one in outcomes
        )
    )


def read_outcomes(message: pb.LabelResponse) -> tuple[LabelOutcome, ...]:
    """The outcomes of a message."""
    return tuple(
        LabelOutcome(one.verdict if one.HasField("verdict") else None, one.problem) for one in message.outcomes
    )


def counts_message(found: PlanCounts | None) -> pb.CountsResponse:
    """Counts of a plan; without a plan if nothing was served."""
    if found is None:
        return pb.CountsResponse()
    return pb.CountsResponse(
        plan=found.plan,
        received=(
            pb.ReceivedCount(begin_s=one.begin_s, seconds=one.seconds, requests=one.requests, workflow=one.workflow)
            for one in found.received
        ),
        work=map(_work_message, found.work),
        values=map(_value_message, found.values),
    )


def _work_message(one: WorkCount) -> pb.WorkCount:
    return pb.WorkCount(
        begin_s=one.begin_s,
        seconds=one.seconds,
        operator=one.operator,
        worker=one.worker,
        completed=one.completed,
        busy_s=one.busy_s,
        workflow=one.workflow,
    )


def _value_message(one: ValueLine) -> pb.ValueCount:
    return pb.ValueCount(
        begin_s=one.begin_s,
        seconds=one.seconds,
        workflow=one.workflow,
        port=one.port.value,
        name=one.name,
        figure=one.figure.value,
        requests=one.requests,
        mean=one.mean,
        deviation=one.deviation,
    )


def read_counts(message: pb.CountsResponse) -> PlanCounts | None:
    """The counts of a message; None if nothing was served."""
    if not message.plan:
        return None
    return PlanCounts(
        message.plan,
        tuple(ReceivedCount(one.begin_s, one.seconds, one.requests, one.workflow) for one in message.received),
        tuple(
            WorkCount(one.begin_s, one.seconds, one.operator, one.worker, one.completed, one.busy_s, one.workflow)
            for one in message.work
        ),
        _read_values(message.values, message.plan),
    )


def _read_values(values: Sequence[pb.ValueCount], plan: str) -> tuple[ValueLine, ...]:
    return tuple(
        ValueLine(
            one.begin_s,
            one.seconds,
            one.workflow,
            plan,
            Port(one.port),
            one.name,
            Figure(one.figure),
            one.requests,
            one.mean,
            one.deviation,
        )
        for one in values
    )
