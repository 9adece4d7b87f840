"""A torch module cut into stages where the partitioner says.

The module is traced (by torch.fx, or where that cannot follow it by torch.export), so skip connections and weights that
are used twice are seen. What a stage does not use but a later one does goes through it: stages talk to their neighbours
only, as partitioner and simulator count it. Stages share the module's parameters and their names.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from jellybean.training.errors import TrainingError
from jellybean.training.stages.gradient_sums import Ties

_COMPUTES = {"call_module", "call_function", "call_method"}


@dataclass(frozen=True)
class CutModule:
    """`stages` in order. `tied`: parameters that stages share. `crossing[i]`: what goes from stage i to the next."""

    stages: tuple[nn.Module, ...]
    tied: Ties
    crossing: tuple[tuple[str, ...], ...]


class _Numbers(fx.Interpreter):  # type: ignore[misc]  # torch is not looked into
    """Which values of a graph are whole numbers or shapes: they cross as tensors and are themselves again then."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced, garbage_collect_values=True)
        self.found: set[str] = set()
        self.shapes: set[str] = set()
        self.refused: dict[str, str] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, int) and not isinstance(value, bool):
            self.found.add(n.name)
        elif isinstance(value, torch.Size):
            self.shapes.add(n.name)
        elif not isinstance(value, torch.Tensor):
            self.refused[n.name] = type(value).__name__
        return value


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> fx.GraphModule:
    """The module's graph, for batches of any size. TrainingError when no tracer can follow it."""
    try:
        return fx.symbolic_trace(module)
    except Exception as first:  # noqa: BLE001  # whatever the module's own code raises when it is fed proxies
        free = tuple({0: torch.export.Dim.AUTO} if value.dim() else {} for value in inputs)
        try:
            logging.disable(logging.CRITICAL)  # what it logs of its failures is told below in a line
            exported = torch.export.export(module, inputs, dynamic_shapes=free).module()
        except Exception as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TrainingError(
                f"neither torch.fx nor torch.export can follow {type(module).__name__} ({told}; torch.fx: {first})"
            ) from error
        finally:
            logging.disable(logging.NOTSET)
        for node in list(exported.graph.nodes):  # checks of the example's sizes
            if node.op == "call_module" and not node.users and str(node.target) == "_guards_fn":
                exported.graph.erase_node(node)
        exported.recompile()
        return exported


def cut_module(traced: fx.GraphModule, stage_of: dict[str, int], inputs: tuple[Any, ...]) -> CutModule:
    """`stage_of`: by node name, of the computing nodes that matter; a stage needs only what earlier ones make.

    `inputs`: an example, of two samples or more.
    """
    graph, count = traced.graph, max(stage_of.values(), default=0) + 1
    numbers = _numbers(traced, inputs)
    homes = _homes(graph, stage_of)
    crossing = [_crossing(graph, homes, stage) for stage in range(count - 1)]
    for names in crossing:
        for node in names:
            if node.name in numbers.refused:
                raise TrainingError(
                    f"{node.name} is a {numbers.refused[node.name]}, which cannot cross between stages; cut elsewhere"
                )
    before: list[fx.Node] = [node for node in graph.nodes if node.op == "placeholder"]
    stages = []
    for stage in range(count):
        after = crossing[stage] if stage < count - 1 else None
        stages.append(_stage(traced, homes, stage, before, after, numbers))
        before = list(after or ())
    return CutModule(tuple(stages), _tied(stages), tuple(tuple(node.name for node in names) for names in crossing))


def _numbers(traced: fx.GraphModule, inputs: tuple[Any, ...]) -> _Numbers:
    """Runs the example; buffers such as running means stay as they were."""
    kept = {name: value.clone() for name, value in traced.named_buffers()}
    found = _Numbers(traced)
    with torch.no_grad(), torch.random.fork_rng():
        found.run(*inputs)
        for name, value in traced.named_buffers():
            value.copy_(kept[name])
    return found


def _homes(graph: fx.Graph, stage_of: dict[str, int]) -> dict[fx.Node, int]:
    """The stage of every computing node; one that nobody spoke of goes where its inputs are there."""
    homes: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op not in _COMPUTES:
            continue
        earliest = max((homes[one] for one in node.all_input_nodes if one in homes), default=0)
        homes[node] = stage_of.get(node.name, earliest)
        if homes[node] < earliest:
            raise TrainingError(f"{node.name} is in stage {homes[node]} and needs what stage {earliest} makes")
    return homes


def _crossing(graph: fx.Graph, homes: dict[fx.Node, int], stage: int) -> list[fx.Node]:
    """What exists after a stage and is used later, the model's inputs and its output among them."""
    found = []
    for node in graph.nodes:
        if node.op in ("get_attr", "output") or homes.get(node, 0) > stage:
            continue
        users = [homes.get(user, len(homes)) for user in node.users]  # the output is read after all
        if any(home > stage for home in users):
            found.append(node)
    return found


def _stage(
    traced: fx.GraphModule,
    homes: dict[fx.Node, int],
    stage: int,
    before: Sequence[fx.Node],
    after: Sequence[fx.Node] | None,
    numbers: _Numbers,
) -> nn.Module:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in before:
        value = graph.placeholder(node.name)
        copies[node] = value if node.op == "placeholder" else _taken(graph, value, node.name, numbers)

    def copy(node: fx.Node) -> fx.Node:
        if node.op == "get_attr" and node not in copies:
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in traced.graph.nodes:
        if homes.get(node) == stage:
            copies[node] = graph.node_copy(node, copy)
    if after is None:
        output = next(node for node in traced.graph.nodes if node.op == "output")
        graph.output(fx.node.map_arg(output.args[0], copy))
    else:
        graph.output(tuple(_sent(graph, copies[node], node.name, numbers) for node in after))
    graph.lint()
    return fx.GraphModule(traced, graph, f"Stage{stage}")


def _sent(graph: fx.Graph, node: fx.Node, name: str, numbers: _Numbers) -> fx.Node:
    if name not in numbers.found | numbers.shapes:
        return node
    return graph.call_function(torch.tensor, (node,), {"dtype": torch.int64})


def _taken(graph: fx.Graph, value: fx.Node, name: str, numbers: _Numbers) -> fx.Node:
    if name in numbers.shapes:
        return graph.call_function(torch.Size, (graph.call_method("tolist", (value,)),))
    return graph.call_method("item", (value,)) if name in numbers.found else value


def _tied(stages: Sequence[nn.Module]) -> Ties:
    users: dict[int, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, value in stage.named_parameters():
            users.setdefault(id(value), {})[number] = name
    return {next(iter(own.values())): own for own in users.values() if len(own) > 1}
