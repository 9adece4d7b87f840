"""What a forward keeps in Python, beside plain values, for the next one: tensors in attributes, generators.

No checkpoint holds it, and each copy of a stage would keep its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from jellybean.pipeline.torch_gradients import tensor_digest
from jellybean.pipeline.torch_state import ModuleState, seed_generators, state_kept
from jellybean.pipeline.torch_trace import flat_tensors

_CALLS = 3  # the first may only fill what is empty
_SAME = 1e-6


def kept_between_calls(module: nn.Module, forward: Callable[[], Any]) -> str:
    """What lets a forward on the same rows give something else; empty if nothing does, or if it is a plain value.

    Weights, buffers and the global generators are the same for each. The module is afterwards as before.
    """
    with state_kept(module):
        tensors = [(value, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
        results, kept, state = [], [_attributes(module)], None
        for _ in range(_CALLS):
            with torch.no_grad():
                for value, before in tensors:
                    if value.shape == before.shape:
                        value.copy_(before)
                seed_generators(0)
                results.append([tensor_digest(value) for value in flat_tensors(forward())])
            kept.append(_attributes(module))
            state = state or ModuleState(module)
        if state is None or state.changes() or all(_alike(results[0], other) for other in results[1:]):
            return ""
    changed = [key for key in kept[-1] if kept[-1][key] != kept[0].get(key)]
    return f"{changed[0]} in Python" if changed else "something in Python"


def _alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.allclose(a, b, rtol=0.0, atol=_SAME * float(a.abs().max().nan_to_num()), equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Marks of the tensors and generators among the attributes, by their names for messages."""
    return {
        f"self.{key} of {type(part).__name__}{f' {name}' if name else ''}": mark
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if (mark := _mark(value)) is not None
    }


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor_digest(value).tolist()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    return repr(value.bit_generator.state) if isinstance(value, np.random.Generator) else None
