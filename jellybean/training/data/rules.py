"""What the model demands of rows: what their targets are, which are possible, and how they count in the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jellybean.training.errors import TrainingError
from jellybean.training.losses import LabelTargets, valid_targets
from jellybean.training.samples import IGNORED, Samples


@dataclass(frozen=True)
class RowRules:
    """Found on one micro-batch by rank 0, for all rows on all ranks.

    `model`: its name, for messages. `labels`: how its labels are the targets, if it computes its loss. `by_targets`:
    whether a row counts in a mean loss by its number of valid targets; otherwise all rows count the same. `classes`:
    number of classes that the model scores, for cross_entropy. `sizes`: of what it gives of a sample, for mse.
    """

    model: str
    labels: LabelTargets | None = None
    by_targets: bool = False
    classes: int | None = None
    sizes: tuple[int, ...] | None = None

    def apply(self, samples: Samples) -> Samples:
        """The samples with their targets and weights."""
        if self.labels is not None:
            samples = replace(samples, targets=self.labels.of(samples.inputs))
        return replace(samples, weights=valid_targets(samples)) if self.by_targets else samples

    def check(self, samples: Samples, part: str) -> None:
        """TrainingError if the loss would fail on a target. `part`: train or test."""
        targets = samples.targets.tensors[0] if samples.targets is not None else None
        if self.sizes is not None and targets is not None and self.sizes != tuple(targets.shape[1:]):
            same_count = math.prod(self.sizes) == math.prod(targets.shape[1:])
            hint = f"; return targets.reshape({', '.join(map(str, (-1, *self.sizes)))})" if same_count else ""
            raise TrainingError(
                f"{self.model} gives {list(self.sizes)} of a sample and the targets in {part} have "
                f"{list(targets.shape[1:])}: mse needs the same{hint}"
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
