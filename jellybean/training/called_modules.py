"""Has each stage call the user's own modules that lie within it; a graph remains only around them.

Where a model may be cut is known from its operations. Once it is cut, a module whose operations are all in one stage is
called as it is: its own code runs, with its hooks, modes, branches and whatever a trace of it would have dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_fx import PLACE
from jellybean.pipeline.torch_graph import COMPUTE_OPS, graph_facts
from jellybean.pipeline.torch_trace import TracedModule, submodule, trace_calling
from jellybean.training.graphs import GraphRecipe, ModelGraphs, evaluation_mode
from jellybean.training.stages.cut import CutModule, cut_module
from jellybean.training.stages.evaluation_cut import EvaluationCut, cut_for_evaluation


@dataclass(frozen=True)
class CutGraphs:
    """Graphs and how they are cut. `stage_of`: by operation of the training graph."""

    graphs: ModelGraphs
    stage_of: Mapping[str, int]

    def cut(self, *, direct: bool) -> tuple[CutModule, EvaluationCut]:
        """The stages in training and in evaluation. TrainingError if a graph cannot be cut so."""
        training, evaluation = (recipe.facts for recipe in self.graphs.recipes)
        stages = cut_module(self.graphs.training, training, self.stage_of, direct=direct)
        return stages, cut_for_evaluation(self.graphs.evaluation, evaluation, stages, self.stage_of)


def calling_modules(module: nn.Module, cut: CutGraphs, *, direct: bool) -> CutGraphs | None:
    """The same cut, with modules that are called as they are; None if there are none, or if they cannot be called."""
    graphs = cut.graphs
    if graphs.training.tracer != "torch.fx":
        return None
    stages = _stages_of_modules(module, graphs.training, cut.stage_of)
    names = graphs.training.called.names | frozenset(stages)
    try:
        training = trace_calling(module, graphs.example, names)
        facts = graph_facts(training, graphs.example.tensors)
        with evaluation_mode(module):
            evaluation = trace_calling(module, graphs.example, names)
            evaluation_facts = graph_facts(evaluation, graphs.example.tensors)
        recipes = (
            GraphRecipe(training.tracer, facts, training.called),
            GraphRecipe(evaluation.tracer, evaluation_facts, evaluation.called),
        )
        called = ModelGraphs(training, evaluation, recipes, graphs.example)
        found = CutGraphs(called, _stages_of_operations(graphs.training, training, cut.stage_of, stages))
        found.cut(direct=direct)
    except JellyBeanError:
        return None
    return found


def _stages_of_modules(module: nn.Module, traced: TracedModule, stage_of: Mapping[str, int]) -> dict[str, int]:
    """The outermost modules whose operations are all in one stage."""
    stages: defaultdict[str, set[int]] = defaultdict(set)
    callers: defaultdict[str, set[str]] = defaultdict(set)
    for node in traced.graph.graph.nodes:
        if node.op not in COMPUTE_OPS or PLACE not in node.meta or node.name not in stage_of:
            continue
        root, *stack = node.meta[PLACE][0] or ("",)
        for caller, name in zip((root, *stack), stack, strict=False):
            stages[name].add(stage_of[node.name])
            callers[name].add(caller)
    single = {
        name: next(iter(own))
        for name, own in stages.items()
        if len(own) == 1 and type(submodule(module, name)).__call__ is nn.Module.__call__
    }
    return {name: stage for name, stage in single.items() if callers[name] - single.keys()}


def _stages_of_operations(
    before: TracedModule, after: TracedModule, stage_of: Mapping[str, int], modules: Mapping[str, int]
) -> dict[str, int]:
    """The stages of another graph's operations: those of the same ones before, or of the module that is called."""
    places = {
        node.meta[PLACE]: stage_of[node.name]
        for node in before.graph.graph.nodes
        if PLACE in node.meta and node.name in stage_of
    }
    found = {}
    for node in after.graph.graph.nodes:
        place = node.meta.get(PLACE)
        if node.op not in COMPUTE_OPS or place is None:
            continue
        called = next((name for name in place[0] if name in modules), None)
        stage = modules[called] if called is not None else places.get(place)
        if stage is not None:
            found[node.name] = stage
    return found
