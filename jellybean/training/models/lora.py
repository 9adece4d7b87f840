"""LoRA (Hu et al. 2021): trained low-rank adapters beside frozen weights, by peft.

peft puts the adapters into the user's model in place. That model is what is traced and trained: it has its own
`forward`, and the names of its parameters. The PeftModel around it serves to save and to merge the adapters.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.lora import ALL_LINEAR, LoraSpec
from jellybean.quantities import did_you_mean
from jellybean.training.errors import TrainingError, first_names
from jellybean_agent import describe_error
from jellybean_protos.extras import install_command

ADAPTER_FOLDER = "adapter"
_LAYERS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NAMED_LAYERS = ("Conv1D",)  # of transformers: a linear layer with a transposed weight
_NOT_CALLED = ("NonDynamicallyQuantizableLinear",)  # of nn.MultiheadAttention, which reads its weight only


def with_adapters(module: nn.Module, document: TrainingDocument) -> nn.Module:
    """The document's model with the adapters of `lora`, as a PeftModel; without `lora` as it is.

    Adapters have memory and the same values on all ranks, even if the model is a skeleton. TrainingError if targets do
    not fit the model.
    """
    if document.lora is not None:
        module = _add_adapters(module, document, document.lora)
    if is_adapted(module):
        _leave_out_casts(module)
    return module


def _add_adapters(module: nn.Module, document: TrainingDocument, spec: LoraSpec) -> nn.Module:
    peft = _import_peft()
    names = _target_layers(module, spec.targets)
    _check_not_tied(module, names)
    config = peft.LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=names,
    )
    torch.manual_seed(document.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft reports what it corrects by itself, such as the orientation of Conv1D
        try:
            return peft.get_peft_model(module, config).train()
        except (ValueError, TypeError, RuntimeError) as error:
            raise TrainingError(f"lora: peft cannot adapt {document.model_name}: {error}") from error


def _leave_out_casts(module: nn.Module) -> None:
    """Turn off casts of inputs to the adapters' type where a layer's weights have it, as torch.fx cannot trace them.

    They would change nothing there: the layer takes inputs of its own type only, or autocast casts them.
    """
    for part in module.modules():
        if isinstance(part, _import_peft().tuners.lora.LoraLayer):
            types = {value.dtype for value in part.parameters()}
            part.cast_input_dtype_enabled = len(types) > 1


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a model of peft, which is imported already if one exists."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, (peft.PeftModel, peft.PeftMixedModel))


def check_own_adapters(module: nn.Module, document: TrainingDocument) -> None:
    """TrainingError if the user's function returns a model of peft that cannot be trained as the document says."""
    if not is_adapted(module):
        return
    given = f"{document.model_name} returns a {type(module).__name__}"
    if document.lora is not None:
        raise TrainingError(f"{given}, which has adapters already: remove `lora`")
    if document.weights is not None:
        raise TrainingError(
            f"{given}, and `weights` has the names of a model without adapters: return that model, and write `lora`"
        )
    if not isinstance(module, _import_peft().PeftModel) or not hasattr(module.base_model, "merge_and_unload"):
        raise TrainingError(f"{given} that cannot be saved and merged into the model; one of LoRA can")


def trained_module(module: nn.Module) -> nn.Module:
    """The module to trace and train: of a PeftModel the user's model, which has the adapters in it."""
    return module.get_base_model() if is_adapted(module) else module


def save_adapter(module: nn.Module, folder: Path) -> None:
    """Write a PeftModel's adapters as peft does, to load with `PeftModel.from_pretrained`; of others nothing.

    TrainingError if the folder cannot be written.
    """
    place = folder / ADAPTER_FOLDER
    partial = place.with_name(f".{place.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        if is_adapted(module):
            module.save_pretrained(str(partial), save_embedding_layers=False)
        shutil.rmtree(place, ignore_errors=True)  # of an earlier training
        if partial.exists():
            partial.replace(place)
    except OSError as error:
        raise TrainingError(f"the adapter cannot be written to {place}: {describe_error(error)}") from error


def merged(module: nn.Module) -> nn.Module:
    """The model with its adapters added to its weights, under its own names; one without adapters as it is."""
    return module.merge_and_unload() if is_adapted(module) else module


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise TrainingError(
            f"`lora` needs peft, which cannot be imported ({error}): {install_command('lora')}"
        ) from error
    return peft


def _target_layers(module: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    """Names of the layers that get adapters: those that a pattern names, in full or by the last part of their names."""
    layers = {
        name: part
        for name, part in module.named_modules()
        if (isinstance(part, _LAYERS) or type(part).__name__ in _NAMED_LAYERS)
        and type(part).__name__ not in _NOT_CALLED
    }
    chosen: set[str] = set()
    for pattern in patterns if patterns is not None else _default_patterns(module):
        matched = _all_linear(module, layers) if pattern == ALL_LINEAR else [n for n in layers if _fits(n, pattern)]
        if not matched:
            raise TrainingError(f"lora.targets: {_nothing_like(pattern, module, layers)}")
        chosen.update(matched)
    return sorted(chosen)


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern names a layer; as in peft, `q_proj` also names `model.layers.0.self_attn.q_proj`."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _default_patterns(module: nn.Module) -> Sequence[str]:
    """peft's choice for a model type of transformers: of most, the query and value projections."""
    known = _import_peft().utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    kind = getattr(getattr(module, "config", None), "model_type", None)
    targets = known.get(kind)
    if targets is None or isinstance(targets, str):
        model = f"models of type {kind}" if kind is not None else f"a {type(module).__name__}"
        raise TrainingError(
            f"lora: peft knows no targets for {model}: write `targets`, names of layers such as ['*.q_proj'], or "
            f"{ALL_LINEAR}"
        )
    return list(targets)


def _all_linear(module: nn.Module, layers: Mapping[str, nn.Module]) -> list[str]:
    """Names of all linear layers but the output layer of a language model."""
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    linear = [name for name, part in layers.items() if isinstance(part, nn.Linear)]
    linear += [name for name, part in layers.items() if type(part).__name__ in _NAMED_LAYERS]
    return [name for name in linear if layers[name] is not head]


def _nothing_like(pattern: str, module: nn.Module, layers: Mapping[str, nn.Module]) -> str:
    others = {type(part).__name__ for name, part in module.named_modules() if name and _fits(name, pattern)}
    if others:
        return (
            f"{pattern!r} names only {', '.join(sorted(others))}; LoRA adapts Linear, Embedding and convolution layers"
        )
    ends = dict.fromkeys(name.rpartition(".")[2] for name in layers)
    near = did_you_mean(pattern.removeprefix("*."), [*ends, *layers]) or f"it has {first_names(list(ends))}"
    return f"no layer is named like {pattern!r}; {near}"


def _check_not_tied(module: nn.Module, names: Sequence[str]) -> None:
    """TrainingError if a weight to adapt also belongs to another layer, which merging would change."""
    owners: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(value), []).append(name.rpartition(".")[0])
    for name in names:
        for value in module.get_submodule(name).parameters():
            others = [other for other in owners[id(value)] if other != name]
            if others:
                raise TrainingError(
                    f"lora.targets: {name} has the weight of {others[0]}, so that an adapter cannot be merged into one "
                    "of them; leave it out"
                )
