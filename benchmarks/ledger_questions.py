"""All questions that commands ask of a ledger, and how long their answers take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.ledger_made_up import WORKFLOW
from jellybean.ledger.answers import LabelledBy, served_accuracy, waiting_answers
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.plan_cost import served_seconds
from jellybean.ledger.queries.questions import By, all_events, cost, served_between
from jellybean.ledger.queries.questions import served as served_by
from jellybean.ledger.queries.source import OpenedLedger
from jellybean.ledger.span import Span
from jellybean.report.served.served import ServedQuestion, last_days, served
from jellybean.report.served.served_prediction import PlannedFigures

REPEATS = 3  # of each question; the median counts
Question = Callable[[Ledger], object]


def all_questions(now_unix_s: float, plan: str) -> Mapping[str, Question]:
    """Command and option -> its question, about everything that a ledger has. `plan`: one that was served."""
    asked: dict[str, Question] = {f"cost --by {by}": partial(_cost, by) for by in By}
    asked["history"] = all_events
    asked |= {f"query.served(by={by})": partial(_served_by, by) for by in (By.DAY, By.HOUR)}
    asked |= {f"accuracy --by {by}": partial(_accuracy, by) for by in LabelledBy}
    asked["report"] = partial(_report, last_days(now_unix_s))
    asked["report --plan"] = partial(_report, Span(plan=plan))
    asked["report --between (all)"] = partial(_report, Span())
    return asked


def seconds_of(ledger: Ledger, question: Question) -> float:
    """How long the answer takes."""
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        question(ledger)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _cost(by: By, ledger: Ledger) -> object:
    return cost(ledger, by)


def _served_by(by: By, ledger: Ledger) -> object:
    return served_by(ledger, by)


def _accuracy(by: LabelledBy, ledger: Ledger) -> object:
    return (
        served_accuracy(ledger, WORKFLOW, by),
        served_accuracy(ledger, WORKFLOW, LabelledBy.PLAN),
        waiting_answers(ledger, WORKFLOW),
    )


def _report(span: Span, ledger: Ledger) -> object:
    served_between(ledger, span)
    planned = {plan: PlannedFigures(2.0, 1.0, {WORKFLOW: 90.0}) for plan in served_seconds(ledger, span)}
    return served(OpenedLedger(ledger), ServedQuestion(span, (WORKFLOW,), planned))
