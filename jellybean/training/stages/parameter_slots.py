"""Runs a module with replaced parameters, like torch.func.functional_call, but with name lookups done once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class ParameterSlots:
    """The dictionary entries of a module's parameters and buffers; a shared tensor has several."""

    def __init__(self, module: nn.Module) -> None:
        names = {id(value): name for name, value in (*module.named_parameters(), *module.named_buffers())}
        self._slots: list[tuple[dict[str, Any], str, str]] = [
            (entries, short, names[id(value)])
            for part in module.modules()
            for entries in (part._parameters, part._buffers)
            for short, value in entries.items()
            if value is not None
        ]

    def assigned(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What a forward has put in the place of these tensors, by their names."""
        return {
            name: entries[short]
            for entries, short, name in self._slots
            if name in values and entries[short] is not values[name]
        }

    @contextmanager
    def replaced(self, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Context with tensors replaced, by names of `named_parameters`, `named_buffers`; others are unchanged."""
        kept = []
        for entries, short, name in self._slots:
            if name in values and values[name] is not entries[short]:
                kept.append((entries, short, entries[short]))
                entries[short] = values[name]
        try:
            yield
        finally:
            for entries, short, value in kept:
                entries[short] = value
