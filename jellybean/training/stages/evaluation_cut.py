"""Cuts the evaluation graph of a module where its training graph is cut, so that every weight is where it is trained.

A module may do other operations in evaluation than in training: no dropout, other statistics, other outputs. Its stages
are found from the weights: an operation runs in a stage that holds its weights, others as near as possible to their
stage in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from jellybean.pipeline.torch_graph import GraphFacts, parameters_of
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.errors import TrainingError, first_names
from jellybean.training.stages.cut import CutModule, cut_module


@dataclass(frozen=True)
class EvaluationCut:
    """The stages in evaluation mode. `names[stage]`: their parameters and buffers -> names in the training stage."""

    stages: CutModule
    names: tuple[Mapping[str, str], ...]


def cut_for_evaluation(
    traced: TracedModule, facts: GraphFacts, training: CutModule, trained_in: Mapping[str, int]
) -> EvaluationCut:
    """Cut the evaluation graph. `training`: the cut of the same module's training graph.

    `trained_in`: stage by name of the training graph's operations. TrainingError if an operation needs weights of
    several stages.
    """
    cut = cut_module(traced, facts, _Placement(traced, facts, training, trained_in).stages(), len(training.stages))
    pairs = zip(training.stages, cut.stages, strict=True)
    return EvaluationCut(cut, tuple(_names(one.module, other.module) for one, other in pairs))


def _names(training: fx.GraphModule, evaluation: fx.GraphModule) -> dict[str, str]:
    trained_names = {id(value): name for name, value in (*training.named_parameters(), *training.named_buffers())}
    values = (*evaluation.named_parameters(), *evaluation.named_buffers())
    return {name: trained_names[id(value)] for name, value in values if id(value) in trained_names}


class _Placement:
    """Chooses the stages of the units of an evaluation graph."""

    def __init__(
        self, traced: TracedModule, facts: GraphFacts, training: CutModule, trained_in: Mapping[str, int]
    ) -> None:
        self._graph, self._facts, self._trained_in = traced.graph, facts, trained_in
        self._nodes = {node.name: node for node in traced.graph.graph.nodes}
        self._unit_of = {name: number for number, unit in enumerate(facts.units) for name in unit}
        self._count = len(training.stages)
        self._homes: dict[int, set[int]] = {}  # parameter or state -> stages of the training cut that hold it
        for number, stage in enumerate(training.stages):
            state = [value for name, value in stage.module.named_buffers() if name in stage.state]
            for value in (*stage.module.parameters(), *state):
                self._homes.setdefault(id(value), set()).add(number)

    def stages(self) -> dict[str, int]:
        """Stage by operation."""
        allowed = [self._allowed(unit) for unit in self._facts.units]
        latest = [max(stages) for stages in allowed]
        for number in reversed(range(len(allowed))):
            for before in self._before(number):
                latest[before] = min(latest[before], latest[number])
        chosen: list[int] = []
        for number, unit in enumerate(self._facts.units):
            earliest = max((chosen[before] for before in self._before(number)), default=0)
            possible = [stage for stage in sorted(allowed[number]) if earliest <= stage <= latest[number]]
            if not possible:
                raise TrainingError(
                    f"in evaluation mode {unit[0]} reads weights of stage {min(allowed[number])} "
                    f"({self._weights_of(unit)}), and values that stage {earliest} computes: the "
                    "model cannot be evaluated with these stages; use fewer devices"
                )
            wanted = self._trained_in.get(unit[0], earliest)
            chosen.append(min(possible, key=lambda stage: abs(stage - wanted)))
        return {name: chosen[number] for number, unit in enumerate(self._facts.units) for name in unit}

    def _allowed(self, unit: Sequence[str]) -> set[int]:
        """Stages that hold all weights of a unit. Weights that only evaluation reads may be anywhere."""
        homes = [self._homes[key] for name in unit for key in self._read(self._nodes[name]) if key in self._homes]
        allowed = set(range(self._count)).intersection(*homes)
        if not allowed:
            raise TrainingError(
                f"in evaluation mode {unit[0]} reads weights of several stages ({self._weights_of(unit)}): the model "
                "cannot be evaluated with these stages; use fewer devices"
            )
        return allowed

    def _weights_of(self, unit: Sequence[str]) -> str:
        """The weights and buffers that a unit reads, for messages."""
        read = {key for name in unit for key in self._read(self._nodes[name]) if key in self._homes}
        values = (*self._graph.named_parameters(), *self._graph.named_buffers())
        return first_names([name for name, value in values if id(value) in read])

    def _read(self, node: fx.Node) -> list[int]:
        values = list(parameters_of(self._graph, node))
        if node.op == "call_module":
            values += self._graph.get_submodule(str(node.target)).buffers()
        else:
            buffers = dict(self._graph.named_buffers())
            values += [
                buffers[str(one.target)]
                for one in node.all_input_nodes
                if one.op == "get_attr" and str(one.target) in buffers
            ]
        return [id(value) for value in values]

    def _before(self, number: int) -> set[int]:
        """Units whose values a unit needs."""
        names = {
            one
            for name in self._facts.units[number]
            for one in (*(node.name for node in self._nodes[name].all_input_nodes), *self._facts.after.get(name, ()))
        }
        return {self._unit_of[name] for name in names if name in self._unit_of} - {number}
