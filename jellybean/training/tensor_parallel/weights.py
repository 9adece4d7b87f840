"""The parts of weights that a rank of a tensor group has, and the whole ones for checkpoints and the trained model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from jellybean.training.checkpoints.frozen import fingerprint
from jellybean.training.checkpoints.states import HeldStages, weight_of
from jellybean.training.errors import TrainingError
from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.layouts import Split

_NEEDS_WHOLE = ("adafactor", "muon")  # their steps mix rows and columns of a matrix


def check_optimizer(name: str) -> None:
    """TrainingError if an optimizer's step on a part is not the part of its step."""
    if name.lower() in _NEEDS_WHOLE:
        raise TrainingError(
            f"tensor: {name} computes with whole matrices, of which each process has a part: take another optimizer, "
            "such as adamw, or remove `tensor`"
        )


@dataclass
class SplitWeights:
    """The split weights of a rank. `placed`: whole parameters, and how they are split.

    `names`: how a split weight of a stage is split, by its name. `frozen`: fingerprints of whole frozen weights.
    """

    group: TensorGroup
    placed: list[tuple[nn.Parameter, Split]] = field(default_factory=list)
    names: dict[str, Split] = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)
    _parts: dict[int, nn.Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.splits = {id(value): split for value, split in self.placed}

    def forget_whole(self) -> None:
        """Free the whole parameters; all modules have their parts."""
        self.placed, self.splits, self._parts = [], {}, {}  # identities are unique only while the parameters exist

    def replace(self, module: nn.Module) -> None:
        """Replace a stage's split parameters by this rank's parts."""
        names = {id(value): name for name, value in module.named_parameters()}
        for owner in list(module.modules()):
            for short, value in owner._parameters.items():
                if value is not None and id(value) in self.splits:
                    owner._parameters[short] = self._part(names[id(value)], value)

    def _part(self, name: str, value: nn.Parameter) -> nn.Parameter:
        split = self.splits[id(value)]
        self.names[name] = split
        if id(value) not in self._parts:
            if not value.requires_grad:
                self.frozen[name] = fingerprint(value)
            part = split.part(value.data, self.group.ways, self.group.index).clone()
            self._parts[id(value)] = nn.Parameter(part, requires_grad=value.requires_grad)
        return self._parts[id(value)]

    def whole(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """The whole tensor of a weight, gradient or state of a weight of this name. A collective call of the group."""
        from torch.distributed.tensor import DTensor, Shard

        split = self.names[name]
        mesh = self.group.mesh(part.device.type)
        gathered = DTensor.from_local(part, mesh, [Shard(split.dim)], run_check=False).full_tensor()
        return split.whole(gathered.chunk(self.group.ways, split.dim))

    def whole_weights(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Whole weights, on the first rank of the group; empty on the others. A collective call."""
        collected: dict[str, torch.Tensor] = {}
        for name, value in weights.items():
            whole = self.whole(name, value) if name in self.names else value
            if self.group.index == 0:
                collected[name] = whole
        return collected

    def whole_state(self, state: Mapping[str, torch.Tensor], held: HeldStages) -> dict[str, torch.Tensor]:
        """A rank's state with whole tensors, on the first rank of the group; empty on the others. A collective call."""
        shapes = {n: value.shape for stage in held.values() for n, value in stage.versions.parameters.items()}
        collected: dict[str, torch.Tensor] = {}
        for key, value in state.items():
            name = weight_of(key)
            whole = self.whole(name, value) if name in self.names and value.shape == shapes[name] else value
            if self.group.index == 0:
                collected[key] = whole
        return collected


class PartsOf(Mapping[str, torch.Tensor]):
    """A checkpoint's tensors, of which those of split weights are this rank's parts."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], split: SplitWeights, held: HeldStages) -> None:
        self._tensors, self._split = tensors, split
        self._shapes = {n: value.shape for stage in held.values() for n, value in stage.versions.parameters.items()}

    def __getitem__(self, key: str) -> torch.Tensor:
        value, name = self._tensors[key], weight_of(key)
        split = self._split.names.get(name)
        if split is None:
            return value
        ways = self._split.group.ways
        whole = [size * ways if dim == split.dim else size for dim, size in enumerate(self._shapes[name])]
        return split.part(value, ways, self._split.group.index).clone() if list(value.shape) == whole else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
