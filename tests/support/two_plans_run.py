"""A made-up run in a ledger: one plan is served, then another one, and for a while both are paid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jellybean.ledger import BilledPlan, KeptAnswer, Ledger, Reading, keep_answers
from jellybean.ledger.answers import AnswerName as Name
from jellybean.ledger.answers import label_answer
from tests.support.made_up_run import BEGIN_S, PLAN, Serving

PIECE_S = 60.0
CHANGE, BOTH, END = 20, 4, 40  # numbers of the interval: the other plan serves; so long are both paid; the last one
CHANGED_S = BEGIN_S + CHANGE * PIECE_S


def write_two_plans(ledger: Ledger, first: str, second: str, clients: Sequence[str] = ("ann", "bob")) -> float:
    """Write the run of the plans with these hashes; Unix time of its end."""
    for reading in _readings(first, second, clients):
        ledger.write(reading)
    return BEGIN_S + END * PIECE_S


def _readings(first: str, second: str, clients: Sequence[str]) -> Iterator[Reading]:
    serving, plans = Serving(clients=clients), {name: replace(PLAN, hash=name) for name in (first, second)}
    for number in range(END + 1):
        both = (plans[first], plans[second])
        up = both[:1] if number < CHANGE else both if number < CHANGE + BOTH else both[1:]
        serves = first if number < CHANGE else second
        yield _renamed(serving.read(number * PIECE_S), up, serves)


def _renamed(reading: Reading, plans: tuple[BilledPlan, ...], serving: str) -> Reading:
    """The reading with counters of the plan `serving`, which begin with it."""
    work = {replace(key, plan=serving): replace(own, started=serving) for key, own in reading.work.items()}
    sent = {replace(key, plan=serving): replace(own, started=serving) for key, own in reading.sent.items()}
    return replace(reading, plans=plans, serving=serving, work=work, sent=sent)


def keep_labelled(ledger: Ledger, workflow: str, plan: str, begin_s: float, right: list[bool], every_s: float) -> None:
    """Keep an answer of a plan each `every_s` seconds, and label it as right or wrong."""
    answers = [
        KeptAnswer("ann", f"{plan[:6]}-{begin_s}-{number}", begin_s + number * every_s, workflow, plan, "", "", b"x")
        for number in range(len(right))
    ]
    keep_answers(ledger, answers, begin_s)
    for answer, is_right in zip(answers, right, strict=True):
        label_answer(ledger, Name(workflow, answer.id), lambda _, value=is_right: float(value), begin_s)
