"""Branches on devices of their own train as one device, and send only what the other branches need."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.integration.training.cases import merged
from tests.integration.training.planned.branches import EDGES, TrainBranches
from tests.integration.training.ranks import run_ranks
from tests.integration.training.reference import one_device, relative_error

torch.set_num_threads(1)
UNEVEN = [[[3, 1, 4, 2, 2]], [[2, 2, 1, 5, 3]]]
CASES = {
    "three-devices": TrainBranches("branches", 3, UNEVEN),
    "one-each": TrainBranches("branches", 4, UNEVEN, places=(0, 3, 1, 2, 0)),
    "one-device": TrainBranches("branches", 1, UNEVEN, places=(0, 0, 0, 0, 0)),
    "clip": TrainBranches("branches", 3, UNEVEN, clip=0.5),
    "recompute": TrainBranches("branches", 3, UNEVEN, recompute=True),
    "untrained-branch": TrainBranches("branches", 3, UNEVEN, frozen=(5,)),
    "untrained-stem": TrainBranches("branches", 3, UNEVEN, frozen=(0,)),
    "twice": TrainBranches("branches", 2, [[[3, 1, 4], [1, 2, 2]]], places=(0, 0, 1, 1, 0)),
    "others-on-meta": TrainBranches("branches", 3, UNEVEN, others_on_meta=True),
}


@pytest.fixture(scope="module")
def trained():
    return dict(zip(CASES, run_ranks(4, list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_equals_one_device(trained, name):
    train, results = CASES[name], trained[name]
    trains = {n for n, value in train.chain().named_parameters() if value.requires_grad}
    start = {n: value.detach() for n, value in train.chain().named_parameters()}
    for iteration, weights in enumerate(one_device(train)):
        got = {n: value for n, value in merged(results, iteration).items() if n in trains}
        assert set(got) == trains
        assert relative_error(got, weights, start) <= 1e-10, iteration
    assert all(own["left"] == 0 for own in results if own)


def test_stages_receive_only_what_they_read():
    """In a chain the branches would pass on each other's values, and wait for each other."""
    cut = CASES["three-devices"].cut(CASES["three-devices"].chain())
    links = [stage.inputs.links for stage in cut.stages]
    assert {(source, number) for number, own in enumerate(links) for source in own.sources} == set(EDGES)
    assert [len(stage.received) for stage in cut.stages] == [0, 1, 1, 0, 4]
    assert links[0].targets == (frozenset({1, 2, 4}),)
