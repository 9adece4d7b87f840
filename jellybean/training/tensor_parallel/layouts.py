"""How a tensor is split over the ranks of a tensor group: along one dimension, and how views move that dimension.

A dimension of size blocks x ways x n is split within each block, so that a rank's part of a fused projection (queries,
keys, values) has its part of each of the three. Where heads are folded into the rows, each row is a block: their number
is that of the value at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Split:
    """A tensor split along `dim`, which has `blocks` equal blocks, of each of which a rank has its part.

    `block_size`: of each block of the whole tensor, if their number depends on the rows; `blocks` does not count then.
    """

    dim: int
    blocks: int = 1
    block_size: int | None = None

    def at(self, dim: int) -> Split:
        """The same along another dimension."""
        return replace(self, dim=dim)

    def fits(self, size: int, ways: int) -> bool:
        """Whether a dimension of this size can be split over `ways` ranks."""
        blocks = self.count(size)
        return size > 0 and blocks > 0 and size % (blocks * ways) == 0

    def count(self, size: int) -> int:
        """The number of blocks of a whole dimension of this size."""
        return self.blocks if self.block_size is None else size // self.block_size

    def part(self, value: torch.Tensor, ways: int, index: int) -> torch.Tensor:
        """The part of rank `index`, as a view if it has one block. Its dimension is 1 / `ways` of the whole one."""
        count = self.count(value.shape[self.dim])
        if count == 1:
            size = value.shape[self.dim] // ways
            return value.narrow(self.dim, index * size, size)
        blocks = value.unflatten(self.dim, (count, ways, -1))
        return blocks.select(self.dim + 1, index).flatten(self.dim, self.dim + 1)

    def whole(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor whose parts, by rank, these are."""
        count = self.count(sum(part.shape[self.dim] for part in parts))
        if count == 1:
            return torch.cat(list(parts), self.dim)
        blocks = [part.unflatten(self.dim, (count, -1)) for part in parts]
        return torch.cat(blocks, self.dim + 1).flatten(self.dim, self.dim + 1)


def viewed(
    before: Sequence[int],
    after: Sequence[int],
    split: Split,
    ways: int,
    fewer: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Split | None:
    """How a tensor of shape `before` is split once it is viewed in the shape `after`; None if parts would not fit.

    `fewer`: both shapes with fewer rows; the result holds for every number of rows.
    """
    layout = _viewed(before, after, split, ways)
    if layout is None or fewer is None:
        return layout
    other = _viewed(*fewer, split, ways)
    if other is None or other.dim != layout.dim or other.blocks == layout.blocks:
        return layout if other == layout else None
    size = after[layout.dim] // layout.blocks
    return Split(layout.dim, block_size=size) if fewer[1][layout.dim] == size * other.blocks else None


def _viewed(before: Sequence[int], after: Sequence[int], split: Split, ways: int) -> Split | None:
    """As `viewed`, for one number of rows.

    Dimensions are matched in groups of equal products. Within a group the values before the split dimension (with
    blocks) must be those before the new one.
    """
    for old, new in _groups(before, after):
        if split.dim not in old:
            continue
        outer = math.prod(before[dim] for dim in old if dim < split.dim) * split.count(before[split.dim])
        passed = 1
        layout = None
        for dim in new:
            blocks, left = divmod(outer, passed)
            if left or not blocks:
                break
            if Split(dim, blocks).fits(after[dim], ways):
                layout = Split(dim, blocks)
            passed *= after[dim]
        return layout
    return None


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """Ranges of dimensions with equal products, as small as possible; empty if a dimension has no values."""
    if 0 in before or 0 in after or math.prod(before) != math.prod(after):
        return []
    groups = []
    old = new = 0
    while old < len(before) or new < len(after):
        first_old, first_new = old, new
        left = right = 1
        if old < len(before):
            left, old = before[old], old + 1
        if new < len(after):
            right, new = after[new], new + 1
        while left != right:
            if left < right:
                left, old = left * before[old], old + 1
            else:
                right, new = right * after[new], new + 1
        groups.append((range(first_old, old), range(first_new, new)))
    return groups
