"""Builds the document's model, with its weights or without memory for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.weak import WeakIdKeyDictionary

from jellybean.documents.training import TrainingDocument
from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_gradients import share_gradient_hooks
from jellybean.pipeline.torch_stages import StageChain
from jellybean.pipeline.torch_state import seed_generators
from jellybean.pipeline.user_functions import load_function
from jellybean.training.errors import TrainingError
from jellybean.training.models.lora import check_own_adapters


def load_model(document: TrainingDocument, directory: Path) -> nn.Module:
    """The document's module: with the weights that its function gives, or a skeleton if `weights` names a file.

    TrainingError if the function returns something else, or cannot build a skeleton.
    """
    if document.weights is None:
        return _construct(document, directory)
    try:
        return load_skeleton(document, directory)
    except JellyBeanError:
        raise
    except Exception as error:  # user code may raise anything
        raise TrainingError(
            f"{document.model_name} cannot build the model without memory for its weights: "
            f"{type(error).__name__}: {error}; remove `weights` and load them in the function"
        ) from error


def _construct(document: TrainingDocument, directory: Path) -> nn.Module:
    """The module, constructed under the document's seed, so that all ranks have the same weights."""
    place, _, name = document.model_name.rpartition(":")
    torch.manual_seed(document.seed)
    seed_generators(document.seed)  # those of numpy and Python, too: all processes must make the same model
    made = load_function(place, name, directory)()
    module = _module(made, document.model_name) if document.stages is None else _chain(made, document.stages)
    check_own_adapters(module, document)
    lazy = [name for name, value in module.named_parameters() if isinstance(value, UninitializedParameter)]
    if lazy:
        raise TrainingError(
            f"{document.model_name}: {lazy[0]} is an uninitialized parameter of a lazy layer: run the model once in "
            "the function, before it returns it"
        )
    return module.train()


def _module(made: object, name: str) -> nn.Module:
    made = made[0] if isinstance(made, tuple) else made  # (module, inputs), as for `pipeline profile`
    if not isinstance(made, nn.Module):
        listed = isinstance(made, list) and made and all(isinstance(one, nn.Module) for one in made)
        hint = f": for a list of modules write `stages: {name}` in place of `model`" if listed else ""
        raise TrainingError(f"{name} returned {type(made).__name__}; it must return a torch.nn.Module{hint}")
    return made


def _chain(made: object, name: str) -> StageChain:
    modules = list(made) if isinstance(made, list | tuple | nn.Sequential | nn.ModuleList) else []
    if not modules or not all(isinstance(one, nn.Module) for one in modules):
        raise TrainingError(f"{name} returned {type(made).__name__}; it must return a list of torch.nn.Modules")
    return StageChain(modules)


def load_skeleton(document: TrainingDocument, directory: Path) -> nn.Module:
    """The module with real buffers, and with parameters that take no memory: one zero, repeated by strides of 0.

    Parameters pass through the `meta` device while the module is constructed, one at a time, so that its peak memory is
    that of the largest one. Fails with what the constructor raises if it computes with its parameters; TrainingError if
    that leaves buffers without values.
    """
    with _parameters_on_meta():
        module = _construct(document, directory)
    for name, value in module.named_buffers():
        if value.is_meta:
            raise TrainingError(
                f"{document.model_name} computes {name} from weights that are read later: remove `weights`, and load "
                "them in the function"
            )
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = made.setdefault(id(value), _without_memory(value))
    return module


def constants_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's tensors that are no parameters, by name: buffers, and tensors in attributes."""
    yield from module.named_buffers()
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), value


def _without_memory(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter of the same type, sizes and hooks: one zero, repeated by strides of 0."""
    zero = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
    made = nn.Parameter(zero, parameter.requires_grad)
    share_gradient_hooks(made, parameter)
    return made


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Context in which a parameter moves to the meta device as soon as a module registers it."""
    register = nn.Module.register_parameter
    moved = WeakIdKeyDictionary()  # a parameter that is registered twice stays one

    def register_on_meta(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        if value is not None and not value.is_meta:
            on_meta = nn.Parameter(value.detach().to("meta"), value.requires_grad)
            share_gradient_hooks(on_meta, value)
            value = moved.setdefault(value, on_meta)
        register(module, name, value)

    nn.Module.register_parameter = register_on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Put weights and buffers into a module by name; its parameters take over the tensors' memory."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, value in tensors.items():
            if name in parameters:
                parameters[name].data = value
            else:
                buffers[name].copy_(value)
    return module
