"""Requests into one run and apart again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jellybean_agent import PermanentError, stack_requests
from jellybean_agent.tensors.stacking import GatheredBatch, split_batch


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


@given(st.data(), st.integers(1, 5), st.lists(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3), min_size=1))
def test_what_was_stacked_comes_apart_as_it_was(data: st.DataObject, count: int, sizes: list[tuple[int, ...]]) -> None:
    requests = [[data.draw(arrays.arrays(np.int16, (1, *size))) for size in sizes] for _ in range(count)]
    together = stack_requests(requests)
    assert together is not None
    assert [array.shape for array in together] == [(count, *size) for size in sizes]
    found = split_batch({str(edge): array for edge, array in enumerate(together)}, count)
    for request, given_back in zip(requests, found, strict=True):
        for edge, array in enumerate(request):
            np.testing.assert_array_equal(given_back[str(edge)], array)


@pytest.mark.parametrize(
    "second",
    [
        [ones(1, 3), ones(1, 2)],  # another size
        [ones(1, 2), ones(1, 2, dtype="float64")],
        [ones(1, 2), ones(1, 2, 1)],
        [ones(2, 2), ones(1, 2)],  # rows of its own
        [ones(0, 2), ones(1, 2)],
        [np.float32(1.0), ones(1, 2)],
        [(ones(1, 2),), ones(1, 2)],  # gathered
    ],
)
def test_what_does_not_fit_together(second: list[np.ndarray]) -> None:
    first = [ones(1, 2), ones(1, 2)]
    assert stack_requests([first, first]) is not None
    assert stack_requests([first, second]) is None
    assert stack_requests([second, first]) is None


def test_gathered_children_of_several_requests_keep_their_numbers() -> None:
    first, second, none = (ones(1, 2), ones(3, 2)), (2 * ones(1, 2),), ()
    found = stack_requests([[first, ones(1, 4)], [none, ones(1, 4)], [second, ones(1, 4)]])
    assert found is not None
    gathered, array = found
    assert isinstance(gathered, GatheredBatch)
    assert (len(gathered.children), gathered.rows, array.shape) == (3, (4, 0, 1), (3, 4))
    assert stack_requests([[none], [none]]) == (GatheredBatch((), (0, 0)),)
    assert stack_requests([[first], [(ones(1, 3),)]]) is None  # another size
    assert stack_requests([[first], [(ones(1, 2, dtype="float64"),)]]) is None


def test_rows_of_ones_own_do_not_fit_together_with_as_many() -> None:
    assert stack_requests([[ones(2, 2)], [ones(2, 2)]]) is None


@pytest.mark.parametrize("shape", [(), (1, 3), (4, 3), (6,)])
def test_an_output_without_one_row_for_each_request_is_told_with_figures(shape: tuple[int, ...]) -> None:
    with pytest.raises(PermanentError) as told:
        split_batch({"read": ones(3, 2), "sum": ones(*shape)}, 3)
    assert f"the output for sum has shape {list(shape)}, not one row for each of the 3 requests" in str(told.value)


def test_rows_that_a_model_counts_come_apart_by_request() -> None:
    outputs = {"crops": np.arange(10).reshape(5, 2), "whole": np.arange(3).reshape(3, 1)}
    found = split_batch(outputs, 3, {"crops": [2, 0, 3]})
    assert [one["crops"].tolist() for one in found] == [[[0, 1], [2, 3]], [], [[4, 5], [6, 7], [8, 9]]]
    assert [one["whole"].tolist() for one in found] == [[[0]], [[1]], [[2]]]


def test_rows_that_do_not_add_up_are_told_with_figures() -> None:
    with pytest.raises(PermanentError, match="the output for crops has 5 rows, the model counts 4 for the 2 requests"):
        split_batch({"crops": ones(5, 2)}, 2, {"crops": [1, 3]})


def test_outputs_with_numbers_of_rows_of_their_own() -> None:
    """Two outputs of a detector that are fanned out, and one that is not."""
    outputs = {"cars": ones(3, 2), "persons": np.arange(2.0).reshape(2, 1), "size": ones(2, 1)}
    found = split_batch(outputs, 2, {"cars": [3, 0], "persons": [1, 1]})
    assert [part["cars"].shape for part in found] == [(3, 2), (0, 2)]
    assert [part["persons"].tolist() for part in found] == [[[0.0]], [[1.0]]]
    assert [part["size"].shape for part in found] == [(1, 1), (1, 1)]
    with pytest.raises(PermanentError, match=r"persons has 2 rows, the model counts 3"):
        split_batch(outputs, 2, {"cars": [3, 0], "persons": [1, 2]})
