"""Features compose: every pair of features and questions is answered, but for those of the list `ALLOWED`."""

from __future__ import annotations

import random

import pytest

from tests.matrix.__main__ import Case, named, pairs
from tests.matrix.allowed import ALLOWED
from tests.matrix.features import FEATURES, can_compose, drafted
from tests.matrix.questions import ERROR, INFEASIBLE, PLANNED, REFUSED, ask

SLOW = {"hard p99", "soft p99", "max rate", "min latency"}  # seconds each
QUICK = ("plan", "from", "add", "frontier")
SAMPLE = 15


def status_of(case: Case, seed: int = 0) -> tuple[str, str]:
    answer = ask(case.question, drafted(case.features, f"{case.name} {seed}"), limit_s=120.0)
    return answer.status, answer.message


def not_refused() -> list[Case]:
    return [case for case in pairs() if case.name not in ALLOWED]


def test_the_list_names_pairs() -> None:
    known = {case.name for case in pairs()}
    assert [name for name in ALLOWED if name not in known] == []


def is_refused(name: str) -> bool:
    """Tries a few projects: one that no plan is feasible for may be known before the pair is refused."""
    case = named(name.replace(" x ", ","))
    return any(status_of(case, seed)[0] == REFUSED for seed in range(3))


@pytest.mark.parametrize("name", [*ALLOWED][::4])
def test_a_pair_of_the_list_is_still_refused(name: str) -> None:
    """Who makes a pair work removes its line."""
    assert is_refused(name), f"{name} is no longer refused: remove it from tests/matrix/allowed.py"


@pytest.mark.slow
def test_all_pairs_of_the_list_are_still_refused() -> None:
    assert [name for name in ALLOWED if not is_refused(name)] == [], "remove them from tests/matrix/allowed.py"


def sample() -> list[str]:
    quick = [one for one in not_refused() if SLOW.isdisjoint(one.features) and one.question in QUICK]
    return [case.name for case in random.Random(0).sample(quick, SAMPLE)]


@pytest.mark.parametrize("name", sample())
def test_a_pair_is_answered(name: str) -> None:
    status, message = status_of(named(name.replace(" x ", ",")))
    assert status in (PLANNED, INFEASIBLE), message


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_other_pairs_of_features_are_answered() -> None:
    answers = {case.name: status_of(case) for case in not_refused() if case.question == "plan"}
    assert {name: found for name, found in answers.items() if found[0] in (REFUSED, ERROR)} == {}


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_all_other_pairs_are_answered() -> None:
    answers = {f"{case.name} {seed}": status_of(case, seed) for case in not_refused() for seed in range(3)}
    assert {name: found for name, found in answers.items() if found[0] in (REFUSED, ERROR)} == {}


def test_any_set_of_features_composes_in_documents() -> None:
    """All features that are no two values of one key, at once, are one valid draft."""
    for seed in range(10):
        chosen: list[str] = []
        for name in random.Random(seed).sample([*FEATURES], len(FEATURES)):
            if can_compose((*chosen, name)):
                chosen.append(name)
        found = drafted(chosen, seed)
        assert len(found.features) >= len(FEATURES) - 6
        names = [operator.name for one in found.workflows for operator in one.operators]
        assert len(names) <= 12
