"""Losses: built in, a user's, or computed by the model; and how much a row counts in them.

A mean loss over valid tokens weighs a micro-batch by its number of them, so that the sum over micro-batches is the loss
of the whole batch on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.pipeline.user_functions import load_function
from jellybean.training.errors import TrainingError
from jellybean.training.samples import IGNORED, Samples
from jellybean.training.stages.stage import LossFunction

MODEL = "model"
_SAME = 1e-4  # relative difference of two losses that are the same


def load_loss(document: TrainingDocument, directory: Path) -> LossFunction:
    """The loss function (outputs, target) -> mean over samples or valid tokens."""
    known: dict[str, LossFunction] = {"cross_entropy": cross_entropy, "mse": functional.mse_loss, MODEL: model_loss}
    if document.loss in known:
        return known[document.loss]
    place, _, name = document.loss.rpartition(":")
    return load_function(place, name, directory)


def cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Mean over targets that are not IGNORED; 0 if all are."""
    scores = class_scores(outputs)
    if targets.is_floating_point():
        return functional.cross_entropy(scores, targets)
    place = class_dimension(scores, targets)
    total = functional.cross_entropy(scores.movedim(place, 1), targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def model_loss(outputs: Any, target: Any) -> torch.Tensor:
    """The loss that the model computed: `loss` of its outputs, or the outputs themselves if they are one number."""
    found = outputs if isinstance(outputs, torch.Tensor) else _part(outputs, "loss")
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise TrainingError(
            f"`loss: model` needs a model that returns its loss; it returned {type(outputs).__name__} without one: "
            "give it labels, or name a loss"
        )
    return found.reshape(())


def class_scores(outputs: Any) -> torch.Tensor:
    """The scores among a model's outputs: the outputs, their `logits`, or the first of several."""
    found = outputs if isinstance(outputs, torch.Tensor) else _part(outputs, "logits")
    if found is None and isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    if not isinstance(found, torch.Tensor):
        raise TrainingError(
            f"the model returned {type(outputs).__name__}, which has no scores: name a loss of your own"
        )
    return found


def class_dimension(scores: torch.Tensor, targets: torch.Tensor) -> int:
    """The dimension of `scores` that has one score per class: torch's (1), or the last, as in language models.

    TrainingError if neither fits the targets.
    """
    for place in dict.fromkeys((1, int(scores.dim()) - 1)):
        if scores.dim() > 1 and scores.shape[:place] + scores.shape[place + 1 :] == targets.shape:
            return place
    raise TrainingError(
        f"scores of shape {list(scores.shape)} and targets of shape {list(targets.shape)} do not fit: cross_entropy "
        "takes a score per class and target"
    )


def row_weights(loss: LossFunction, example: CallArguments, outputs: Any, target: Any) -> RowWeights | None:
    """How much a row of these shapes counts in the loss; None: all rows the same.

    `outputs`, `target`: of the example. For `loss: model` it is found by comparing the model's loss with the mean over
    the labels, and over the labels shifted by one as language models do.
    """
    if loss is cross_entropy and isinstance(target, torch.Tensor) and not target.is_floating_point():
        return _valid_targets
    labels = dict(zip(example.names, example.tensors, strict=True)).get("labels")
    if loss is not model_loss or labels is None or labels.is_floating_point() or isinstance(outputs, torch.Tensor):
        return None
    scores = class_scores(outputs)
    if scores.dim() != labels.dim() + 1 or scores.shape[:-1] != labels.shape:
        return None
    own = float(model_loss(outputs, None).detach())
    if _is_same(own, cross_entropy(scores, labels)):
        return _valid_labels
    if labels.dim() > 1 and _is_same(own, cross_entropy(scores[:, :-1], labels[:, 1:])):
        return _valid_shifted_labels
    return None


RowWeights = Callable[[Samples], torch.Tensor]


def _valid_targets(samples: Samples) -> torch.Tensor:
    classes = samples.classes
    return torch.ones(len(samples)) if classes is None else _valid(classes)


def _valid_labels(samples: Samples) -> torch.Tensor:
    return _valid(_labels(samples))


def _valid_shifted_labels(samples: Samples) -> torch.Tensor:
    return _valid(_labels(samples)[:, 1:])


def _labels(samples: Samples) -> torch.Tensor:
    return samples.inputs.tensors[samples.inputs.names.index("labels")]


def _valid(targets: torch.Tensor) -> torch.Tensor:
    """Number of targets of each row that count."""
    return (targets.reshape(len(targets), -1) != IGNORED).sum(1).double()


def _part(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _is_same(own: float, other: torch.Tensor) -> bool:
    return abs(own - float(other.detach())) <= _SAME * max(1e-6, abs(own))
