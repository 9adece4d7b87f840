"""Where a split region begins and ends: pairs of collectives, the one of the backward conjugate to the forward's.

The invariant: what every rank has whole is equal on all ranks, and so is its gradient; of a part, each rank has the
part of the gradient (Shoeybi et al. 2019, the functions f and g).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.layouts import Split


class _EnterFunction(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.all_reduce(gradient.clone()), None  # others may hold the same gradient


class _ReduceFunction(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        return group.all_reduce(value.clone())  # others may hold the same value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _GatherFunction(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: TensorGroup, split: Split) -> torch.Tensor:
        ctx.group, ctx.split = group, split
        return split.whole(group.all_gather(value))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.split.part(gradient, ctx.group.ways, ctx.group.index).contiguous(), None, None


class _ScatterFunction(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: TensorGroup, split: Split) -> torch.Tensor:
        ctx.group, ctx.split = group, split
        return split.part(value, group.ways, group.index).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.split.whole(ctx.group.all_gather(gradient)), None, None


class _GatherForPartsFunction(_GatherFunction):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return scattered_sum(gradient, ctx.group, ctx.split), None, None


def scattered_sum(value: torch.Tensor, group: TensorGroup, split: Split) -> torch.Tensor:
    """This rank's part of the sum of all ranks' values."""
    return group.reduce_scatter(torch.stack([split.part(value, group.ways, rank) for rank in range(group.ways)]))


class Enter(nn.Module):  # type: ignore[misc]
    """A whole value into computations on parts: as it is; its gradient is the sum over the ranks."""

    def __init__(self, group: TensorGroup) -> None:
        super().__init__()
        self._group = group

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value if not value.requires_grad else _EnterFunction.apply(value, self._group)


class Reduce(nn.Module):  # type: ignore[misc]
    """The sum over the ranks, then the bias; the gradient is what comes."""

    def __init__(self, group: TensorGroup) -> None:
        super().__init__()
        self._group = group

    def forward(self, value: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        total = _ReduceFunction.apply(value, self._group)
        return total if bias is None else total + bias.to(total.dtype)


class _Resplit(nn.Module):  # type: ignore[misc]
    """A border where a value changes between whole and split."""

    function: type[torch.autograd.Function]

    def __init__(self, group: TensorGroup, split: Split) -> None:
        super().__init__()
        self._group, self._split = group, split

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.function.apply(value, self._group, self._split)


class Gather(_Resplit):
    """Parts to the whole value on every rank; a rank's gradient is its part of what comes."""

    function = _GatherFunction


class Scatter(_Resplit):
    """A rank's part of a whole value; the gradient is gathered from all ranks."""

    function = _ScatterFunction


class GatherForParts(_Resplit):
    """Parts to the whole value, for computations of parts: the gradient is summed, and each rank gets its part."""

    function = _GatherForPartsFunction


class LookUp(nn.Module):  # type: ignore[misc]
    """An embedding split by vocabulary: each rank looks its own rows up, and zeros elsewhere; then the sum."""

    def __init__(self, group: TensorGroup, padding: int | None) -> None:
        super().__init__()
        self._group, self._padding = group, padding

    def forward(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        first, rows = self._group.index * len(weight), len(weight)
        places = indices - first
        outside = (places < 0) | (places >= rows)
        padding = None
        if self._padding is not None and first <= self._padding < first + rows:
            padding = self._padding - first
        vectors = F.embedding(places.masked_fill(outside, 0), weight, padding).masked_fill(outside.unsqueeze(-1), 0.0)
        return _ReduceFunction.apply(vectors, self._group)


class PartOfDropout(nn.Module):  # type: ignore[misc]
    """Dropout of a part by its part of the mask that one device draws for the whole value.

    `active`: whether it drops; None: in training mode.
    """

    def __init__(self, group: TensorGroup, split: Split, p: float, active: bool | None = None) -> None:
        super().__init__()
        self._group, self._split, self._p, self._active = group, split, p, active

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        active = self.training if self._active is None else self._active
        return value if not active or not self._p else value * part_of_noise(value, self._group, self._split, self._p)


def part_of_noise(value: torch.Tensor, group: TensorGroup, split: Split, p: float) -> torch.Tensor:
    """The factors of dropout for a part: torch's own draw for the whole value, so that the ranks' generators agree."""
    shape = [size * group.ways if dim == split.dim else size for dim, size in enumerate(value.shape)]
    return split.part(F.dropout(value.new_ones(shape), p), group.ways, group.index)


class PartOfAttention(nn.Module):  # type: ignore[misc]
    """Scaled dot-product attention of a part of the heads, with dropout of the weights as on one device."""

    def __init__(self, group: TensorGroup, split: Split, p: float) -> None:
        super().__init__()
        self._group, self._split, self._p = group, split, p

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = scores.softmax(-1)
        return (weights * part_of_noise(weights, self._group, self._split, self._p)) @ value
