"""Whether the rows of a batch change each other in the model, so that micro-batches train otherwise than their batch.

Rows may be normalised together, be sent to experts that have room for some of them, or be mixed; a hook or a function
of the user may change a gradient by its size, and an embedding may divide by how often a word occurs. What a
micro-batch then computes depends on its size, and no division of the loss makes up for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from jellybean.pipeline.torch_state import seed_generators, state_kept
from jellybean.pipeline.torch_trace import flat_tensors
from jellybean.training.loss_counts import UpdateSplit, Weights, split_update
from jellybean.training.samples import Samples
from jellybean.training.stages.stage import LossFunction

TRIED_ROWS = 8  # enough for a part of five and one of three
_SAME = 1e-5  # relative difference of a result that is the same, in single precision


def dependence_note(
    module: nn.Module, loss: LossFunction, samples: Samples, what: str, weights: Weights, name: str
) -> str:
    """That micro-batches train otherwise than their batch, with the module that makes it so; empty if they do not.

    Batch norm is left out, and so are random numbers. `what`: the loss counts, by ROWS, SUM or one of the `weights` of
    rows. `name`: of the model.
    """
    for key, value in module.named_parameters():
        if value._post_accumulate_grad_hooks:
            return (
                f"{name}: the hook on the accumulated gradient of {key} (register_post_accumulate_grad_hook) runs "
                "after each micro-batch, on the sum so far, and in each replica: with microbatches: 1 and replicas: 1 "
                "once an update"
            )
    split = split_update(module, loss, samples, what, weights) if len(samples) > 1 else None
    if split is None:
        return ""
    first, second = map(len, split.parts)
    return (
        f"{name}: micro-batches train otherwise than their batch: the gradients of {len(samples)} rows differ by "
        f"{split.by:.1%} from those of {first} and {second} of them{_cause(module, samples, split)}; with "
        "microbatches: 1 and replicas: 1 a batch is not divided"
    )


def _cause(module: nn.Module, samples: Samples, split: UpdateSplit) -> str:
    """The first module in which rows change each other, or the weight whose gradient is no sum over rows."""
    with suppress(Exception), state_kept(module):  # whatever the model raises, the difference is known
        if place := _first_module(module, samples, split.parts[1]):
            return f": rows of a batch change each other in {place}"
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    owner = type(module.get_submodule(names[split.weight].rpartition(".")[0])).__name__
    return f": the gradient of {names[split.weight]} ({owner}) is no mean over rows"


def _first_module(module: nn.Module, samples: Samples, rows: torch.Tensor) -> str:
    """Where the first value stands that these rows have otherwise among all: they are the second part of a division."""
    whole = _events(module, samples)
    for (place, values), (other, expected) in zip(_events(module, samples.take(rows)), whole, strict=False):
        if place != other:
            return ""
        for value, long in zip(values, expected, strict=False):
            if long.dim() and len(long) == len(samples) and len(value) == len(rows) and _differ(value, long[rows]):
                return place
    return ""


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return False
    return bool((one - other).abs().max() > _SAME * other.abs().max()) if one.numel() else False


def _events(module: nn.Module, samples: Samples) -> list[tuple[str, list[torch.Tensor]]]:
    """What each module takes and gives, in the order of the calls, with a place for messages."""
    events: list[tuple[str, list[torch.Tensor]]] = []
    owners = {name: name.rpartition(".")[0] for name, _ in module.named_modules()}

    def note(place: str, given: Any) -> None:
        events.append((place, [value.detach().clone() for value in flat_tensors(given)]))

    def before(name: str) -> Callable[..., None]:
        owner = owners[name]
        place = f"{owner or 'the model'} ({type(module.get_submodule(owner)).__name__}), before {name}"
        return lambda _, args, kwargs: note(place, (args, kwargs))

    def after(name: str, kind: str) -> Callable[..., None]:
        return lambda _, args, result: note(f"{name or 'the model'} ({kind})", result)

    still = nn.modules.batchnorm._BatchNorm
    hooks = []
    modes = [(part, part.training) for part in module.modules()]
    with state_kept(module), torch.no_grad():
        try:
            for name, part in module.named_modules():
                part.training = part.training and not isinstance(part, (nn.modules.dropout._DropoutNd, still))
                if name:
                    hooks.append(part.register_forward_pre_hook(before(name), with_kwargs=True))
                hooks.append(part.register_forward_hook(after(name, type(part).__name__)))
            seed_generators(0)
            samples.inputs.call(module)
        finally:
            for hook in hooks:
                hook.remove()
            for part, mode in modes:
                part.training = mode
    return events
