"""What one process of a tensor group has of a model's profiled layers: its share of their time and bytes, its messages.

Which operations compute parts and where the group sums or gathers is read off the rewritten graph that trains
(`lowering`), so prices and training cannot differ in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_graph import GraphFacts, Shapes, parameters_of
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean.training.stages.precision import PRECISIONS
from jellybean.training.tensor_parallel.choice import SplitChoice, choose_splits
from jellybean.training.tensor_parallel.conjugate_collectives import (
    Enter,
    Gather,
    GatherForParts,
    LookUp,
    Reduce,
    Scatter,
)
from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.lowering import LoweredStage, PlacedBorder, lower
from jellybean.training.tensor_parallel.rows import EnterRows, LeaveRows
from jellybean.training.tensor_parallel.weights import check_optimizer
from jellybean_solver.pipeline import COLLECTIVES

# All-reduces forward and backward of each border; a ring's all-gather or reduce-scatter is half of one.
_ALL_REDUCES: Mapping[type[nn.Module], tuple[float, float]] = {
    Enter: (0.0, 1.0),
    Reduce: (1.0, 0.0),
    LookUp: (1.0, 0.0),
    Gather: (0.5, 0.0),
    Scatter: (0.0, 0.5),
    GatherForParts: (0.5, 0.5),
    EnterRows: (0.5, 0.5),
    LeaveRows: (0.5, 0.5),
}


@dataclass(frozen=True)
class GroupSums:
    """All-reduces of a tensor group in a layer's forward or backward pass of a micro-batch; halves are all-gathers.

    `size_bytes`: of what they sum, in total.
    """

    count: float = 0.0
    size_bytes: float = 0.0

    def __add__(self, other: GroupSums) -> GroupSums:
        return GroupSums(self.count + other.count, self.size_bytes + other.size_bytes)

    def scaled(self, factor: float) -> GroupSums:
        """The same of so many times as many rows."""
        return GroupSums(self.count, factor * self.size_bytes)

    def sent_bytes(self, ways: int) -> float:
        """Bytes that each process sends, by the ring algorithm."""
        return 2 * (ways - 1) / ways * self.size_bytes

    def seconds(self, ways: int, link: LinkSpeed) -> float:
        """Seconds of all of them, one after the other."""
        if not self.count:
            return 0.0
        size_bytes = self.size_bytes / self.count
        return self.count * COLLECTIVES["ring"].seconds(size_bytes, ways, link.bytes_per_s, link.latency_s)


@dataclass(frozen=True)
class PartsProfile(TorchProfile):
    """The profile of one process of a tensor group of `ways`. `forward_sums`, `backward_sums`: of each layer."""

    ways: int = 1
    forward_sums: tuple[GroupSums, ...] = ()
    backward_sums: tuple[GroupSums, ...] = ()


def group_seconds(profile: TorchProfile, layers: Iterable[int], link: LinkSpeed) -> tuple[float, float]:
    """Seconds of the tensor group's sums in these layers, forward and backward; 0 of whole layers."""
    if not isinstance(profile, PartsProfile):
        return 0.0, 0.0
    indices = list(layers)
    forward, backward = (
        sum((sums[layer] for layer in indices), GroupSums()) for sums in (profile.forward_sums, profile.backward_sums)
    )
    return forward.seconds(profile.ways, link), backward.seconds(profile.ways, link)


@dataclass(frozen=True)
class _LayerShare:
    """A process's share of a layer: of its seconds, sent and kept activations, weights; and its group's sums."""

    forward: float
    backward: float
    sent: float
    weights: float
    trained: float
    forward_sums: GroupSums
    backward_sums: GroupSums


def sample_rows(shapes: Iterable[Sequence[int]]) -> int:
    """The number of rows of a micro-batch, from the shapes of the model's arguments."""
    return max((shape[0] for shape in shapes if len(shape)), default=1)


