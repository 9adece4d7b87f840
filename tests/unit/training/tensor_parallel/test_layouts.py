"""Parts of split tensors: taken, joined, and moved by views."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from hypothesis import assume, given
from hypothesis import strategies as st

from jellybean.training.tensor_parallel.layouts import Split, viewed


@given(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_parts_join_to_the_whole_and_have_a_share_of_each_block(dim, blocks, ways, size):
    shape = [2, 3, 2]
    shape[dim] = blocks * ways * size
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    split = Split(dim, blocks)
    parts = [split.part(whole, ways, rank) for rank in range(ways)]
    assert torch.equal(split.whole(parts), whole)
    for rank, part in enumerate(parts):
        first = whole.select(dim, 0) + rank * size * whole.stride(dim)
        assert torch.equal(part.select(dim, 0), first)


@pytest.mark.parametrize(
    ("before", "after", "split", "expected"),
    [
        ((5, 7, 24), (5, 7, 3, 4, 2), Split(2, 3), Split(3)),  # queries, keys, values; then heads
        ((5, 7, 24), (5, 7, 4, 6), Split(2), Split(2)),  # heads; then queries, keys, values of each
        ((5, 7, 4, 2), (5, 7, 8), Split(2), Split(2)),
        ((5, 7, 8), (35, 8), Split(2), Split(1)),
        ((35, 8), (5, 7, 8), Split(1), Split(2)),
        ((5, 7, 8), (5, 56), Split(2), Split(1, 7)),  # within each of the 7
        ((5, 1, 8), (5, 8), Split(2), Split(1)),
        ((5, 7, 24), (5, 7, 3, 8), Split(2), None),  # a part would end within one of the three
        ((5, 7, 6), (5, 7, 3, 2), Split(2), None),
    ],
)
def test_views_move_a_split_only_if_parts_view_to_parts(before, after, split, expected):
    assert viewed(before, after, split, 4 if after != (5, 7, 3, 2) else 2) == expected


def test_the_blocks_of_dimensions_that_are_folded_into_the_rows_are_those_of_the_value():
    folded = viewed((3, 4, 5, 6), (12, 5, 6), Split(1), 2, ((2, 4, 5, 6), (8, 5, 6)))
    assert folded == Split(0, block_size=4)
    assert viewed((12, 5, 6), (3, 4, 5, 6), folded, 2, ((8, 5, 6), (2, 4, 5, 6))) == Split(1)
    for rows in (1, 2, 7, 8):
        whole = torch.randn(rows, 4, 5)
        parts = [folded.part(whole.flatten(0, 1), 2, rank) for rank in range(2)]
        assert torch.equal(parts[1], Split(1).part(whole, 2, 1).flatten(0, 1))
        assert torch.equal(folded.whole(parts), whole.flatten(0, 1))


def test_a_view_that_holds_for_one_number_of_rows_only_moves_no_split():
    inner = viewed((4, 3, 5), (12, 5), Split(0), 2, ((4, 2, 5), (8, 5)))
    assert inner == Split(0)  # rows within each part
    assert viewed((3, 4, 3, 5), (36, 5), Split(1), 2, ((2, 4, 2, 5), (16, 5))) is None  # rows around it, and within


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_a_view_of_a_part_is_the_part_of_the_view(shape, data):
    ways = 2
    dims = [dim for dim, size in enumerate(shape) if size % ways == 0]
    assume(dims)
    split = Split(data.draw(st.sampled_from(dims)))
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    after = data.draw(st.sampled_from(_views(shape)))
    found = viewed(shape, after, split, ways)
    assume(found is not None)
    for rank in range(ways):
        expected = found.part(whole.view(after), ways, rank)
        assert torch.equal(split.part(whole, ways, rank).reshape(expected.shape), expected)


def _views(shape):
    """Shapes that join two neighbouring dimensions, or divide one, or add one."""
    joined = [(*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]) for i in range(len(shape) - 1)]
    divided = [(*shape[:i], size // 2, 2, *shape[i + 1 :]) for i, size in enumerate(shape) if size % 2 == 0]
    return [tuple(shape), (*shape, 1), (1, *shape), *joined, *divided]
