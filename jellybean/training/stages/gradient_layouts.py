"""Which gradients exist over all ranks, and with which rows: sums of gradients know dense tensors only.

A weight that no rank has a gradient of must not be stepped: an optimizer would decay it, or move it by its momentum. A
gradient that is sparse on all ranks stays sparse, with the rows that any of them has, as on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import torch
import torch.distributed as dist

NamedGradients = dict[str, torch.Tensor]


class Layout(IntEnum):
    """The layout of a weight's gradient. Of several ranks' gradients, the sum has the largest."""

    ABSENT = 0
    ROWS = 1  # sparse, with a value for each of some rows
    DENSE = 2


def layout_of(gradient: torch.Tensor | None) -> Layout:
    """The layout of a rank's gradient."""
    if gradient is None:
        return Layout.ABSENT
    by_rows = gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1
    return Layout.ROWS if by_rows else Layout.DENSE


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a dense tensor; itself if it is one."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def numbers(gradient: torch.Tensor) -> torch.Tensor:
    """The numbers of a gradient whose squares add up to that of its norm: those of each row added up, if sparse."""
    return gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient


def added(total: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients, in the memory of `total` where its layout has place for it."""
    if total.is_sparse and not gradient.is_sparse:
        return gradient + total
    return total.add_(gradient)


class LocalLayouts:
    """What a rank's gradients were before they became dense, in an order that is equal on all ranks."""

    def __init__(self, gradients: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
        """`weights`: all that may have a gradient, by name."""
        self._names = sorted(weights)
        self._layouts = [layout_of(gradients.get(name)) for name in self._names]
        self._rows = {
            name: gradients[name]._indices()[0]
            for name, layout in zip(self._names, self._layouts, strict=True)
            if layout is Layout.ROWS
        }

    def restore(self, sums: NamedGradients, group: dist.ProcessGroup | None, device: torch.device) -> NamedGradients:
        """The sums, without those of weights that no rank has a gradient of. A collective call of the group."""
        agreed = dict(zip(self._names, agree_on_layouts(self._layouts, group, device), strict=True))
        sparse = {name: sums[name] for name, layout in agreed.items() if layout is Layout.ROWS}
        present = {name: value for name, value in sums.items() if agreed[name] is not Layout.ABSENT}
        return present | self._by_rows(sparse, group)

    def _by_rows(self, sums: NamedGradients, group: dist.ProcessGroup | None) -> NamedGradients:
        """Dense sums as sparse ones of the rows that any rank has."""
        if not sums:
            return {}
        touched = {name: value.new_zeros(len(value), dtype=torch.uint8) for name, value in sums.items()}
        for name, marks in touched.items():
            marks[self._rows.get(name, torch.empty(0, dtype=torch.int64, device=marks.device))] = 1
        if group is not None:
            every = torch.cat(list(touched.values()))
            dist.all_reduce(every, dist.ReduceOp.MAX, group=group)
            parts = every.split([len(marks) for marks in touched.values()])
            touched = dict(zip(touched, parts, strict=True))
        return {name: _of_rows(value, touched[name].nonzero()[:, 0]) for name, value in sums.items()}


def agree_on_layouts(layouts: Sequence[Layout], group: dist.ProcessGroup | None, device: torch.device) -> list[Layout]:
    """The layouts of sums over a group. A collective call of the group. `device`: of its messages."""
    if group is None:
        return list(layouts)
    largest = torch.tensor(list(map(int, layouts)), dtype=torch.int32, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return [Layout(number) for number in largest.tolist()]


def _of_rows(value: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(rows[None], value[rows], value.shape, is_coalesced=True, check_invariants=False)
