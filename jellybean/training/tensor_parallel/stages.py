"""The stages of a cut model for one rank of a tensor group: its parts of their weights, and their rewritten graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.training.graphs import ModelGraphs
from jellybean.training.processes.ranks import Rank
from jellybean.training.stages.cut import CutModule
from jellybean.training.stages.evaluation_cut import EvaluationCut
from jellybean.training.tensor_parallel.choice import LayerSplit, choose_splits
from jellybean.training.tensor_parallel.group import TensorGroup
from jellybean.training.tensor_parallel.lowering import lower
from jellybean.training.tensor_parallel.operations import has_convolutions
from jellybean.training.tensor_parallel.rules import Layout
from jellybean.training.tensor_parallel.weights import SplitWeights, check_optimizer

_NO_CONVOLUTIONS = "`conv: data` is meant for convolutions, and the model has none"


@dataclass(frozen=True)
class SplitStages:
    """The stages of a rank. `layers`: how each split layer is split. `note`: about the model and `tensor`; or empty."""

    training: CutModule
    evaluation: EvaluationCut
    weights: SplitWeights = field(default_factory=lambda: SplitWeights(TensorGroup()))
    layers: dict[str, LayerSplit] = field(default_factory=dict)
    note: str = ""


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
    check_optimizer(document.optimizer.name)
    traced, facts = graphs.training.graph, [recipe.facts for recipe in graphs.recipes]
    choice = choose_splits(traced, facts[0], rank.tensor, document.tensor.layers, by_rows=rank.by_rows)
    note = _NO_CONVOLUTIONS if rank.by_rows and not has_convolutions(traced) else ""
    parameters = dict(traced.named_parameters())
    weights = SplitWeights(
        TensorGroup(rank.tensor, rank.tensor_index, group),
        [(parameters[name], split) for name, split in choice.weights.items()],
    )
    training = _lowered(stages.training, facts[0], weights, by_rows=rank.by_rows)
    evaluation = _lowered(stages.evaluation.stages, facts[1], weights)
    for number in set(held):
        weights.replace(training.stages[number].module)
        weights.replace(evaluation.stages[number].module)
    weights.forget_whole()
    return SplitStages(training, replace(stages.evaluation, stages=evaluation), weights, choice.layers, note)


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
