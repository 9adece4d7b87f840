"""The stages of a cut model for one rank of a tensor group: its parts of their weights, and their rewritten graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch.distributed as dist
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_devices import copy_modules
from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.training.graphs import ModelGraphs
from jellybean.training.processes.ranks import Rank
from jellybean.training.stages.cut import CutModule
from jellybean.training.stages.evaluation_cut import EvaluationCut
from jellybean.training.tensor_parallel.choice import LayerSplit, SplitChoice, choose_splits
from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.lowering import lower
from jellybean.training.tensor_parallel.operations import has_convolutions
from jellybean.training.tensor_parallel.rules import Layout
from jellybean.training.tensor_parallel.weights import SplitWeights, check_optimizer

_NO_CONVOLUTIONS = "`conv: data` is meant for convolutions, and the model has none"


@dataclass(frozen=True)
class SplitLayers:
    """How a rank's layers are split; what a run keeps of `SplitStages`, which hold the weights of all stages.

    `layers`: how each split layer is split. `note`: about the model and `tensor`; or empty.
    """

    weights: SplitWeights = field(default_factory=lambda: SplitWeights(TensorGroup()))
    layers: dict[str, LayerSplit] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class SplitStages:
    """All stages of the model, those of a rank with its parts of split layers."""

    training: CutModule
    evaluation: EvaluationCut
    split: SplitLayers = field(default_factory=SplitLayers)


@dataclass(frozen=True)
class StageCopies:
    """A cut with copies of the stages `held`, for a trial. `parameters`: of the model, each with its copy."""

    cut: CutModule
    held: frozenset[int]
    parameters: tuple[tuple[nn.Parameter, nn.Parameter], ...]

    @classmethod
    def of(cls, cut: CutModule, held: Iterable[int]) -> StageCopies:
        """Copy the modules of some stages, so that training them leaves the model as it is."""
        numbers = frozenset(held)
        modules = copy_modules({number: cut.stages[number].module for number in numbers})
        pairs = [
            pair
            for number, module in modules.items()
            for pair in zip(cut.stages[number].module.parameters(), module.parameters(), strict=True)
        ]
        stages = enumerate(cut.stages)
        copied = tuple(replace(one, module=modules.get(number, one.module)) for number, one in stages)
        return cls(replace(cut, stages=copied), numbers, tuple(pairs))


def split_stages(
    stages: SplitStages,
    graphs: ModelGraphs,
    document: TrainingDocument,
    rank: Rank,
    group: dist.ProcessGroup | None,
    held: Iterable[int],
) -> SplitStages:
    """Split whole stages over the rank's tensor group. `held`: the stages of which the rank gets its parts.

    TrainingError if the layers cannot be split so. The whole weights of these stages are freed.
    """
    if rank.tensor == 1:
        return stages
    choice, weights = _choose(graphs, document, rank, group)
    note = _NO_CONVOLUTIONS if rank.by_rows and not has_convolutions(graphs.training.graph) else ""
    facts = [recipe.facts for recipe in graphs.recipes]
    training = _lowered(stages.training, facts[0], weights, by_rows=rank.by_rows)
    evaluation = _lowered(stages.evaluation.stages, facts[1], weights)
    for number in set(held):
        weights.replace(training.stages[number].module)
        weights.replace(evaluation.stages[number].module)
    weights.forget_whole()
    split = SplitLayers(weights, choice.layers, note)
    return SplitStages(training, replace(stages.evaluation, stages=evaluation), split)


def split_copies(
    copies: StageCopies, graphs: ModelGraphs, document: TrainingDocument, rank: Rank, group: dist.ProcessGroup | None
) -> tuple[CutModule, frozenset[str]]:
    """(the stages of a trial, split over the rank's tensor group; names of its split weights).

    Only the copies get parts, so the model's own weights stay whole. TrainingError as `split_stages`.
    """
    if rank.tensor == 1:
        return copies.cut, frozenset()
    _, weights = _choose(graphs, document, rank, group)
    for value, copied in copies.parameters:
        if id(value) in weights.splits:
            weights.splits[id(copied)] = weights.splits[id(value)]
    training = _lowered(copies.cut, graphs.recipes[0].facts, weights)
    for number in copies.held:
        weights.replace(training.stages[number].module)
    return training, frozenset(weights.names)


def _choose(
    graphs: ModelGraphs, document: TrainingDocument, rank: Rank, group: dist.ProcessGroup | None
) -> tuple[SplitChoice, SplitWeights]:
    """How the model's layers are split, and this rank's part of them."""
    check_optimizer(document.optimizer.name)
    traced, facts = graphs.training.graph, graphs.recipes[0].facts
    choice = choose_splits(traced, facts, rank.tensor, document.tensor.layers, by_rows=rank.by_rows)
    parameters = dict(traced.named_parameters())
    placed = [(parameters[name], split) for name, split in choice.weights.items()]
    return choice, SplitWeights(TensorGroup(rank.tensor, rank.tensor_index, group), placed)


def _lowered(cut: CutModule, facts: GraphFacts, weights: SplitWeights, *, by_rows: bool = False) -> CutModule:
    """The stages rewritten for this rank. `facts`: of the whole graph.

    Values that are split cross to the next stage so, between ranks of the same tensor index.
    """
    stages, layouts = [], dict[str, Layout]()
    for number, stage in enumerate(cut.stages):
        last = number == len(cut.stages) - 1
        lowered = lower(stage.module, weights.splits, facts, weights.group, layouts, by_rows=by_rows, last=last)
        stages.append(replace(stage, module=lowered.module))
        layouts |= lowered.layouts
    return replace(cut, stages=tuple(stages))
