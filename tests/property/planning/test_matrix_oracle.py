"""Feasibility and cost of random projects with any features are those of one program over everything."""

from __future__ import annotations

import random

import pytest

from tests.matrix.__main__ import Case, named, pairs, triples
from tests.matrix.compare import CHECKS, disagreements
from tests.matrix.features import drafted
from tests.matrix.questions import ERROR, ask
from tests.property.planning.test_matrix import SLOW, not_refused

SAMPLE = 12
# Cases that once disagreed, with the seed.
KNOWN = (
    ("margins x state x several", 2),  # the utilisation of shared workers was that of the largest product of margins
)


def contradicted(case: Case, seed: int) -> list[str]:
    draft = drafted(case.features, f"{case.name} {seed}")
    answer = ask(case.question, draft, limit_s=120.0)
    try:
        found = [answer.message] if answer.status == ERROR else disagreements(case.question, draft, answer)
    except TimeoutError:  # a program over everything of this size takes too long
        return []
    return [f"{case.name} {seed}: {words}" for words in found]


def quick() -> list[Case]:
    return [one for one in not_refused() if SLOW.isdisjoint(one.features) and one.question == "plan"]


@pytest.mark.parametrize("name", [case.name for case in random.Random(1).sample(quick(), SAMPLE)])
def test_a_pair_costs_what_the_program_over_everything_says(name: str) -> None:
    assert contradicted(named(name.replace(" x ", ",")), 0) == []


RESOURCES = (
    *("min energy", "min carbon x budget", "energy limit", "carbon price", "several x energy limit"),
    *("energy limit x worth", "unlike x min energy", "alike x carbon price", "energy limit x lose worker"),
    *("energy limit x max accuracy", "cut x energy limit", "cascade x min carbon", "min energy x from"),
)


@pytest.mark.parametrize("name", RESOURCES)
def test_energy_and_carbon_are_what_the_program_over_everything_says(name: str) -> None:
    assert [words for seed in (1, 2) for words in contradicted(named(name.replace(" x ", ",")), seed)] == []


@pytest.mark.parametrize(("name", "seed"), KNOWN)
def test_cases_that_once_disagreed_agree(name: str, seed: int) -> None:
    assert contradicted(named(name.replace(" x ", ",")), seed) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_quick_pairs_cost_what_the_program_over_everything_says() -> None:
    assert [words for case in quick()[::3] for words in contradicted(case, 1)] == []


@pytest.mark.nightly
@pytest.mark.timeout(36000)
def test_all_pairs_cost_what_the_program_over_everything_says() -> None:
    asked = [case for case in pairs() if case.question in CHECKS]
    assert [words for case in asked for seed in range(20) for words in contradicted(case, seed)] == []


@pytest.mark.nightly
@pytest.mark.timeout(36000)
def test_random_triples_cost_what_the_program_over_everything_says() -> None:
    asked = [case for case in triples(2000, 0) if case.question in CHECKS]
    assert [words for case in asked for words in contradicted(case, 0)] == []
