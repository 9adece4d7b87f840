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

from jellybean.pipeline.torch_state import same_values, seed_generators, state_kept
from jellybean.training.errors import TrainingError

_FAR = 10**6  # calls after which a counter in a buffer still may change what the model computes
_HINT = "run the model once in the function, before it returns it, or make the buffer with its shape in the constructor"


@contextmanager
def buffer_shapes_kept(module: nn.Module, name: str) -> Iterator[None]:
    """Context of a trial: the module is afterwards as before (`state_kept`). `name`: of the model in messages.

    TrainingError if a forward has made a buffer, or changed the shape or type of one.
    """
    before = {key: _kind(value) for key, value in module.named_buffers()}
    with state_kept(module):
        yield
        _check_kinds(module, before, name)


def _check_kinds(module: nn.Module, before: Mapping[str, str], name: str) -> None:
    for key, value in module.named_buffers():
        if key not in before:
            raise TrainingError(f"{name} makes the buffer {key} in forward: {_HINT}")
        if _kind(value) != before[key]:
            raise TrainingError(
                f"forward of {name} changes the buffer {key} from {before[key]} to {_kind(value)}: {_HINT}"
            )


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def carried_buffer(module: nn.Module, forward: Callable[[], Any]) -> str:
    """A buffer that a forward in training changes and that a later forward depends on; empty if there is none.

    Copies of a stage run different micro-batches. Statistics that training only collects, as of batch norm, may differ
    between them; with a buffer that carries something from one micro-batch to the next they compute another model.
    """
    if next(module.buffers(), None) is None:
        return ""
    with buffer_shapes_kept(module, "the model"):
        before = {name: (value, value._version, value.clone()) for name, value in module.named_buffers()}
        expected = _outputs(forward)
        changed = [name for name, value in module.named_buffers() if _is_written(value, *before[name])]
    if not changed or _same(module, forward, expected, changed):
        return ""
    return next((str(name) for name in changed if not _same(module, forward, expected, [name])), str(changed[0]))


def _is_written(value: torch.Tensor, before: torch.Tensor, version: int, copied: torch.Tensor) -> bool:
    """True if a buffer was written, also with the same numbers, or replaced; batch norm writes without a version."""
    return value is not before or value._version != version or not _equal(value, copied)


def _same(
    module: nn.Module, forward: Callable[[], Any], expected: Sequence[torch.Tensor], names: Sequence[str]
) -> bool:
    """Whether a forward gives the same with other values of these buffers, close ones and far ones."""
    for far in (False, True):
        outputs: list[torch.Tensor] = []
        with state_kept(module):
            buffers = dict(module.named_buffers())
            for name in names:
                buffers[name].copy_(_other(buffers[name], far=far))
            with suppress(Exception):  # an index that is out of range now depends on the buffer, too
                outputs = _outputs(forward)
        if len(outputs) != len(expected) or not all(map(_equal, outputs, expected)):
            return False
    return True


def _other(value: torch.Tensor, *, far: bool) -> torch.Tensor:
    """Other values; far ones are beyond the thresholds of counters, as of a warm-up."""
    if value.dtype is torch.bool:
        return ~value
    if value.is_floating_point() or value.is_complex():
        return value * 1.25 + (_FAR if far else 0.125)
    return value + (min(_FAR, torch.iinfo(value.dtype).max // 2) if far else 1)


def _outputs(forward: Callable[[], Any]) -> list[torch.Tensor]:
    seed_generators(0)
    with torch.no_grad():
        leaves = pytree.tree_leaves(forward())
    return [value.detach().clone() for value in leaves if isinstance(value, torch.Tensor)]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided:
        return one.shape == other.shape and same_values(one, other)
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))
