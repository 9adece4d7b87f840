"""The graphs of a model in training and in evaluation mode: found and checked by rank 0, repeated by the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_fx import CalledModules
from jellybean.pipeline.torch_graph import GraphFacts, graph_facts, graph_shapes
from jellybean.pipeline.torch_stages import StageChain, stage_graph
from jellybean.pipeline.torch_state import state_kept
from jellybean.pipeline.torch_trace import TRACERS, CallArguments, TracedModule, trace, trace_calling
from jellybean.training.errors import TrainingError


@dataclass(frozen=True)
class GraphRecipe:
    """What another rank needs to make the same graph: the tracer, the facts about its operations, what it calls."""

    tracer: str
    facts: GraphFacts
    called: CalledModules = field(default_factory=CalledModules)


_NOT_TRACED = (
    "\n`devices: 1`, without `tensor`, trains the model itself, which is not traced; one that cannot be changed can "
    "be given as `stages`"
)
WHOLE = "whole"  # the tracer of a graph whose only operation is the model
_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


@dataclass(frozen=True)
class ModelGraphs:
    """The graphs of one module, over the same parameters and buffers. `example`: with which they were made."""

    training: TracedModule
    evaluation: TracedModule
    recipes: tuple[GraphRecipe, GraphRecipe]  # training, evaluation
    example: CallArguments


def find_graphs(
    module: nn.Module, arguments: CallArguments, *, split: bool = False, whole: bool = False
) -> ModelGraphs:
    """Trace the module in both modes and check the graphs. TrainingError if it cannot be traced.

    Submodules that evaluation calls as they are, are called so in training too: a cut within one would divide weights
    that evaluation needs in one stage.

    `split`: the layers are split over processes: trace into torch's layers of attention, which torch.fx takes for
    single operations, and record shapes with fewer rows. `whole`: the run has a single stage, which is the module
    itself: its graph is one operation, and is not traced.
    """
    if whole and not isinstance(module, StageChain):
        return _whole_graphs(module, arguments)
    tracers = TRACERS[::-1] if split and any(isinstance(own, _ATTENTION) for own in module.modules()) else TRACERS
    called = CalledModules() if split else None
    training = _traced(module, arguments, "", tracers, called)
    facts = _facts(training, arguments, fewer=split)
    with evaluation_mode(module):
        if training.tracer != tracers[0]:  # alike graphs are cut alike
            tracers = tracers[::-1]
        evaluation = _traced(module, arguments, "in evaluation mode, ", tracers, called)
        evaluation_facts = _facts(evaluation, arguments, fewer=split)
    if not split and training.tracer == evaluation.tracer == TRACERS[0]:
        missing = evaluation.called.names - training.called.names
        with suppress(JellyBeanError):  # then cuts within these modules are refused, if there are any
            training = trace_calling(module, arguments, training.called.names | missing) if missing else training
            facts = _facts(training, arguments, fewer=False) if missing else facts
    recipes = (
        GraphRecipe(training.tracer, facts, training.called),
        GraphRecipe(evaluation.tracer, evaluation_facts, evaluation.called),
    )
    return ModelGraphs(training, evaluation, recipes, arguments)


def _whole_graphs(module: nn.Module, arguments: CallArguments) -> ModelGraphs:
    chain = StageChain([module])
    training = replace(stage_graph(chain, arguments), tracer=WHOLE)
    facts = graph_facts(training, arguments.tensors)
    facts = replace(facts, state=frozenset(name.removeprefix("0.") for name in facts.state))
    with evaluation_mode(module):
        evaluation = replace(stage_graph(chain, arguments), tracer=WHOLE)
    return ModelGraphs(training, evaluation, (GraphRecipe(WHOLE, facts), GraphRecipe(WHOLE, facts)), arguments)


def repeat_graphs(module: nn.Module, arguments: CallArguments, recipes: tuple[GraphRecipe, GraphRecipe]) -> ModelGraphs:
    """The graphs that rank 0 found, of this rank's module.

    The module runs once before, as it did on rank 0: what its first call sets in objects of libraries (a configuration)
    is not restored after a trial, and decides what later calls do.
    """
    if recipes[0].tracer in TRACERS:
        with state_kept(module), torch.no_grad(), suppress(Exception):  # without its weights, what it computes may fail
            arguments.call(module)
    training = _repeated(module, arguments, recipes[0])
    with evaluation_mode(module):
        evaluation = _repeated(module, arguments, recipes[1])
    return ModelGraphs(training, evaluation, recipes, arguments)


def _traced(
    module: nn.Module, arguments: CallArguments, where: str, tracers: Sequence[str], called: CalledModules | None
) -> TracedModule:
    try:
        if isinstance(module, StageChain):
            return stage_graph(module, arguments)
        return trace(module, arguments, tracers=tracers, called=called)
    except JellyBeanError as error:
        hint = "" if isinstance(module, StageChain) else _NOT_TRACED
        raise TrainingError(f"{where}{error}{hint}") from error


def _facts(traced: TracedModule, arguments: CallArguments, *, fewer: bool) -> GraphFacts:
    """The facts of a graph. `fewer`: with shapes for fewer rows, if the model can be run on one row less or on half."""
    facts = graph_facts(traced, arguments.tensors)
    rows = max((len(value) for value in arguments.tensors if value.dim()), default=0)
    for count in (rows - 1, rows // 2) if fewer else ():
        if count > 0:
            with suppress(JellyBeanError):
                return replace(facts, fewer_shapes=graph_shapes(traced, arguments.rows(count)))
    return facts


def _repeated(module: nn.Module, arguments: CallArguments, recipe: GraphRecipe) -> TracedModule:
    if isinstance(module, StageChain):
        return stage_graph(module, arguments)
    if recipe.tracer == WHOLE:
        return replace(stage_graph(StageChain([module]), arguments), tracer=WHOLE)
    return trace(module, arguments, tracer=recipe.tracer, called=recipe.called)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Context in which a module is traced as it evaluates."""
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train()
