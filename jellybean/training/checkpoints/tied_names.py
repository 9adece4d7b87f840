"""The names of tensors that have several in a model, such as tied weights.

A stage has a tied weight under the name by which its layers read it, and a checkpoint under those of the stages that
wrote it. So a run with other stages finds it by any of its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from jellybean.training.checkpoints.states import renamed, weight_of

TiedNames = Mapping[str, tuple[str, ...]]  # each name of a tensor that has several -> all of them


def tied_names(module: nn.Module) -> TiedNames:
    """All names of each parameter and buffer of the whole model that has more than one."""
    names: dict[int, list[str]] = {}
    parameters = module.named_parameters(remove_duplicate=False)
    for name, value in (*parameters, *module.named_buffers(remove_duplicate=False)):
        names.setdefault(id(value), []).append(name)
    return {name: tuple(tied) for tied in names.values() if len(tied) > 1 for name in tied}


def by_all_names(values: Mapping[str, str], tied: TiedNames) -> dict[str, str]:
    """Values by the names of weights, under all names of each."""
    others = {other: value for name, value in values.items() for other in tied.get(name, ())}
    return {**others, **values}


class TensorsByAnyName(Mapping[str, torch.Tensor]):
    """A checkpoint's tensors, each under all names of its weight."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], tied: TiedNames) -> None:
        self._tensors = tensors
        self._key_of = {key: key for key in tensors}
        for key in tensors:
            for name in tied.get(weight_of(key), ()):
                self._key_of.setdefault(renamed(key, name), key)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._tensors[self._key_of[key]]

    def __contains__(self, key: object) -> bool:
        return key in self._key_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._key_of)

    def __len__(self) -> int:
        return len(self._key_of)
