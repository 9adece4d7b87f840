"""What the model demands of rows: what their targets are, which are possible, and how they count in the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.errors import TrainingError
from jellybean.training.losses import FUNCTION, ROWS, TARGETS, LabelTargets, valid_targets
from jellybean.training.samples import IGNORED, Samples

CountFunction = Callable[[Any], Any]  # targets of some rows -> how much each row counts


@dataclass(frozen=True)
class RowRules:
    """Found on one micro-batch by rank 0, for all rows on all ranks.

    `model`: its name, for messages. `labels`: how its labels are the targets, if it computes its loss. `counts`: what
    of a row counts in the loss; `count`: the function of the user that says it, which each rank loads. `uniform`: the
    number of valid targets of every row that was tried, if it is not known whether rows with others count the same.
    `classes`: number of classes that the model scores, for cross_entropy. `sizes`: of what it gives of a sample, for
    mse.
    """

    model: str
    labels: LabelTargets | None = None
    counts: str = ROWS
    count: CountFunction | None = None
    uniform: float | None = None
    classes: int | None = None
    sizes: tuple[int, ...] | None = None

    @property
    def weighs(self) -> bool:
        """Whether rows count differently."""
        return self.counts in (TARGETS, FUNCTION)

    def apply(self, samples: Samples) -> Samples:
        """The samples with their targets and weights."""
        if self.labels is not None:
            samples = replace(samples, targets=self.labels.of(samples.inputs))
        if self.count is not None:
            return replace(samples, weights=row_counts(self.count, samples))
        return replace(samples, weights=valid_targets(samples)) if self.counts == TARGETS else samples

    def check(self, samples: Samples, part: str) -> None:
        """TrainingError if the loss would fail on a target. `part`: train or test."""
        self._check_uniform(samples, part)
        targets = samples.targets.tensors[0] if samples.targets is not None else None
        if self.sizes is not None and targets is not None and self.sizes != tuple(targets.shape[1:]):
            same_count = math.prod(self.sizes) == math.prod(targets.shape[1:])
            hint = f"; return targets.reshape({', '.join(map(str, (-1, *self.sizes)))})" if same_count else ""
            raise TrainingError(
                f"{self.model} gives {list(self.sizes)} of a sample and the targets in {part} have "
                f"{list(targets.shape[1:])}: mse needs the same{hint}"
            )
        if self.sizes is not None and targets is not None and not bool(torch.isfinite(targets).all()):
            row = int(torch.nonzero(~torch.isfinite(targets.reshape(len(targets), -1)).all(1))[0])
            raise TrainingError(f"row {row} of the targets in {part} has nan or infinity, which mse cannot count")
        if self.classes is None or samples.classes is None:
            return
        counted = samples.classes[samples.classes != IGNORED]
        least, most = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
        if least < 0 or most >= self.classes:
            raise TrainingError(
                f"the targets in {part} are {least} to {most}, and {self.model} gives scores of {self.classes} "
                f"classes, 0 to {self.classes - 1}"
            )

    def _check_uniform(self, samples: Samples, part: str) -> None:
        """TrainingError if a row has another number of valid targets than those by which the loss was judged."""
        if self.uniform is None:
            return
        counts = valid_targets(samples)
        other = counts[counts != self.uniform]
        if len(other):
            raise TrainingError(
                f"a row in {part} has {float(other[0]):g} valid targets, and all that were tried have "
                f"{self.uniform:g}: write what the loss is a mean over, `loss: {{function: ..., counts: targets}}` or "
                "`counts: rows`"
            )


def row_counts(count: CountFunction, samples: Samples) -> torch.Tensor:
    """What counts in each row, by a function of the user. TrainingError unless it is a number of 0 or more per row."""
    if samples.targets is not None:
        given = samples.target(slice(None))
    else:
        args, kwargs = samples.inputs.form.nest(samples.inputs.tensors)
        given = kwargs or args[0]
    try:
        counts = torch.as_tensor(count(given)).detach().double()
    except Exception as error:  # user code may raise anything
        raise TrainingError(f"loss.counts: it failed{place_and_reason(error)}") from error
    if counts.shape != (len(samples),) or not bool((torch.isfinite(counts) & (counts >= 0)).all()):
        raise TrainingError(
            f"loss.counts: for {len(samples)} rows it gave {_described(counts)}; it must give one number of 0 or more "
            "for each row"
        )
    return counts


def _described(counts: torch.Tensor) -> str:
    return f"numbers of shape {list(counts.shape)}" if counts.dim() != 1 else f"{counts.tolist()[:4]}"
