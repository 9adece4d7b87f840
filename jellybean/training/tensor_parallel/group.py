"""The ranks that share the split weights of a stage: their collectives, with the bytes that each sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Their names before torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass
class TensorGroup:
    """A tensor group of `ways` ranks, of which this is `index`.

    `calls`: collectives so far, by name. `sent_bytes`: what this rank has sent in them by the ring algorithm: of n
    bytes, 2 (ways - 1) / ways n in an all-reduce, half of it in an all-gather or a reduce-scatter.
    """

    ways: int = 1
    index: int = 0
    group: dist.ProcessGroup | None = None
    calls: Counter[str] = field(default_factory=Counter)
    sent_bytes: float = 0.0
    _meshes: dict[str, DeviceMesh] = field(default_factory=dict)  # by kind of device

    def all_reduce(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks. May write into `value`."""
        value = value.contiguous()
        self._count("all_reduce", 2 * value.nbytes)
        dist.all_reduce(value, group=self.group)
        return value

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The values of all ranks, which are of one shape, in their order."""
        self._count("all_gather", self.ways * value.nbytes)
        gathered = value.new_empty((self.ways, *value.shape))
        _all_gather(gathered.view(-1), value.contiguous().view(-1), group=self.group)
        return list(gathered)

    def reduce_scatter(self, parts: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of this rank's row of `parts`, which has a row per rank."""
        self._count("reduce_scatter", parts.nbytes)
        total = parts.new_empty(parts.shape[1:])
        _reduce_scatter(total.view(-1), parts.contiguous().view(-1), group=self.group)
        return total

    def exchange(self, number: int, device: torch.device) -> list[int]:
        """The numbers of all ranks. Waits for them; its few bytes are not counted."""
        numbers = torch.empty(self.ways, dtype=torch.int64, device=device)
        _all_gather(numbers, torch.tensor([number], device=device), group=self.group)
        return [int(one) for one in numbers]

    def mesh(self, kind: str) -> DeviceMesh:
        """The ranks as a mesh of devices of this kind, made once. A collective call."""
        from torch.distributed.device_mesh import DeviceMesh

        if kind not in self._meshes:
            self._meshes[kind] = DeviceMesh.from_group(self.group, kind)
        return self._meshes[kind]

    def _count(self, name: str, whole_bytes: float) -> None:
        self.calls[name] += 1
        self.sent_bytes += whole_bytes * (self.ways - 1) / self.ways
