"""Pretrained weights from safetensors files, as Hugging Face writes them: a rank reads those of its own stages only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from jellybean.training.checkpoints.tensor_files import TensorFiles
from jellybean.training.errors import TrainingError, first_names
from jellybean_agent import describe_error


class PretrainedWeights:
    """Which tensor of the files each parameter and persistent buffer of a module takes.

    A tensor has the name that it has in the module's state dict; tied weights may have any of their names.
    """

    def __init__(self, files: TensorFiles, module: nn.Module) -> None:
        self._files = files
        self._name_of: dict[int, str] = {}
        for name, value in module.state_dict(keep_vars=True).items():
            if name in files:
                self._name_of.setdefault(id(value), name)

    def fill(self, values: Iterable[torch.Tensor]) -> None:
        """Read the tensors of these parameters and buffers; a parameter gets new memory, of its own type."""
        with torch.no_grad():
            for value in values:
                if id(value) not in self._name_of:
                    continue
                tensor = self._files[self._name_of[id(value)]]
                if isinstance(value, nn.Parameter):
                    value.data = tensor.to(value.dtype, copy=True)  # the file may be mapped into memory
                else:
                    value.copy_(tensor)


def open_weights(path: Path, module: nn.Module) -> PretrainedWeights:
    """The weights of `module` in a file, or in all files of a folder.

    TrainingError if a file cannot be read, a parameter is missing, or a shape differs. Tensors that the module does not
    have are ignored.
    """
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not paths:
        raise TrainingError(f"weights: {path} has no *.safetensors files")
    try:
        files = TensorFiles.of(paths)
        shapes = {name: files.shape(name) for name in files}
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"weights: {path} cannot be read: {describe_error(error)}") from error
    _check(path, module, shapes)
    return PretrainedWeights(files, module)


def _check(path: Path, module: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
    names: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    missing = [tied[0] for tied in names.values() if not any(name in shapes for name in tied)]
    if missing:
        raise TrainingError(
            f"weights: {path} lacks {first_names(missing)} of the model; it has {first_names(list(shapes))}. Names "
            "must be those of the model's state_dict(); for a model with new layers remove `weights`, and load them in "
            "the function"
        )
    for name, value in module.state_dict().items():
        if name in shapes and shapes[name] != tuple(value.shape):
            raise TrainingError(
                f"weights: {name} has the shape {list(shapes[name])} in {path} and {list(value.shape)} in the model"
            )
