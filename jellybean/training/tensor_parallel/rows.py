"""Borders of linear layers that are split while the ranks have different rows (CNN hybrid, Krizhevsky 2014).

Outside such layers each rank has whole values of its own rows; within, parts of the values of all ranks' rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.layouts import Split


class RowCounts:
    """The rows of each rank of a group in the micro-batch that a stage computes; ranks may differ by some."""

    def __init__(self, group: TensorGroup) -> None:
        self.group, self.counts = group, (0,) * group.ways

    def exchange(self, rows: int, device: torch.device) -> tuple[int, ...]:
        """Tell the others how many rows this rank has; returns all counts."""
        self.counts = tuple(self.group.exchange(rows, device))
        return self.counts

    @property
    def own(self) -> slice:
        """This rank's rows among all."""
        first = sum(self.counts[: self.group.index])
        return slice(first, first + self.counts[self.group.index])


class _EnterRowsFunction(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, rows: RowCounts) -> torch.Tensor:
        ctx.group, ctx.counts = rows.group, rows.exchange(len(value), value.device)
        padded = value.new_zeros((max(ctx.counts), *value.shape[1:]))
        padded[: len(value)] = value
        parts = rows.group.all_gather(padded)
        return torch.cat([part[:count] for part, count in zip(parts, ctx.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        most = max(ctx.counts)
        parts = gradient.new_zeros((len(ctx.counts), most, *gradient.shape[1:]))
        for part, rank_rows in zip(parts, gradient.split(ctx.counts), strict=True):
            part[: len(rank_rows)] = rank_rows
        return ctx.group.reduce_scatter(parts)[: ctx.counts[ctx.group.index]], None


class _LeaveRowsFunction(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, rows: RowCounts, split: Split) -> torch.Tensor:
        ctx.group, ctx.split, ctx.own, ctx.all = rows.group, split, rows.own, len(value)
        return split.whole([part[rows.own] for part in rows.group.all_gather(value)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        every = gradient.new_zeros((ctx.all, *gradient.shape[1:]))
        every[ctx.own] = gradient
        ways = ctx.group.ways
        parts = torch.stack([ctx.split.part(every, ways, rank) for rank in range(ways)])
        return ctx.group.reduce_scatter(parts), None, None


class EnterRows(nn.Module):  # type: ignore[misc]
    """All ranks' rows from each rank's own; the gradient is summed, and each rank gets that of its rows."""

    def __init__(self, rows: RowCounts) -> None:
        super().__init__()
        self._rows = rows

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return _EnterRowsFunction.apply(value, self._rows)


class LeaveRows(nn.Module):  # type: ignore[misc]
    """A rank's own rows, whole, from parts of all rows."""

    def __init__(self, rows: RowCounts, split: Split) -> None:
        super().__init__()
        self._rows, self._split = rows, split

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return _LeaveRowsFunction.apply(value, self._rows, self._split)
