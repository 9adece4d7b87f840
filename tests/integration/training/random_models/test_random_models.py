"""Random models train as plain torch does, by any schedule on any devices, or are refused before the first epoch."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.integration.training.compared import compared
from tests.integration.training.random_models.models import made, random_training, rows
from tests.support.rank_pool import RankPool

torch.set_num_threads(1)
SPARSE_BEFORE_DENSE = 477  # gradients of one table in two stages of a device
FEW, SLOW, NIGHTLY = (*range(3), SPARSE_BEFORE_DENSE), range(3, 203), range(203, 2203)
AT_ONCE = 20  # models of a test: one line of a report for each
MOST_REFUSED = 0.5  # of a test's models: a runtime that refuses more than that trains too little


def _chunks(numbers: range) -> list[range]:
    return [numbers[first : first + AT_ONCE] for first in range(0, len(numbers), AT_ONCE)]


@pytest.fixture(scope="module")
def pool():
    with RankPool(3) as made_pool:
        yield made_pool


def _check(numbers: Iterable[int], pool: RankPool) -> None:
    verdicts = [compared(random_training(number), pool) for number in numbers]
    wrong = [str(verdict) for verdict in verdicts if verdict.wrong]
    assert not wrong, "\n".join(wrong)
    refused = [str(verdict) for verdict in verdicts if verdict.refusal]
    assert len(refused) <= MOST_REFUSED * len(verdicts), "\n".join(refused)


def test_a_few(pool):
    _check(FEW, pool)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", _chunks(SLOW), ids=lambda numbers: f"{numbers.start}-{numbers.stop - 1}")
def test_two_hundred(pool, numbers):
    _check(numbers, pool)


@pytest.mark.nightly
@pytest.mark.parametrize("numbers", _chunks(NIGHTLY), ids=lambda numbers: f"{numbers.start}-{numbers.stop - 1}")
def test_two_thousand(pool, numbers):
    _check(numbers, pool)


def test_a_number_gives_one_training():
    for number in (1, 2, 3):
        one, other = made(number).state_dict(), made(number).state_dict()
        assert all(torch.equal(value, other[name]) for name, value in one.items())
        assert random_training(number).settings == random_training(number).settings
        assert torch.equal(rows(number)["train"][0], rows(number)["train"][0])
