"""Stages with unlike replica counts train correctly: with a flush as one device, without one by the stashing rule."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline import schedule_memory
from tests.integration.training.cases import Train, merged
from tests.integration.training.ranks import run_ranks
from tests.integration.training.reference import in_sequence, one_device, relative_error

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
EXACT = 1e-10
UNEVEN = [[[3, 1, 4, 2, 2, 1, 5]], [[2, 2, 1, 5, 3, 1, 1]]]  # two iterations, of no whole rounds
PLANS = [(2, 1), (3, 1), (2, 2), (1, 2), (1, 3), (1, 2, 1), (2, 1, 1)]
ADAM = {"optimizer": torch.optim.AdamW, "options": {"lr": 0.01}}


def _flushed(
    counts: tuple[int, ...], name: str = "1f1b", sizes: list[list[list[int]]] = UNEVEN, **more: object
) -> Train:
    return Train(name, sum(counts), sizes, counts=counts, **more)


def _stashed(counts: tuple[int, ...], **more: object) -> Train:
    """Twelve rounds in one iteration."""
    sizes = [[[1 + m % 3 for m in range(12 * math.lcm(*counts))]]]
    return Train("pipedream", sum(counts), sizes, counts=counts, tied=False, **more)


FLUSHED = {
    **{"-".join(map(str, counts)): _flushed(counts) for counts in PLANS},
    "dapple": _flushed((3, 1), "dapple"),
    "clip": _flushed((3, 1), clip=0.5),
    "few": _flushed((3, 1), sizes=[[[5, 2]], [[1, 2]]]),  # a replica without a micro-batch
    "recompute": _flushed((2, 1), recompute=True),
    "norm": _flushed((2, 2), sizes=[[[3, 2, 4, 2]], [[2, 2, 3, 5]]], norm=True),
    "adam": _flushed((2, 1), **ADAM),
    "ring": _flushed((2, 2), sync="ring"),
    "tree-3": _flushed((3, 1), sync="tree"),
    "data-parallel": _flushed((2,)),  # one stage
    "twice": _flushed((2,), sizes=[[[3, 1, 4], [1, 2, 2]]]),  # two copies of the whole plan
    "placed": _flushed((2, 2), placement=((3, 1), (0, 2))),
    "others-on-meta": _flushed((3, 1), tied=False, others_on_meta=True),
    "device-links": _flushed((2, 1), links="device"),
}
STASHED = {
    **{"-".join(map(str, counts)): _stashed(counts) for counts in PLANS},
    "recompute": _stashed((2, 1), recompute=True),
    "adam": _stashed((3, 1), **ADAM),
    "data-parallel": _stashed((3,)),
    "ring": _stashed((3, 1), sync="ring"),
    "placed": _stashed((3, 1), placement=((2, 0, 3), (1,))),
}


@pytest.fixture(scope="module")
def trained():
    """Results of all cases, run by one start of four ranks."""
    results = iter(run_ranks(4, [*FLUSHED.values(), *STASHED.values()]))
    return {
        key: next(results) for key in (*(("flushed", name) for name in FLUSHED), *(("stashed", n) for n in STASHED))
    }


def _start(train: Train) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in train.chain().named_parameters(remove_duplicate=False)}


def stashing_rule(counts: tuple[int, ...]) -> Callable[[int, int], int]:
    """Updates before the forward of a micro-batch at a stage, from the definition.

    It is its replica's k-th, and NOAM of the pipeline from the stage on are in flight: k - NOAM + 1 backwards precede
    it, and each P / r of them complete a round of P micro-batches.
    """

    def version(stage: int, microbatch: int) -> int:
        replicas, rounds = counts[stage], math.lcm(*counts)
        in_flight = math.ceil(sum(counts[stage:]) / replicas)
        return max(0, microbatch // replicas - in_flight + 1) // (rounds // replicas)

    return version


@pytest.mark.parametrize("name", FLUSHED)
def test_with_a_flush_equals_one_device(trained, name):
    train, results = FLUSHED[name], trained["flushed", name]
    start = _start(train)
    for iteration, weights in enumerate(one_device(train)):
        got = merged(results, iteration)
        assert set(got) >= set(dict(train.chain().named_parameters()))
        exact = 1e-8 if train.norm else EXACT  # the gradient of a bias before a batch norm is all cancellation
        assert relative_error(got, weights, start) <= exact, iteration
    assert all(own["left"] == 0 for own in results if own)
    numbers = [m for own in results if own for m in own["losses"][0]]
    assert sorted(numbers) == sorted(m for own in train.sizes[0] for m in range(len(own)))  # each loss on one rank


@pytest.mark.parametrize("name", STASHED)
def test_without_a_flush_equals_the_stashing_rule_in_sequence(trained, name):
    train, results = STASHED[name], trained["stashed", name]
    rounds = math.lcm(*train.counts)
    expected = in_sequence(train, rounds, len(train.counts), stashing_rule(train.counts))
    assert relative_error(merged(results), expected, _start(train)) <= EXACT
    for device, own in enumerate(schedule_memory(train.schedule)):
        (stage,) = own.stages
        assert results[device]["versions"][stage.stage, stage.pipe] == stage.weight_versions


def test_the_rule_is_neither_up_to_date_nor_staler():
    """Guards the test above: it does not pass for the wrong rule."""
    train = STASHED["3-1"]
    expected = in_sequence(train, 3, 2, stashing_rule((3, 1)))
    for rule in (lambda stage, m: m // 3, lambda stage, m: max(0, m // 3 - (1 if stage else 2))):
        assert relative_error(in_sequence(train, 3, 2, rule), expected, _start(train)) > 1e-3
