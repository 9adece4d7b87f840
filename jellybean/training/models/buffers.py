"""What a forward does to a model's buffers: it may change values, which are restored, but not which buffers there are.

A run keeps and exchanges buffers by name, with the shapes that they have before the first update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from jellybean.training.errors import TrainingError

_HINT = "run the model once in the function, before it returns it, or make the buffer with its shape in the constructor"


@contextmanager
def buffers_restored(module: nn.Module, name: str) -> Iterator[None]:
    """Context after which the buffers are as before. `name`: of the model in messages.

    TrainingError if a forward has made a buffer, or changed the shape or type of one.
    """
    registered = [(part, dict(part._buffers)) for part in module.modules()]
    before = {key: (value, value.detach().clone()) for key, value in module.named_buffers()}
    try:
        yield
        _check_kept(module, {key: copied for key, (_, copied) in before.items()}, name)
    finally:
        for part, buffers in registered:
            part._buffers.clear()
            part._buffers.update(buffers)
        with torch.no_grad():
            for value, copied in before.values():
                (value.resize_(copied.shape) if value.shape != copied.shape else value).copy_(copied)


def _check_kept(module: nn.Module, before: Mapping[str, torch.Tensor], name: str) -> None:
    after = dict(module.named_buffers())
    for key, value in after.items():
        if key not in before:
            raise TrainingError(f"{name} makes the buffer {key} in forward: {_HINT}")
        was = before[key]
        if value.shape != was.shape or value.dtype != was.dtype:
            kinds = [f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in (was, value)]
            raise TrainingError(f"forward of {name} changes the buffer {key} from {kinds[0]} to {kinds[1]}: {_HINT}")


def carried_buffer(module: nn.Module, forward: Callable[[], Any]) -> str:
    """A buffer that a forward in training changes and that a later forward depends on; empty if there is none.

    Copies of a stage run different micro-batches. Statistics that training only collects, as of batch norm, may differ
    between them; with a buffer that carries something from one micro-batch to the next they compute another model.
    """
    with buffers_restored(module, "the model"):
        before = {name: (value, value._version, value.clone()) for name, value in module.named_buffers()}
        expected = _outputs(forward)
        changed = [name for name, value in module.named_buffers() if _is_written(value, *before[name])]
    if not changed or _same(module, forward, expected, changed):
        return ""
    return next((str(name) for name in changed if not _same(module, forward, expected, [name])), str(changed[0]))


def _is_written(value: torch.Tensor, before: torch.Tensor, version: int, copied: torch.Tensor) -> bool:
    """Whether a buffer was replaced or written, also with the same numbers. Batch norm makes no new version."""
    return value is not before or value._version != version or not _equal(value, copied)


def _same(
    module: nn.Module, forward: Callable[[], Any], expected: Sequence[torch.Tensor], names: Sequence[str]
) -> bool:
    """Whether a forward gives the same with other values of these buffers."""
    outputs: list[torch.Tensor] = []
    with buffers_restored(module, "the model"):
        buffers = dict(module.named_buffers())
        for name in names:
            buffers[name].copy_(_other(buffers[name]))
        with suppress(Exception):  # an index that is out of range now depends on the buffer, too
            outputs = _outputs(forward)
    return len(outputs) == len(expected) and all(map(_equal, outputs, expected))


def _other(value: torch.Tensor) -> torch.Tensor:
    if value.dtype is torch.bool:
        return ~value
    return value * 1.25 + 0.125 if value.is_floating_point() or value.is_complex() else value + 1


def _outputs(forward: Callable[[], Any]) -> list[torch.Tensor]:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        leaves = pytree.tree_leaves(forward())
    return [value.detach().clone() for value in leaves if isinstance(value, torch.Tensor)]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))
