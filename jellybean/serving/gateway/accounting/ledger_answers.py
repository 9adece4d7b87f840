"""Answers of a gateway about the ledger that it writes, over a connection of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from jellybean.errors import InputError
from jellybean.ledger.answers import LabelledBy
from jellybean.ledger.labels import LabelRule
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.questions import By
from jellybean.ledger.queries.source import OpenedLedger
from jellybean.serving.gateway.requests.admission import MAX_ID_BYTES
from jellybean.serving.ledger_messages import (
    accuracy_message,
    accuracy_timeline_message,
    audits_message,
    cost_message,
    counts_message,
    events_message,
    outcomes_message,
    read_labels_message,
    read_span,
    served_time_message,
    timeline_message,
)
from jellybean_protos.gateway.v1 import ledger_pb2 as pb

MOST_LABELS = 1_000  # of one call: each is a transaction of its own
MAX_LABEL_BYTES = 4_096
SHORTEST_PIECE_S = 10  # of a timeline: the ledger has no shorter intervals

Choice = TypeVar("Choice", bound=StrEnum)


class LedgerAnswers:
    """Answers questions, each as a message, in the thread that calls. InputError for a question that is none.

    `rules`: workflow -> how labels judge its answers; empty: those of a workflow that it lacks.
    """

    def __init__(self, url: str, rules: Mapping[str, LabelRule]) -> None:
        self._ledger = Ledger(url)
        self._source = OpenedLedger(self._ledger, rules)

    def close(self) -> None:
        """Close the connections."""
        self._ledger.close()

    def cost(self, request: pb.CostRequest) -> pb.CostResponse:
        return cost_message(self._source.cost(_chosen(By, request.by), read_span(request.span)))

    def timeline(self, request: pb.TimelineRequest) -> pb.TimelineResponse:
        _check_piece(request.piece_s)
        return timeline_message(self._source.timeline(request.piece_s, read_span(request.span)))

    def served_time(self, request: pb.ServedTimeRequest) -> pb.ServedTimeResponse:
        return served_time_message(self._source.served_time(read_span(request.span)))

    def events(self, request: pb.EventsRequest) -> pb.EventsResponse:
        return events_message(self._source.events(read_span(request.span)))

    def accuracy(self, request: pb.AccuracyRequest) -> pb.AccuracyResponse:
        by, span = _chosen(LabelledBy, request.by), read_span(request.span)
        return accuracy_message(self._source.accuracy(by, request.workflow, span))

    def accuracy_timeline(self, request: pb.AccuracyTimelineRequest) -> pb.AccuracyTimelineResponse:
        _check_piece(request.piece_s)
        span = read_span(request.span)
        return accuracy_timeline_message(self._source.accuracy_timeline(request.workflow, request.piece_s, span))

    def audits(self, request: pb.AuditsRequest) -> pb.AuditsResponse:
        return audits_message(self._source.audits(request.workflow, request.plan, read_span(request.span)))

    def counts(self, request: pb.CountsRequest) -> pb.CountsResponse:
        return counts_message(self._source.counts(request.plan or None, read_span(request.span)))

    def label(self, request: pb.LabelRequest) -> pb.LabelResponse:
        _check_labels(request.labels)
        return outcomes_message(self._source.label(request.workflow, read_labels_message(request)))


def _chosen(choices: type[Choice], text: str) -> Choice:
    try:
        return choices(text)
    except ValueError as error:
        raise InputError(f"by {text[:40]!r}: it is one of {', '.join(choices)}") from error


def _check_piece(piece_s: int) -> None:
    if piece_s < SHORTEST_PIECE_S:
        raise InputError(f"pieces of {piece_s} s: the ledger has none shorter than {SHORTEST_PIECE_S} s")


def _check_labels(labels: Iterable[pb.RequestLabel]) -> None:
    count = 0
    for count, one in enumerate(labels, start=1):
        if not one.id:
            raise InputError(f"label {count} has no id: which request is it for?")
        for what, text, most in (("id", one.id, MAX_ID_BYTES), ("label", one.label, MAX_LABEL_BYTES)):
            if (size := len(text.encode())) > most:
                raise InputError(f"label {count}: its {what} has {size} bytes, and may have {most}")
    if count > MOST_LABELS:
        raise InputError(
            f"{count} labels in one call: at most {MOST_LABELS} are taken, send the others in further calls"
        )
