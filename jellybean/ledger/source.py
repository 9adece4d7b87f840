"""Whom commands ask about the ledger: a database that is opened here, or a gateway elsewhere that writes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jellybean.ledger import answers, questions
from jellybean.ledger.answers import LabelledBy, ServedAccuracy
from jellybean.ledger.events import Event
from jellybean.ledger.labels import EXACT_MATCH, LabelOutcome, LabelRule, LaterLabel, label_answers
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.plan_counts import PlanCounts, plan_counts
from jellybean.ledger.questions import By, CostLine, Span, TimelinePoint


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracy of labelled answers by group, and the number of answers that wait for a label."""

    lines: tuple[ServedAccuracy, ...]
    waiting: int


class LedgerSource(Protocol):
    """The questions about a ledger. All may raise a JellyBeanError that says why there is no answer."""

    def cost(self, by: By, span: Span = Span()) -> tuple[CostLine, ...]:
        """Cost of a span, divided by `by`, as `questions.cost`."""
        ...

    def timeline(self, piece_s: int, span: Span = Span()) -> tuple[TimelinePoint, ...]:
        """Pieces of time in which something was served or paid, as `questions.timeline`."""
        ...

    def events(self, span: Span = Span()) -> tuple[Event, ...]:
        """What happened to serving in a span, in the order in which it was written."""
        ...

    def accuracy(self, by: LabelledBy, span: Span = Span()) -> Accuracies:
        """Accuracy of the workflow's answers that were given in a span and have labels by now."""
        ...

    def label(self, labels: Sequence[LaterLabel]) -> tuple[LabelOutcome, ...]:
        """Judge the workflow's kept answers by labels; the outcomes, in the order of the labels."""
        ...

    def counts(self, plan: str | None, span: Span = Span()) -> PlanCounts | None:
        """Counts of a plan (its hash) by interval, by default of the last one; None if nothing was served."""
        ...


@dataclass(frozen=True, slots=True)
class OpenedLedger:
    """A ledger that is opened here; None: nothing was ever written to it.

    `workflow`: whose answers are meant where answers and labels are. `rule`: how labels judge them.
    """

    ledger: Ledger | None
    workflow: str = ""
    rule: LabelRule = EXACT_MATCH

    def cost(self, by: By, span: Span = Span()) -> tuple[CostLine, ...]:
        return () if self.ledger is None else questions.cost(self.ledger, by, span)

    def timeline(self, piece_s: int, span: Span = Span()) -> tuple[TimelinePoint, ...]:
        return () if self.ledger is None else questions.timeline(self.ledger, piece_s, span)

    def events(self, span: Span = Span()) -> tuple[Event, ...]:
        found = () if self.ledger is None else questions.all_events(self.ledger)
        return tuple(event for event in found if span.since_s <= event.at_unix_s < span.until_s)

    def accuracy(self, by: LabelledBy, span: Span = Span()) -> Accuracies:
        if self.ledger is None:
            return Accuracies((), 0)
        lines = answers.served_accuracy(self.ledger, self.workflow, by, span)
        return Accuracies(lines, answers.waiting_answers(self.ledger, self.workflow))

    def label(self, labels: Sequence[LaterLabel]) -> tuple[LabelOutcome, ...]:
        if self.ledger is None:
            return tuple(LabelOutcome(None, "nothing was served yet") for _ in labels)
        return label_answers(self.ledger, self.workflow, self.rule, labels)

    def counts(self, plan: str | None, span: Span = Span()) -> PlanCounts | None:
        return None if self.ledger is None else plan_counts(self.ledger, plan, span)
