"""Exponential moving averages of the weights (EMA), which are evaluated and exported in place of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from jellybean.training.stages.stage import StageCopy

HeldStages = Mapping[tuple[int, int], StageCopy]


class AveragedWeights:
    """Averages of a rank's trained weights. They begin with the weights, and after each update move by 1 - `decay`.

    They are at least in float32: 1 - `decay` of a short weight's change is mostly too small to change a short average.
    Copies of a stage, and stages that share a weight, have equal weights after each update, so their averages are, too.
    """

    def __init__(self, held: HeldStages, decay: float) -> None:
        self._held, self._decay = held, decay
        self._averages = {
            copy: {name: _at_least_float32(value).clone() for name, value in stage.versions.trained.items()}
            for copy, stage in held.items()
        }

    def update(self, copy: tuple[int, int]) -> None:
        """A copy of a stage (stage, pipe) was updated."""
        for name, value in self._held[copy].versions.trained.items():
            self._averages[copy][name].lerp_(_at_least_float32(value), 1.0 - self._decay)

    def of(self, copy: tuple[int, int]) -> dict[str, torch.Tensor]:
        """The averages of a copy's trained weights by name, at least in float32."""
        return self._averages[copy]


def _at_least_float32(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))
