"""Tries all pairs of features and questions on random projects, and prints which are planned and which are refused.

python -m tests.matrix [--pairs A,B ...] [--count N] [--seed S] [--triples N]
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.matrix.compare import disagreements
from tests.matrix.features import FEATURES, can_compose, drafted
from tests.matrix.questions import ERROR, LIMIT_S, QUESTIONS, REFUSED, Answer, ask

ORDER = (ERROR, REFUSED, "out of time", "infeasible", "planned")


@dataclass(frozen=True)
class Case:
    """Features with a question."""

    features: tuple[str, ...]
    question: str = "plan"

    @property
    def name(self) -> str:
        return " x ".join((*self.features, *(() if self.question == "plan" else (self.question,))))


def pairs() -> Iterator[Case]:
    """All pairs of two features that compose, and of a feature and a question."""
    for two in itertools.combinations(FEATURES, 2):
        if can_compose(two):
            yield Case(two)
    for feature, question in itertools.product(FEATURES, QUESTIONS):
        if question != "plan":
            yield Case((feature,), question)


def triples(number: int, seed: int) -> Iterator[Case]:
    """So many random sets of three, of features and at most one question."""
    rng = random.Random(f"triples {seed}")
    names = [*FEATURES, *(name for name in QUESTIONS if name != "plan")]
    while number:
        three = rng.sample(names, 3)
        asked = [name for name in three if name in QUESTIONS]
        features = tuple(name for name in FEATURES if name in three)
        if len(asked) <= 1 and can_compose(features):
            number -= 1
            yield Case(features, asked[0] if asked else "plan")


def named(text: str) -> Case:
    """The case of `--pairs A,B`: names of features, and of a question."""
    names = [part.strip() for part in text.split(",")]
    asked = [name for name in names if name in QUESTIONS]
    features = tuple(name for name in names if name in FEATURES)
    if len(asked) > 1 or len(asked) + len(features) < len(names):
        known = ", ".join((*FEATURES, *QUESTIONS))
        raise SystemExit(f"--pairs {text}: write features and at most one question, such as several,cut: {known}")
    return Case(features, asked[0] if asked else "plan")


def tried(case: Case, seeds: Iterable[int], limit_s: float, *, compared: bool) -> list[Answer]:
    """The answers for so many random projects. `compared`: prints what the oracle contradicts."""
    found = []
    for number in seeds:
        draft = drafted(case.features, f"{case.name} {number}")
        found.append(ask(case.question, draft, limit_s))
        if found[-1].status == ERROR:
            print(f"!! {case.name} --seed {number}: {found[-1].message}", flush=True)
        try:
            for words in disagreements(case.question, draft, found[-1]) if compared else ():
                print(f"!! {case.name} --seed {number}: {words}", flush=True)
        except TimeoutError as error:
            print(f"?? {case.name} --seed {number}: not compared: {error}", flush=True)
    return found


def row(case: Case, answers: Sequence[Answer]) -> str:
    """The line of a table: the worst status, how often there is each, and the message of the worst."""
    counts = Counter(answer.status for answer in answers)
    worst = min(answers, key=lambda answer: ORDER.index(answer.status))
    parts = ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])
    lines = worst.message.strip().splitlines()
    is_told = worst.status in (ERROR, REFUSED) and lines
    message = lines[-1 if worst.status == ERROR else 0] if is_told else ""
    seconds = sum(answer.seconds for answer in answers)
    return f"{case.name:34} {parts:30} {seconds:6.1f} s  {message}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument(
        "--pairs",
        action="append",
        help="a case such as several,cut or mixture,explain; may be repeated; all by default",
    )
    parser.add_argument("--only", default="", help="all pairs with this feature or question")
    parser.add_argument("--count", type=int, default=1, help="random projects of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--triples", type=int, default=0, help="random triples, instead of pairs")
    parser.add_argument("--slice", default="0/1", help="K/N: every N-th case from the K-th on")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of each command")
    parser.add_argument("--skip", default="", help="without these features and questions, by commas")
    parser.add_argument("--compare", action="store_true", help="compare feasibility and cost with the oracle")
    options = parser.parse_args(arguments)
    cases = [named(text) for text in options.pairs] if options.pairs else list(pairs())
    if options.triples:
        cases = list(triples(options.triples, options.seed))
    if options.only:
        cases = [case for case in cases if options.only in (*case.features, case.question)]
    skipped = set(options.skip.split(","))
    cases = [case for case in cases if skipped.isdisjoint((*case.features, case.question))]
    first, step = (int(part) for part in options.slice.split("/"))
    seeds = range(options.seed, options.seed + options.count)
    totals: Counter[str] = Counter()
    started = time.monotonic()
    for case in cases[first::step]:
        answers = tried(case, seeds, options.limit, compared=options.compare)
        totals[min((answer.status for answer in answers), key=ORDER.index)] += 1
        print(row(case, answers), flush=True)
    parts = ", ".join(f"{totals[status]} {status}" for status in ORDER if totals[status])
    print(f"{totals.total()} cases by their worst project: {parts} ({time.monotonic() - started:.0f} s)")
    return 1 if totals[ERROR] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
