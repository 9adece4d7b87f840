"""Whether the document's function gives the same model again, as it must when a run hands back what it trained.

A run keeps weights and buffers, by name. What else a model has (buffers that are not saved, tensors in attributes)
comes from the function once more, at the end. What could fail then is tried before the first epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.checkpoints.frozen import fingerprint
from jellybean.training.errors import TrainingError
from jellybean.training.models.building import constants_of, load_model, load_skeleton
from jellybean.training.models.lora import trained_module, with_adapters

_DIGEST_BYTES = 16
# Bytes of weights above which no second model is built beside the first one, only to compare the two: a process may not
# have the memory. Then a function that gives other frozen weights each time is refused at the end.
_MOST_BYTES = 2**30
_FROZEN = "the frozen weight "  # before the names of frozen parameters


def constant_digests(module: nn.Module) -> dict[str, str]:
    """Digests of a model's tensors that are no parameters, by name, and fingerprints of its frozen parameters.

    Call it before the model runs: a forward changes buffers.
    """
    constants = {name: _digest(value) for name, value in constants_of(module)}
    frozen = {name: value for name, value in module.named_parameters() if not value.requires_grad}
    return constants | {_FROZEN + name: fingerprint(value) for name, value in frozen.items()}


def needs_memory(
    expected: Mapping[str, str], document: TrainingDocument, directory: Path, weight_bytes: int = 0
) -> bool:
    """Whether the model must be built with memory for its weights to have these constants once more.

    `expected`: `constant_digests` of the model that is trained, which has so many bytes of weights. TrainingError if
    the function gives another model.
    """
    has_frozen = any(name.startswith(_FROZEN) for name in expected)
    if document.weights is not None or (not has_frozen and _skeleton_digests(document, directory) == expected):
        return False
    if weight_bytes > _MOST_BYTES:
        return True  # frozen weights are compared at the end
    again = constant_digests(trained_module(with_adapters(load_model(document, directory), document)))
    changed = sorted(name for name in expected.keys() | again.keys() if expected.get(name) != again.get(name))
    if changed:
        raise TrainingError(
            f"{document.model_name} gives another model each time: {changed[0]} differs between two calls, so what is "
            "trained could not be handed back at the end; let it give the same one, with fixed seeds"
        )
    return True


def check_saved(module: nn.Module) -> None:
    """TrainingError if the trained model could not be written to a safetensors file."""
    types: set[torch.dtype] = set()
    try:
        state = module.state_dict()
    except Exception as error:  # hooks of the user may raise anything
        raise TrainingError(f"state_dict() of the model failed{place_and_reason(error)}") from error
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TrainingError(
                f"{name} of the model's state_dict() is no tensor but {type(value).__name__}, which no file of weights "
                "can hold: leave it out (get_extra_state), or keep it in a buffer"
            )
        if value.layout is not torch.strided or value.is_quantized:
            raise TrainingError(f"{name} is no dense tensor, which no file of weights can hold: keep a dense one")
        if value.dtype not in types:
            types.add(value.dtype)
            try:
                save({name: torch.empty(0, dtype=value.dtype)})
            except (KeyError, ValueError) as error:
                dtype = str(value.dtype).removeprefix("torch.")
                raise TrainingError(
                    f"{name} is {dtype}, which no file of weights can hold: use another type, such as complex64"
                ) from error


def check_own_memory(module: nn.Module) -> None:
    """TrainingError if a buffer is the memory of a trained weight: a copy of the stage would have another one."""
    trained = {
        value.untyped_storage().data_ptr(): name
        for name, value in module.named_parameters()
        if value.requires_grad and value.layout is torch.strided
    }
    for name, value in constants_of(module):
        weight = trained.get(value.untyped_storage().data_ptr()) if value.layout is torch.strided else None
        if weight is not None and value.numel():
            raise TrainingError(
                f"{name} shares the memory of the weight {weight}, which training changes: read the weight in forward, "
                "or keep a copy of it (.clone())"
            )


def _skeleton_digests(document: TrainingDocument, directory: Path) -> dict[str, str] | None:
    """Those of the model without memory for its weights; None if it cannot be built so."""
    try:
        skeleton = load_skeleton(document, directory)
    except Exception:  # noqa: BLE001  # a constructor that computes with its parameters
        return None
    return constant_digests(trained_module(with_adapters(skeleton, document)))


def _digest(value: torch.Tensor) -> str:
    if value.is_meta:
        return "no memory"
    plain = value.detach().cpu()
    plain = (plain.to_dense() if plain.layout is not torch.strided else plain).resolve_neg().resolve_conj()
    digest = hashlib.blake2b(repr((tuple(value.shape), value.dtype)).encode(), digest_size=_DIGEST_BYTES)
    if plain.numel():
        # A copy: memory that numpy has read cannot be resized, and a forward may resize a buffer.
        digest.update(memoryview(plain.reshape(-1).clone().view(torch.uint8).numpy()))
    return digest.hexdigest()
