"""Cuts a traced module into stages that exchange tensors with their neighbours only.

A stage gets the values that the stage before passes on, and those arguments of the model that it reads itself: every
rank has the data, so masks and labels do not travel. What depends on the arguments alone is repeated in every stage
that needs it. Integers and shapes cross as tensors and are converted back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from jellybean.pipeline.torch_devices import move_module
from jellybean.pipeline.torch_graph import COMPUTE_OPS, GraphFacts, ValueKind
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.errors import TrainingError
from jellybean.training.stages.all_reduce import TiedWeights
from jellybean.training.stages.stage import LossFunction, StageCopy, StageInputs, StageSettings
from jellybean.training.stages.stage_links import StageLinks


@dataclass(frozen=True)
class CutStage:
    """One stage. `module` takes the values received, then its own arguments, and returns a tuple.

    `received`: names of the values from the stage before. `state`: names of the buffers that it updates.
    """

    module: nn.Module
    inputs: StageInputs
    received: tuple[str, ...]
    state: frozenset[str]

    def copy(self, settings: StageSettings, loss: LossFunction | None, device: torch.device) -> StageCopy:
        """A copy of the stage on a device."""
        return StageCopy(move_module(self.module, device), settings, loss, self.inputs, self.state, device)


@dataclass(frozen=True)
class CutModule:
    """A module cut into `stages`, in order. `tied`: trained parameters in several stages."""

    stages: tuple[CutStage, ...]
    tied: TiedWeights


def cut_module(
    traced: TracedModule,
    facts: GraphFacts,
    stage_of: Mapping[str, int],
    stages: int | None = None,
    *,
    direct: bool = False,
) -> CutModule:
    """Cut a traced module. `stage_of`: stage by node name, in topological order of the stages.

    `stages`: their number, if the last ones may be empty. `direct`: a stage sends what others need to them, in place
    of to the next stage, which passes it on; so stages that do not need each other may run at once. TrainingError if
    the cut separates what `facts` says must be in one stage.
    """
    cutter = _Cutter(traced, facts, stage_of, stages or max(stage_of.values(), default=0) + 1)
    return cutter.cut_directly() if direct else cutter.cut()


class _Cutter:
    """The cut of one traced module; see `cut_module`."""

    def __init__(self, traced: TracedModule, facts: GraphFacts, stage_of: Mapping[str, int], stages: int) -> None:
        self._graph, self._facts = traced.graph, facts
        self._count = stages
        self._nodes = list(traced.graph.graph.nodes)
        self._by_name = {node.name: node for node in self._nodes}
        self._arguments = [node for node in self._nodes if node.op == "placeholder"]
        self._stage_of = self._stages(stage_of)

    def cut(self) -> CutModule:
        crossing = [self._crossing(stage) for stage in range(self._count - 1)]
        self._check_crossing(crossing)
        stages = tuple(
            self._stage(stage, crossing[stage - 1] if stage else [], crossing[stage] if stage < len(crossing) else None)
            for stage in range(self._count)
        )
        return CutModule(stages, _tied_parameters([stage.module for stage in stages]))

    def cut_directly(self) -> CutModule:
        """Stages that exchange values with those that make and read them; the last one returns the model's outputs."""
        last = self._count - 1
        targets = {node: self._readers(node) - {home} for node, home in self._stage_of.items()}
        sent = [
            [node for node, home in self._stage_of.items() if home == stage and targets[node]]
            for stage in range(self._count)
        ]
        self._check_crossing(sent)
        stages = []
        for number in range(self._count):
            received = [node for own in sent[:number] for node in own if number in targets[node]]
            stage = self._stage(number, received, sent[number] if number < last else None)
            links = StageLinks(
                tuple(self._stage_of[node] for node in received),
                tuple(frozenset(targets[node]) for node in sent[number]),
                tuple(map(self._is_differentiable, sent[number])),
                frozenset(self._stage_of[node] for node in received if self._is_differentiable(node)),
            )
            stages.append(replace(stage, inputs=replace(stage.inputs, links=links)))
        return CutModule(tuple(stages), _tied_parameters([stage.module for stage in stages]))

    def _readers(self, node: fx.Node) -> set[int]:
        """The stages that read a value; what the model returns is read by the last."""
        return {self._stage_of.get(user, self._count - 1) for user in node.users if self._is_placed(user)}

    def _is_placed(self, user: fx.Node) -> bool:
        return user in self._stage_of or user.op == "output"

    def _check_crossing(self, crossing: Sequence[Sequence[fx.Node]]) -> None:
        for node in (node for values in crossing for node in values):
            if self._facts.kinds[node.name] is ValueKind.OTHER:
                raise TrainingError(f"{node.name} is no tensor and cannot cross between stages; cut elsewhere")

    def _stages(self, stage_of: Mapping[str, int]) -> dict[fx.Node, int]:
        """The stage of every operation that is not shared; one without an entry joins the latest of its inputs."""
        for unit in self._facts.units:
            if len({stage_of[name] for name in unit if name in stage_of}) > 1:
                raise TrainingError(f"{', '.join(unit)} must be in one stage; cut elsewhere")
        stages: dict[fx.Node, int] = {}
        for node in self._nodes:
            if node.op not in COMPUTE_OPS or node.name in self._facts.shared:
                continue
            earliest = max((stages[one] for one in self._needs(node) if one in stages), default=0)
            stages[node] = stage_of.get(node.name, earliest)
            if stages[node] < earliest:
                raise TrainingError(f"{node.name} is in stage {stages[node]} and needs what stage {earliest} makes")
        return stages

    def _needs(self, node: fx.Node) -> list[fx.Node]:
        """Operations that must run before this one."""
        return [*node.all_input_nodes, *(self._by_name[name] for name in self._facts.after.get(node.name, ()))]

    def _crossing(self, stage: int) -> list[fx.Node]:
        """Values computed up to a stage and read by a later one or returned by the model."""
        return [
            node
            for node, home in self._stage_of.items()
            if home <= stage and any(self._stage_of.get(user, self._count) > stage for user in node.users)
        ]

    def _stage(self, stage: int, received: Sequence[fx.Node], passed_on: Sequence[fx.Node] | None) -> CutStage:
        output = next(node for node in self._nodes if node.op == "output")
        returned = list(passed_on) if passed_on is not None else list(output.all_input_nodes)
        own = {node for node, home in self._stage_of.items() if home == stage}
        repeated = self._repeated([*own, *(node for node in returned if node not in self._stage_of)])
        arguments = [node for node in self._arguments if node in repeated]
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in received:
            copies[node] = self._from_tensor(graph, graph.placeholder(node.name), node)
        for node in arguments:
            copies[node] = graph.placeholder(node.name)
        for node in self._nodes:
            if node not in copies and (node in own or node in repeated):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        if passed_on is None:
            graph.output(fx.node.map_arg(output.args[0], copies.__getitem__))
        else:
            graph.output(tuple(self._to_tensor(graph, copies[node], node) for node in passed_on))
        graph.lint()
        inputs = StageInputs(
            tuple(self._arguments.index(node) for node in arguments),
            tuple(map(self._is_differentiable, received)),
            passed_on is None or any(map(self._is_differentiable, passed_on)),
        )
        module = fx.GraphModule(self._graph, graph, f"Stage{stage}")
        state = frozenset(name for name, _ in module.named_buffers() if name in self._facts.state)
        return CutStage(module, inputs, tuple(node.name for node in received), state)

    def _is_differentiable(self, node: fx.Node) -> bool:
        return self._facts.kinds[node.name] is ValueKind.TENSOR and node.name in self._facts.trained

    def _repeated(self, roots: Sequence[fx.Node]) -> set[fx.Node]:
        """Shared operations, arguments and attributes that these operations need, and the writes that precede them."""
        found: set[fx.Node] = set()
        pending = [one for root in roots for one in (root, *self._needs(root)) if one not in self._stage_of]
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += [one for one in self._needs(node) if one not in self._stage_of]
        return found

    def _to_tensor(self, graph: fx.Graph, node: fx.Node, original: fx.Node) -> fx.Node:
        if self._facts.kinds[original.name] is ValueKind.TENSOR:
            return node
        return graph.call_function(torch.tensor, (node,), {"dtype": torch.int64, "device": torch.device("cpu")})

    def _from_tensor(self, graph: fx.Graph, value: fx.Node, original: fx.Node) -> fx.Node:
        match self._facts.kinds[original.name]:
            case ValueKind.SHAPE:
                return graph.call_function(torch.Size, (graph.call_method("tolist", (value,)),))
            case ValueKind.INTEGER:
                return graph.call_method("item", (value,))
        return value


def _tied_parameters(stages: Sequence[nn.Module]) -> TiedWeights:
    """Trained parameters in several stages: name -> stage -> name in that stage. Frozen copies stay equal."""
    users: dict[int, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, value in stage.named_parameters():
            if value.requires_grad:
                users.setdefault(id(value), {})[number] = name
    return {next(iter(own.values())): own for own in users.values() if len(own) > 1}
