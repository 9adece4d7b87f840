"""What one process of a tensor group has of a model's profiled layers: its share of their bytes and of their time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import fx, nn

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_graph import GraphFacts, parameters_of
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.tensor_parallel.choice import choose_splits


def profile_of_parts(
    profile: TorchProfile, traced: TracedModule, facts: GraphFacts, document: TrainingDocument
) -> TorchProfile:
    """The profile of each process's part: bytes of split weights, and seconds of layers that have them, divided.

    With `conv: data` split layers compute on all processes' rows, in the time of whole ones on their own rows. Left
    out are the messages within the group, and that operations between split layers are on parts. TrainingError if
    layers cannot be split as the document names them.
    """
    spec = document.tensor
    if not spec:
        return profile
    splits = choose_splits(traced.graph, facts, spec.ways, spec.layers, by_rows=spec.by_rows).weights
    names = {id(value): name for name, value in traced.graph.named_parameters()}
    nodes = {node.name: node for node in traced.graph.graph.nodes}
    layers, trained_bytes = [], []
    for number, layer in enumerate(profile.graph.layers):
        weights = _parameters(traced.graph, [nodes[name] for name in profile.members[number]])
        split = {id(value) for value in weights if names[id(value)] in splits}
        faster = spec.ways if split and not spec.by_rows else 1
        layers.append(
            replace(
                layer,
                forward_s=layer.forward_s / faster,
                backward_s=layer.backward_s / faster,
                parameter_bytes=layer.parameter_bytes * _share(weights, split, spec.ways),
            )
        )
        trained = [value for value in weights if value.requires_grad]
        trained_bytes.append(profile.trained_bytes[number] * _share(trained, split, spec.ways))
    graph = replace(profile.graph, layers=tuple(layers))
    return replace(profile, graph=graph, trained_bytes=tuple(trained_bytes))


def _parameters(graph: fx.GraphModule, nodes: list[fx.Node]) -> list[nn.Parameter]:
    return list({id(value): value for node in nodes for value in parameters_of(graph, node)}.values())


def _share(weights: list[nn.Parameter], split: Collection[int], ways: int) -> float:
    """A process's bytes of these weights over all their bytes."""
    whole = sum(value.nbytes for value in weights)
    return sum(value.nbytes / (ways if id(value) in split else 1) for value in weights) / whole if whole else 1.0
