"""Tensors in safetensors files, read one at a time, so that a rank reads only what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open


class TensorFiles(Mapping[str, torch.Tensor]):
    """Named tensors in files. `files`: name -> the file that has it. Every access reads the tensor from disk."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)

    @staticmethod
    def of(paths: Iterable[Path]) -> TensorFiles:
        """All tensors of these files, whose headers are read. OSError or SafetensorError if one cannot be read."""
        path_of: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, "pt") as opened:
                path_of |= dict.fromkeys(opened.keys(), path)
        return TensorFiles(path_of)

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], "pt") as opened:
            return opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, from the file's header."""
        with safe_open(self._files[name], "pt") as opened:
            return tuple(opened.get_slice(name).get_shape())
