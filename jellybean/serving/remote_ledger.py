"""The ledger of a gateway elsewhere, asked over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.ledger.answers import LabelledBy
from jellybean.ledger.audits import AuditLine
from jellybean.ledger.events import Event
from jellybean.ledger.labels import LabelOutcome, LaterLabel
from jellybean.ledger.queries.accuracy_timeline import AccuracyPoint
from jellybean.ledger.queries.plan_counts import PlanCounts
from jellybean.ledger.queries.questions import By, CostLine, TimelinePoint
from jellybean.ledger.queries.source import Accuracies, ServedTime
from jellybean.ledger.span import Span
from jellybean.serving.client import Client
from jellybean.serving.ledger_messages import (
    labels_message,
    read_accuracy,
    read_accuracy_timeline,
    read_audits,
    read_cost,
    read_counts,
    read_events,
    read_outcomes,
    read_served_time,
    read_timeline,
    span_message,
)
from jellybean_protos.gateway.v1 import ledger_pb2 as pb

LABELS_AT_ONCE = 250  # of one call: each is a transaction that reaches the gateway's disk


class RemoteLedger:
    """A `LedgerSource`. Its errors are RequestErrors: the gateway's reason, or why it cannot be reached."""

    def __init__(self, client: Client) -> None:
        """`client`: with an admin's certificate."""
        self._client = client

    def cost(self, by: By, span: Span = Span()) -> tuple[CostLine, ...]:
        request = pb.CostRequest(by=by.value, span=span_message(span))
        return read_cost(self._client.ask_ledger("Cost", request))

    def timeline(self, piece_s: int, span: Span = Span()) -> tuple[TimelinePoint, ...]:
        request = pb.TimelineRequest(piece_s=piece_s, span=span_message(span))
        return read_timeline(self._client.ask_ledger("Timeline", request))

    def served_time(self, span: Span = Span()) -> ServedTime | None:
        request = pb.ServedTimeRequest(span=span_message(span))
        return read_served_time(self._client.ask_ledger("ServedTime", request))

    def events(self, span: Span = Span()) -> tuple[Event, ...]:
        return read_events(self._client.ask_ledger("Events", pb.EventsRequest(span=span_message(span))))

    def accuracy(self, by: LabelledBy, workflow: str, span: Span = Span()) -> Accuracies:
        request = pb.AccuracyRequest(by=by.value, workflow=workflow, span=span_message(span))
        return read_accuracy(self._client.ask_ledger("Accuracy", request))

    def accuracy_timeline(self, workflow: str, piece_s: int, span: Span = Span()) -> tuple[AccuracyPoint, ...]:
        request = pb.AccuracyTimelineRequest(workflow=workflow, piece_s=piece_s, span=span_message(span))
        return read_accuracy_timeline(self._client.ask_ledger("AccuracyTimeline", request))

    def audits(self, workflow: str, plan: str, span: Span = Span()) -> tuple[AuditLine, ...]:
        request = pb.AuditsRequest(workflow=workflow, plan=plan, span=span_message(span))
        return read_audits(self._client.ask_ledger("Audits", request), workflow, plan)

    def label(self, workflow: str, labels: Sequence[LaterLabel]) -> tuple[LabelOutcome, ...]:
        found: list[LabelOutcome] = []
        for begin in range(0, len(labels), LABELS_AT_ONCE):
            part = labels_message(labels[begin : begin + LABELS_AT_ONCE], workflow)
            found += read_outcomes(self._client.ask_ledger("Label", part))
        return tuple(found)

    def counts(self, plan: str | None, span: Span = Span()) -> PlanCounts | None:
        request = pb.CountsRequest(plan=plan or "", span=span_message(span))
        return read_counts(self._client.ask_ledger("Counts", request))
