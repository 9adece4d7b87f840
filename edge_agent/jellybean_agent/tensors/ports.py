"""The inputs and outputs of models and steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorPort:
    """An input or output of a model; -1 in a shape is any size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
