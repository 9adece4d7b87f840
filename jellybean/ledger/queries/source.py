"""Whom commands ask about the ledger: a database that is opened here, or a gateway elsewhere that writes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jellybean.ledger import answers
from jellybean.ledger.answers import LabelledBy, ServedAccuracy
from jellybean.ledger.audits import AuditLine, span_and_first_audits
from jellybean.ledger.events import Event
from jellybean.ledger.labels import EXACT_MATCH, LabelOutcome, LabelRule, LaterLabel, label_answers
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries import questions
from jellybean.ledger.queries.accuracy_timeline import AccuracyPoint, accuracy_timeline
from jellybean.ledger.queries.plan_cost import served_seconds
from jellybean.ledger.queries.plan_counts import PlanCounts, plan_counts
from jellybean.ledger.queries.questions import By, CostLine, TimelinePoint
from jellybean.ledger.span import Span


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracy of labelled answers by group, and the number of answers that wait for a label."""

    lines: tuple[ServedAccuracy, ...]
    waiting: int


@dataclass(frozen=True, slots=True)
class ServedTime:
    """Unix times at which the first interval of a span begins and the last one ends.

    `plans`: hash -> seconds in which the plan served new requests and workers were paid.
    """

    begin_s: float
    end_s: float
    plans: Mapping[str, float]


class LedgerSource(Protocol):
    """The questions about a ledger. All may raise a JellyBeanError that says why there is no answer.

    `workflow`: whose answers are meant; a gateway that serves one knows whose where it is empty.
    """

    def cost(self, by: By, span: Span = Span()) -> tuple[CostLine, ...]:
        """Cost of a span, divided by `by`, as `questions.cost`."""
        ...

    def timeline(self, piece_s: int, span: Span = Span()) -> tuple[TimelinePoint, ...]:
        """Pieces of time in which something was served or paid, as `questions.timeline`."""
        ...

    def served_time(self, span: Span = Span()) -> ServedTime | None:
        """When something was served in a span, and for how long by which plan; None if nothing was."""
        ...

    def events(self, span: Span = Span()) -> tuple[Event, ...]:
        """What happened to serving in a span, in the order in which it was written."""
        ...

    def accuracy(self, by: LabelledBy, workflow: str, span: Span = Span()) -> Accuracies:
        """Accuracy of a workflow's answers that were given in a span and have labels by now."""
        ...

    def accuracy_timeline(self, workflow: str, piece_s: int, span: Span = Span()) -> tuple[AccuracyPoint, ...]:
        """Accuracy of a workflow's labelled answers in pieces of time, as `accuracy_timeline.accuracy_timeline`."""
        ...

    def audits(self, workflow: str, plan: str, span: Span = Span()) -> tuple[AuditLine, ...]:
        """The audits of a workflow's plan in a span, and its first ones, as `audits.span_and_first_audits`."""
        ...

    def label(self, workflow: str, labels: Sequence[LaterLabel]) -> tuple[LabelOutcome, ...]:
        """Judge a workflow's kept answers by labels; the outcomes, in the order of the labels."""
        ...

    def counts(self, plan: str | None, span: Span = Span()) -> PlanCounts | None:
        """Counts of a plan (its hash) by interval, by default of the last one; None if nothing was served."""
        ...


@dataclass(frozen=True, slots=True)
class OpenedLedger:
    """A ledger that is opened here; None: nothing was ever written to it.

    `rules`: workflow -> how labels judge its answers; the empty name: those of a workflow that it lacks.
    """

    ledger: Ledger | None
    rules: Mapping[str, LabelRule] = field(default_factory=dict)

    def cost(self, by: By, span: Span = Span()) -> tuple[CostLine, ...]:
        return () if self.ledger is None else questions.cost(self.ledger, by, span)

    def timeline(self, piece_s: int, span: Span = Span()) -> tuple[TimelinePoint, ...]:
        return () if self.ledger is None else questions.timeline(self.ledger, piece_s, span)

    def served_time(self, span: Span = Span()) -> ServedTime | None:
        between = None if self.ledger is None else questions.served_between(self.ledger, span)
        if self.ledger is None or between is None:
            return None
        return ServedTime(*between, served_seconds(self.ledger, span))

    def events(self, span: Span = Span()) -> tuple[Event, ...]:
        found = () if self.ledger is None else questions.all_events(self.ledger)
        return tuple(event for event in found if span.since_s <= event.at_unix_s < span.until_s)

    def accuracy(self, by: LabelledBy, workflow: str, span: Span = Span()) -> Accuracies:
        if self.ledger is None:
            return Accuracies((), 0)
        lines = answers.served_accuracy(self.ledger, workflow, by, span)
        return Accuracies(lines, answers.waiting_answers(self.ledger, workflow))

    def accuracy_timeline(self, workflow: str, piece_s: int, span: Span = Span()) -> tuple[AccuracyPoint, ...]:
        return () if self.ledger is None else accuracy_timeline(self.ledger, workflow, piece_s, span)

    def audits(self, workflow: str, plan: str, span: Span = Span()) -> tuple[AuditLine, ...]:
        return () if self.ledger is None else tuple(span_and_first_audits(self.ledger, workflow, plan, span))

    def label(self, workflow: str, labels: Sequence[LaterLabel]) -> tuple[LabelOutcome, ...]:
        if self.ledger is None:
            return tuple(LabelOutcome(None, "nothing was served yet") for _ in labels)
        rule = self.rules.get(workflow, self.rules.get("", EXACT_MATCH))
        return label_answers(self.ledger, workflow, rule, labels)

    def counts(self, plan: str | None, span: Span = Span()) -> PlanCounts | None:
        return None if self.ledger is None else plan_counts(self.ledger, plan, span)
