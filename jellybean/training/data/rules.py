"""What the model demands of rows: how they count in the loss, and which targets are possible."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jellybean.training.errors import TrainingError
from jellybean.training.losses import RowWeights
from jellybean.training.samples import IGNORED, Samples


@dataclass(frozen=True)
class RowRules:
    """Found on one micro-batch by rank 0, for all rows on all ranks.

    `model`: its name, for messages. `weigh`: how much a row counts in a mean loss; None: all the same. `classes`:
    number of classes that the model scores, for cross_entropy. `sizes`: of what it gives of a sample, for mse.
    """

    model: str
    weigh: RowWeights | None = None
    classes: int | None = None
    sizes: tuple[int, ...] | None = None

    def weights(self, samples: Samples) -> torch.Tensor | None:
        """How much each row counts; None: all the same."""
        return None if self.weigh is None else self.weigh(samples)

    def check(self, samples: Samples, part: str) -> None:
        """TrainingError if the loss would fail on a target. `part`: train or test."""
        targets = samples.targets.tensors[0] if samples.targets is not None else None
        if self.sizes is not None and targets is not None and self.sizes != tuple(targets.shape[1:]):
            raise TrainingError(
                f"{self.model} gives {list(self.sizes)} of a sample and the targets in {part} have "
                f"{list(targets.shape[1:])}: mse needs the same"
            )
        if self.classes is None or samples.classes is None:
            return
        counted = samples.classes[samples.classes != IGNORED]
        least, most = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
        if least < 0 or most >= self.classes:
            raise TrainingError(
                f"the targets in {part} are {least} to {most}, and {self.model} gives scores of {self.classes} "
                f"classes, 0 to {self.classes - 1}"
            )
