"""Inputs of several requests become one batch."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.profiler.errors import ProfileError
from jellybean.profiler.latency import batched


def test_batches_stack_along_the_leading_dimension_and_wrap() -> None:
    sample = [(np.full((1, 2), index), np.full((1,), 10 * index)) for index in range(3)]
    batches = batched(sample, 2)
    assert [first[:, 0].tolist() for first, _ in batches] == [[0, 1], [2, 0]]
    assert [second.tolist() for _, second in batches] == [[0, 10], [20, 0]]


def test_a_batch_of_one_is_the_sample_itself() -> None:
    sample = [((np.zeros((1, 2)), np.zeros((1, 2))),)]
    assert batched(sample, 1) == sample


def test_inputs_of_a_gather_are_not_stacked() -> None:
    with pytest.raises(ProfileError, match="gather"):
        batched([((np.zeros((1, 2)),),)], 2)
