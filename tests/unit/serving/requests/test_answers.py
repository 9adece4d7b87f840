"""Answers of sinks: complete exactly when the last leaf of the tree of fan-outs has come, in any order."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jellybean.serving.gateway.requests.sink_answer import SinkAnswer
from jellybean_agent import FanOutPath, decode_tensor, encode_tensor
from jellybean_protos.agent.v1 import agent_pb2

SPEC = agent_pb2.TensorSpec(dtype="float32", shape=[-1, 1])
Tree = list  # of trees; a leaf is None
trees = st.recursive(st.none(), lambda children: st.lists(children, max_size=4), max_leaves=12)


def leaves(tree: Tree | None, depth: int, path: FanOutPath = ()) -> list[tuple[FanOutPath, bool]]:
    """Paths of equal length for every leaf; an empty level is (0, 0) from there on."""
    if depth == 0:
        return [(path, False)]
    if not tree:
        return [((*path, *[(0, 0)] * depth), True)]
    return [leaf for i, child in enumerate(tree) for leaf in leaves(child, depth - 1, (*path, (i, len(tree))))]


@given(trees, st.integers(0, 3), st.randoms(use_true_random=False))
def test_complete_exactly_at_the_last_leaf(tree: Tree | None, depth: int, chance: random.Random) -> None:
    expected = leaves(tree, depth)
    numbered = list(enumerate(expected))
    chance.shuffle(numbered)
    answer = SinkAnswer()
    for position, (number, (path, empty)) in enumerate(numbered):
        tensor = agent_pb2.Tensor() if empty else encode_tensor(np.array([[number]], np.float32))
        done = answer.add(path, tensor)
        assert done == (position == len(numbered) - 1)
        assert answer.add(path, tensor) == done  # a second copy changes nothing
    found = decode_tensor(answer.tensor(SPEC))
    assert found.reshape(-1).tolist() == [number for number, (_, empty) in enumerate(expected) if not empty]
    assert found.dtype == np.float32
    assert found.shape[1:] == (1,)
