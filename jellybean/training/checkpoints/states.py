"""Collects a rank's weights, buffers and optimizer states by the model's names, for checkpoints; restores them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import torch

from jellybean.training.errors import TrainingError
from jellybean.training.stages.gradient_layouts import dense
from jellybean.training.stages.stage import StageCopy
from jellybean.training.stages.updates import WeightUpdates

WEIGHT, BUFFER, STATE, AVERAGE = "weight/", "buffer/", "state/", "average/"
NUMBER = ":number"  # at the end of the key of a state that is a number of Python, and no tensor
HeldStages = Mapping[tuple[int, int], StageCopy]


def collect_state(held: HeldStages, updates: WeightUpdates) -> dict[str, torch.Tensor]:
    """All training state of a rank, without frozen weights that the model's function or file gives.

    A stage that is held once per pipe is taken from the first pipe.
    """
    tensors: dict[str, torch.Tensor] = {}
    for copy, stage in held.items():
        if copy[1]:
            continue
        names = {id(value): name for name, value in stage.versions.parameters.items()}
        tensors |= {WEIGHT + name: value for name, value in stage.versions.learned.items()}
        tensors |= {BUFFER + name: value for name, value in stage.saved_buffers.items()}
        if updates.averages is not None:
            tensors |= {AVERAGE + name: value for name, value in updates.averages.of(copy).items()}
        optimizer = updates.optimizers.get(copy)
        for parameter, state in optimizer.state.items() if optimizer is not None else ():
            for key, value in state.items():
                place = f"{STATE}{names[id(parameter)]}/{key}"
                if isinstance(value, torch.Tensor):
                    tensors[place] = dense(value)
                else:
                    tensors[place + NUMBER] = _tensor_of(value)
    return tensors


def _tensor_of(number: float) -> torch.Tensor:
    """A number of Python as a tensor, exactly."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def belongs_to(held: HeldStages, tied: Mapping[str, tuple[str, ...]]) -> Callable[[str], bool]:
    """Whether a checkpoint's tensor, by name, is of these stages. `tied`: all names of tensors that have several."""
    names: set[str] = set()
    for stage in held.values():
        names |= set(stage.versions.parameters) | set(stage.buffers) | set(stage.other_buffers)
    names |= {other for name in names for other in tied.get(name, ())}

    return lambda key: weight_of(key) in names


def weight_of(key: str) -> str:
    """The name of the weight or buffer that a tensor of a checkpoint belongs to, by its key."""
    kind, _, rest = key.partition("/")
    return rest.rpartition("/")[0] if kind + "/" == STATE else rest


def renamed(key: str, weight: str) -> str:
    """The name of a checkpoint's tensor if its weight or buffer had another name."""
    kind, _, rest = key.partition("/")
    return f"{kind}/{weight}" + (f"/{rest.rpartition('/')[2]}" if kind + "/" == STATE else "")


def restore_state(
    tensors: Mapping[str, torch.Tensor], held: HeldStages, updates: WeightUpdates, frozen: Container[str] = ()
) -> None:
    """Restore the state of the stages that this rank holds. TrainingError if the checkpoint is of another model.

    `frozen`: names of the weights that were frozen, so that the checkpoint may lack them.
    """
    keys: dict[str, list[str]] = {}  # of the optimizer's states, by weight
    for name in tensors:
        if name.startswith(STATE):
            keys.setdefault(weight_of(name), []).append(name)
    for copy, stage in held.items():
        _restore_weights(tensors, stage, frozen)
        for name, average in updates.averages.of(copy).items() if updates.averages is not None else ():
            # The run may have had no averages so far; then they begin with the weights.
            kept = AVERAGE + name
            average.copy_(_like(average, tensors, kept) if kept in tensors else stage.versions.exact[name])
        optimizer = updates.optimizers.get(copy)
        if optimizer is None:
            continue
        names = {id(value): name for name, value in stage.versions.parameters.items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                states = {key.rpartition("/")[2]: tensors[key] for key in keys.get(name, ())}
                # As torch's load_state_dict: fused and capturable steps run on the device.
                on_device = group.get("fused") or group.get("capturable")
                optimizer.state[parameter] = {
                    key.removesuffix(NUMBER): value.item()
                    if key.endswith(NUMBER)
                    else value.clone()
                    if key == "step" and not on_device
                    else value.to(parameter.device, copy=True)
                    for key, value in states.items()
                }


def _restore_weights(tensors: Mapping[str, torch.Tensor], stage: StageCopy, frozen: Container[str]) -> None:
    for name, weight in stage.versions.exact.items():
        if WEIGHT + name in tensors or name not in frozen:
            stage.versions.restore(name, _like(weight, tensors, WEIGHT + name))
    for name, buffer in stage.buffers.items():
        buffer.copy_(_like(buffer, tensors, BUFFER + name))
    for name, buffer in stage.other_buffers.items():
        if BUFFER + name in tensors:
            buffer.copy_(_like(buffer, tensors, BUFFER + name))
    stage.settle_buffers()


def _like(place: torch.Tensor, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """A tensor of a checkpoint. TrainingError unless it has the shape of `place`."""
    value = tensors.get(name)
    if value is None or value.shape != place.shape:
        reason = "is missing" if value is None else f"has the shape {list(value.shape)} in place of {list(place.shape)}"
        raise TrainingError(f"the checkpoint is of another model: {name} {reason}; --fresh starts over")
    return value
