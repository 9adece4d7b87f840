"""The weights that a server keeps: gradients come in, the optimizer steps, weights go out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.setup import RankRun
from jellybean.training.stages.buffer_copies import merged
from jellybean.training.stages.stage import StageCopy
from jellybean.training.stages.updates import GroupSettings
from jellybean_solver.pipeline import Action, ActionKind

Tensors = Mapping[str, torch.Tensor]
_UPDATE = Action(ActionKind.UPDATE, 0, 0, 1)


class ServedWeights:
    """The weights of a server's run, `gradients` are added for each update. Calls must not overlap."""

    def __init__(self, run: RankRun, gradients: int) -> None:
        self._run, self._gradients = run, gradients
        self._pending: dict[int, dict[str, torch.Tensor]] = {}  # number of a work item -> its gradient

    def add(self, number: int, gradient: Tensors, settings: GroupSettings) -> bool:
        """Take the gradient of a work item; with the last one of an update, update the weights. Returns whether it did.

        A weight that no work item has a gradient of stays as it is.

        The gradients are added in the order of the work items, whichever came first, so that runs are repeatable.
        """
        if self._gradients == 1:
            self._update(dict(gradient), settings)
            return True
        self._pending[number] = {name: value.clone() for name, value in gradient.items()}
        if len(self._pending) < self._gradients:
            return False
        total: dict[str, torch.Tensor] = {}
        for one in sorted(self._pending):
            for name, value in self._pending[one].items():
                total[name] = total[name].add_(value) if name in total else value
        self._pending = {}
        self._update(total, settings)
        return True

    def _update(self, gradient: dict[str, torch.Tensor], settings: GroupSettings) -> None:
        stage, updates = stage_of(self._run), self._run.updates
        stage.begin_iteration({})
        updates.begin_iteration([settings])
        stage.gradient = gradient
        updates.update(_UPDATE, stage, 0)


def stage_of(run: RankRun) -> StageCopy:
    """The only stage of a run of one process."""
    return run.held[0, 0]


def sizes_of(stage: StageCopy) -> dict[str, int]:
    """Bytes of each trained weight."""
    return {name: value.nbytes for name, value in stage.versions.trained.items()}


def trained_of(stage: StageCopy, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Those of the trained weights."""
    return {name: value for name, value in stage.versions.trained.items() if name in names}


def frozen_of(stage: StageCopy) -> dict[str, torch.Tensor]:
    """The weights that are not trained."""
    return {name: value for name, value in stage.versions.exact.items() if name not in stage.versions.trained}


def replace_weights(stage: StageCopy, values: FlatTensors) -> None:
    """Replace weights by received ones; short copies are rounded again."""
    exact = stage.versions.exact
    for name, value in values.views.items():
        exact[name].copy_(value)
    with stage.versions.exact_parameters():
        pass  # its end rounds


def averaged(buffers: list[dict[str, torch.Tensor]], before: Tensors) -> dict[str, torch.Tensor]:
    """Means of the workers' running statistics; counters have counted what any of them has. `before`: the segment."""
    return {name: merged(before[name], [worker[name] for worker in buffers]) for name in buffers[0]}