class LayerParts:
    """The parts of a traced model's layers that processes of tensor groups have, by the size of the group."""

    def __init__(self, traced: TracedModule, facts: GraphFacts, document: TrainingDocument) -> None:
        self._graph, self._facts, self._document = traced.graph, facts, document
        self._by_rows = document.tensor.conv == "data"
        self._nodes = {node.name: node for node in traced.graph.graph.nodes}
        self._names = {id(value): name for name, value in traced.graph.named_parameters()}
        arguments = [facts.shapes.get(node.name) for node in self._nodes.values() if node.op == "placeholder"]
        self._rows = sample_rows(shape for shape in arguments if isinstance(shape, tuple))
        self._lowered: dict[int, tuple[SplitChoice, LoweredStage]] = {}
        self._shares: dict[int, list[_LayerShare]] = {}

    def lowered(self, ways: int) -> tuple[SplitChoice, LoweredStage]:
        """The splits over `ways` processes, and the whole graph for one of them.

        TrainingError if the layers, or the optimizer's state, cannot be split so.
        """
        if ways not in self._lowered:
            spec = self._document.tensor
            check_optimizer(self._document.optimizer.name)
            choice = choose_splits(self._graph, self._facts, ways, spec.layers, by_rows=self._by_rows)
            parameters = dict(self._graph.named_parameters())
            splits = {id(parameters[name]): split for name, split in choice.weights.items()}
            stage = lower(self._graph, splits, self._facts, TensorGroup(ways), {}, by_rows=self._by_rows)
            self._lowered[ways] = choice, stage
        return self._lowered[ways]

    def profile(self, whole: TorchProfile, ways: int, rows: int) -> TorchProfile:
        """The profile of a process's parts, from that of whole layers for micro-batches of `rows` samples.

        With `conv: data` split layers compute on all processes' rows, in the time of whole ones on their own rows.
        Later profiles must have the layers of the first. TrainingError as `lowered`.
        """
        if ways == 1:
            return whole
        if ways not in self._shares:
            self._shares[ways] = [self._layer_share(whole, layer, ways) for layer in range(len(whole.members))]
        shares, scale = self._shares[ways], rows / self._rows
        layers = [
            replace(
                layer,
                forward_s=layer.forward_s * share.forward,
                backward_s=layer.backward_s * share.backward,
                activation_bytes=layer.activation_bytes * share.sent,
                parameter_bytes=layer.parameter_bytes * share.weights,
            )
            for layer, share in zip(whole.graph.layers, shares, strict=True)
        ]
        return PartsProfile(
            replace(whole.graph, layers=tuple(layers)),
            whole.tied,
            whole.tracer,
            whole.members,
            tuple(size * share.trained for size, share in zip(whole.trained_bytes, shares, strict=True)),
            whole.device,
            whole.node_seconds,
            ways,
            tuple(share.forward_sums.scaled(scale) for share in shares),
            tuple(share.backward_sums.scaled(scale) for share in shares),
        )

    def _layer_share(self, whole: TorchProfile, layer: int, ways: int) -> _LayerShare:
        choice, stage = self.lowered(ways)
        members = whole.members[layer]
        every = [value for name in members for value in parameters_of(self._graph, self._nodes[name])]
        weights = list({id(value): value for value in every}.values())
        split = {id(value) for value in weights if self._names[id(value)] in choice.weights}
        faster = 1 if self._by_rows else ways
        forward_s, backward_s = (
            {name: whole.node_seconds.get(name, (0.0, 0.0))[way] for name in members} for way in (0, 1)
        )
        users = {name: {user.name for user in self._nodes[name].users} for name in members}
        sent = {name: _values(self._facts.shapes.get(name)) for name in members if not users[name] <= set(members)}
        forward_sums, backward_sums = self._sums(set(members), stage, ways)
        return _LayerShare(
            _share(forward_s, stage.on_parts, faster),
            _share(backward_s, stage.on_parts, faster),
            _share(sent, stage.split, faster),
            _share({id(value): value.nbytes for value in weights}, split, ways),
            _share({id(value): value.nbytes for value in weights if value.requires_grad}, split, ways),
            forward_sums,
            backward_sums,
        )

    def _sums(self, members: set[str], stage: LoweredStage, ways: int) -> tuple[GroupSums, GroupSums]:
        """The sums in a layer on the traced example, forward and backward."""
        forward, backward = GroupSums(), GroupSums()
        for border in stage.borders:
            place = border.of if self._nodes[border.at].op == "output" else border.at
            if place not in members or type(border.module) not in _ALL_REDUCES:
                continue
            there, back = _ALL_REDUCES[type(border.module)]
            size_bytes = self._size_bytes(border, ways)
            forward += GroupSums(there, there * size_bytes)
            if border.of in self._facts.trained:
                backward += GroupSums(back, back * size_bytes)
        return forward, backward

    def _size_bytes(self, border: PlacedBorder, ways: int) -> float:
        """Bytes of the whole value that a border sums or gathers; of all processes' rows where they differ."""
        computation = PRECISIONS[self._document.precision].computation
        weights_type = next(iter(self._graph.parameters())).dtype
        every = ways if isinstance(border.module, EnterRows | LeaveRows) else 1
        return float((computation or weights_type).itemsize * every * _values(self._facts.shapes[border.of]))


def _values(shapes: Shapes | None) -> int:
    """The number of values of a tensor of this shape, or of several."""
    if shapes is None:
        return 0
    return sum(map(math.prod, shapes)) if isinstance(shapes, list) else math.prod(shapes)


def _share(sizes: Mapping[Any, float], divided: Collection[Any], ways: int) -> float:
    """What is left of a sum of sizes, of which some are divided by `ways`, over all of it; 1 of nothing."""
    whole = sum(sizes.values())
    left: float = sum(size / (ways if key in divided else 1) for key, size in sizes.items())
    return left / whole if whole else 1.0
