"""Compares the stages of a model with the model in this process, as the first rank of a run does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training import find_graphs
from jellybean.training.called_modules import CutGraphs, calling_modules
from jellybean.training.compared_runs import ComparedRows, ComparedStages, rows_of_sizes
from jellybean.training.model_comparison import Comparison, compare_update
from jellybean.training.samples import Samples
from jellybean.training.stages.stage import StageSettings
from jellybean_solver.pipeline import make_schedule

TRACED_ROWS = 3


def compare(
    module: nn.Module,
    inputs: Sequence[torch.Tensor] | dict[str, torch.Tensor],
    targets: torch.Tensor,
    *,
    stages: int = 2,
    sizes: Sequence[int] = (8, 8, 7),
    schedule: str = "1f1b",
    loss: Callable[[Any, Any], torch.Tensor] = nn.functional.mse_loss,
    settings: StageSettings = StageSettings(keeps_versions=False),
    copies: int = 1,
    stage_named: Callable[[str], int] | None = None,
    weights: torch.Tensor | None = None,
) -> Comparison:
    """The comparison of a model that is cut into stages of about as many operations each, or by their names.

    `weights`: how much each row counts. JellyBeanError if it cannot be traced, cut or run.
    """
    arguments = CallArguments.of((), inputs) if isinstance(inputs, dict) else CallArguments.of(inputs)
    rows = Samples(arguments, CallArguments.of([targets]), weights)
    graphs = find_graphs(module, rows.take(slice(0, TRACED_ROWS)).inputs)
    units = graphs.recipes[0].facts.units
    spread = {name: min(n * stages // len(units), stages - 1) for n, unit in enumerate(units) for name in unit}
    stage_of = {name: stage_named(name) for name in spread} if stage_named is not None else spread
    cut = CutGraphs(graphs, stage_of)
    cut = calling_modules(module, cut, direct=False) or cut
    training, evaluation = cut.cut(direct=False)
    results = graphs.training.result.nest, graphs.evaluation.result.nest
    order = make_schedule(schedule, stages, max(stages, 2))
    graph = cut.graphs.training.graph
    compared = ComparedStages(training, evaluation, results, loss, settings, order, graph, copies)

    def example(size: int) -> Samples:
        return rows.take(slice(0, size))

    return compare_update(
        module, compared, ComparedRows(rows_of_sizes(example, sizes), rows_of_sizes(example, sizes[-2:]))
    )
