"""Named tensors one after the other in one buffer, which is sent as it is. Both ends know the layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping

import torch

from jellybean.training.stages.gradient_layouts import dense


class FlatTensors:
    """Memory for tensors like `values`, by name.

    Larger types come first, so every tensor is aligned and the buffer has no gaps.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        ordered = sorted(values.items(), key=lambda item: -item[1].element_size())  # sorted is stable
        self.buffer = torch.empty(sum(value.nbytes for value in values.values()), dtype=torch.uint8)
        self.views: dict[str, torch.Tensor] = {}
        place = 0
        for name, value in ordered:
            self.views[name] = self.buffer[place : place + value.nbytes].view(value.dtype).view(value.shape)
            place += value.nbytes

    @property
    def layout(self) -> str:
        """Digest of names, types and shapes: equal on both ends."""
        parts = [(name, str(view.dtype), list(view.shape)) for name, view in self.views.items()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def memory(self) -> memoryview:
        """The buffer's bytes, to send or to receive."""
        return memoryview(self.buffer.numpy())

    def put(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors into the buffer; one that is missing is all zeros."""
        for name, view in self.views.items():
            if name in values:
                view.copy_(dense(values[name]))
            else:
                view.zero_()

    def without(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The tensors, without those of these names."""
        return {name: view for name, view in self.views.items() if name not in names}
