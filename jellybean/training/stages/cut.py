"""Splits a torch module into stages at the cuts that the partitioner chose.

The module is traced (by torch.fx, or by torch.export where torch.fx fails), so skip connections and tied weights are
visible. Stages communicate only with their neighbours, as partitioner and simulator assume: a value for a later stage
passes through all stages in between. Stages share the module's parameters and their names.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from jellybean.training.errors import TrainingError
from jellybean.training.stages.all_reduce import TiedWeights

_COMPUTE_OPS = {"call_module", "call_function", "call_method"}


@dataclass(frozen=True)
class CutModule:
    """A module cut into `stages`, in order.

    `tied`: parameters in several stages. `crossing[i]`: values passed from stage i to stage i + 1.
    """

    stages: tuple[nn.Module, ...]
    tied: TiedWeights
    crossing: tuple[tuple[str, ...], ...]


class _NonTensorValues(fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
    """Finds a graph's integer and shape values: they cross cuts as tensors and are converted back."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced, garbage_collect_values=True)
        self.integers: set[str] = set()
        self.shapes: set[str] = set()
        self.other_types: dict[str, str] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, int) and not isinstance(value, bool):
            self.integers.add(n.name)
        elif isinstance(value, torch.Size):
            self.shapes.add(n.name)
        elif not isinstance(value, torch.Tensor):
            self.other_types[n.name] = type(value).__name__
        return value


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> fx.GraphModule:
    """The module's graph, for any batch size. TrainingError if no tracer can follow the module."""
    try:
        return fx.symbolic_trace(module)
    except Exception as first:  # noqa: BLE001  # user code may raise anything when it is fed proxies
        free = tuple({0: torch.export.Dim.AUTO} if value.dim() else {} for value in inputs)
        try:
            logging.disable(logging.CRITICAL)  # torch.export logs its failures; they are reported below in one line
            exported = torch.export.export(module, inputs, dynamic_shapes=free).module()
        except Exception as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TrainingError(
                f"neither torch.fx nor torch.export can follow {type(module).__name__} ({told}; torch.fx: {first})"
            ) from error
        finally:
            logging.disable(logging.NOTSET)
        for node in list(exported.graph.nodes):  # drop the guards on the example's sizes
            if node.op == "call_module" and not node.users and str(node.target) == "_guards_fn":
                exported.graph.erase_node(node)
        exported.recompile()
        return exported


def cut_module(traced: fx.GraphModule, stage_of: dict[str, int], inputs: tuple[Any, ...]) -> CutModule:
    """Cut a traced module into stages. TrainingError if a value that cannot be sent as a tensor would cross a cut.

    `stage_of`: node name -> stage; no node may read the output of a later stage. `inputs`: an example of at least two
    samples.
    """
    graph, count = traced.graph, max(stage_of.values(), default=0) + 1
    non_tensors = _non_tensor_values(traced, inputs)
    stages_of = _stages_of(graph, stage_of)
    crossing = [_crossing(graph, stages_of, stage) for stage in range(count - 1)]
    for names in crossing:
        for node in names:
            if node.name in non_tensors.other_types:
                raise TrainingError(
                    f"{node.name} is a {non_tensors.other_types[node.name]}, which cannot cross between stages; "
                    "cut elsewhere"
                )
    before: list[fx.Node] = [node for node in graph.nodes if node.op == "placeholder"]
    stages = []
    for stage in range(count):
        after = crossing[stage] if stage < count - 1 else None
        stages.append(_stage(traced, stages_of, stage, before, after, non_tensors))
        before = list(after or ())
    return CutModule(
        tuple(stages), _tied_parameters(stages), tuple(tuple(node.name for node in names) for names in crossing)
    )


def _non_tensor_values(traced: fx.GraphModule, inputs: tuple[Any, ...]) -> _NonTensorValues:
    """Run the example inputs to find values that are not tensors; buffers (running means) are restored."""
    kept = {name: value.clone() for name, value in traced.named_buffers()}
    integers = _NonTensorValues(traced)
    with torch.no_grad(), torch.random.fork_rng():
        integers.run(*inputs)
        for name, value in traced.named_buffers():
            value.copy_(kept[name])
    return integers


def _stages_of(graph: fx.Graph, stage_of: dict[str, int]) -> dict[fx.Node, int]:
    """Computing node -> stage; a node that `stage_of` does not contain joins the latest stage of its inputs."""
    stages_of: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op not in _COMPUTE_OPS:
            continue
        earliest = max((stages_of[one] for one in node.all_input_nodes if one in stages_of), default=0)
        stages_of[node] = stage_of.get(node.name, earliest)
        if stages_of[node] < earliest:
            raise TrainingError(f"{node.name} is in stage {stages_of[node]} and needs what stage {earliest} makes")
    return stages_of


def _crossing(graph: fx.Graph, stages_of: dict[fx.Node, int], stage: int) -> list[fx.Node]:
    """Model inputs and values computed up to a stage that a later stage or the model's output reads."""
    integers = []
    for node in graph.nodes:
        if node.op in ("get_attr", "output") or stages_of.get(node, 0) > stage:
            continue
        users = [stages_of.get(user, len(stages_of)) for user in node.users]  # the output node is after all stages
        if any(home > stage for home in users):
            integers.append(node)
    return integers


def _stage(
    traced: fx.GraphModule,
    stages_of: dict[fx.Node, int],
    stage: int,
    before: Sequence[fx.Node],
    after: Sequence[fx.Node] | None,
    non_tensors: _NonTensorValues,
) -> nn.Module:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in before:
        value = graph.placeholder(node.name)
        copies[node] = value if node.op == "placeholder" else _from_tensor(graph, value, node.name, non_tensors)

    def copy(node: fx.Node) -> fx.Node:
        if node.op == "get_attr" and node not in copies:
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in traced.graph.nodes:
        if stages_of.get(node) == stage:
            copies[node] = graph.node_copy(node, copy)
    if after is None:
        output = next(node for node in traced.graph.nodes if node.op == "output")
        graph.output(fx.node.map_arg(output.args[0], copy))
    else:
        graph.output(tuple(_to_tensor(graph, copies[node], node.name, non_tensors) for node in after))
    graph.lint()
    return fx.GraphModule(traced, graph, f"Stage{stage}")


def _to_tensor(graph: fx.Graph, node: fx.Node, name: str, non_tensors: _NonTensorValues) -> fx.Node:
    if name not in non_tensors.integers | non_tensors.shapes:
        return node
    return graph.call_function(torch.tensor, (node,), {"dtype": torch.int64})


def _from_tensor(graph: fx.Graph, value: fx.Node, name: str, non_tensors: _NonTensorValues) -> fx.Node:
    if name in non_tensors.shapes:
        return graph.call_function(torch.Size, (graph.call_method("tolist", (value,)),))
    return graph.call_method("item", (value,)) if name in non_tensors.integers else value


def _tied_parameters(stages: Sequence[nn.Module]) -> TiedWeights:
    users: dict[int, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, value in stage.named_parameters():
            users.setdefault(id(value), {})[number] = name
    return {next(iter(own.values())): own for own in users.values() if len(own) > 1}
