"""Exponential moving averages of the weights (EMA), which are evaluated and exported in place of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from jellybean.training.stages.stage import StageCopy

HeldStages = Mapping[tuple[int, int], StageCopy]


class AveragedWeights:
    """Averages of a rank's trained weights. They begin with the weights, and after each update move by 1 - `decay`.

    Copies of a stage, and stages that share a weight, have equal weights after each update, so their averages are, too.
    """

    def __init__(self, held: HeldStages, decay: float) -> None:
        self._held, self._decay = held, decay
        self._averages = {
            copy: {name: value.clone() for name, value in _trained(stage).items()} for copy, stage in held.items()
        }

    def update(self, copy: tuple[int, int]) -> None:
        """A copy of a stage (stage, pipe) was updated."""
        for name, value in _trained(self._held[copy]).items():
            self._averages[copy][name].lerp_(value, 1.0 - self._decay)

    def of(self, copy: tuple[int, int]) -> dict[str, torch.Tensor]:
        """The averages of a copy's trained weights by name."""
        return self._averages[copy]


def _trained(stage: StageCopy) -> dict[str, torch.Tensor]:
    exact, parameters = stage.versions.exact, stage.versions.parameters
    return {name: value for name, value in exact.items() if parameters[name].requires_grad}
