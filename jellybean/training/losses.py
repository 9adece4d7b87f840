"""Losses: built in, a user's, or computed by the model; their targets, and how much a row counts in them.

A mean loss over valid tokens weighs a micro-batch by its number of them, so that the sum over micro-batches is the loss
of the whole batch on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
ROWS, TARGETS, SUM = "rows", "targets", "sum"  # what a loss counts: it is a mean over these, or a sum
FUNCTION = "function"  # what a function of the user counts
BATCH = "batch"  # none of them: the rows of a batch are compared with each other
# Relative difference of losses, or of their gradients, that are the same; gradients in 16 bits are rounded to 8 binary
# digits.
_SAME, _SAME_16_BIT = 1e-4, 2e-2


def load_loss(document: TrainingDocument, directory: Path) -> LossFunction:
    """The loss function (outputs, target) -> mean over samples or valid tokens."""
    known: dict[str, LossFunction] = {"cross_entropy": cross_entropy, "mse": functional.mse_loss, MODEL: model_loss}
    if document.loss.function in known:
        return known[document.loss.function]
    place, _, name = document.loss.function.rpartition(":")
    return load_function(place, name, directory)


def load_count(document: TrainingDocument, directory: Path) -> Callable[[Any], Any] | None:
    """The document's function of what counts in a row; None if it names none."""
    place, _, name = (document.loss.counts or "").rpartition(":")
    return load_function(place, name, directory) if place else None


def cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Mean over targets that are not IGNORED; 0 if all are. Of 16-bit scores in float32, as in transformers."""
    scores = _at_least_float32(class_scores(outputs))
    if targets.is_floating_point():
        return functional.cross_entropy(scores, _at_least_float32(targets))
    place = class_dimension(scores, targets)
    total = functional.cross_entropy(scores.movedim(place, 1), targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def model_loss(outputs: Any, target: Any) -> torch.Tensor:
    """The loss that the model computed: `loss` of its outputs, or the outputs themselves if they are one number."""
    loss = outputs if isinstance(outputs, torch.Tensor) else _part(outputs, "loss")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TrainingError(
            f"`loss: model` needs a model that returns its loss; it returned {type(outputs).__name__} without one: "
            "give it labels, or name a loss"
        )
    return loss.reshape(())


def class_scores(outputs: Any) -> torch.Tensor:
    """The scores among a model's outputs: the outputs, their `logits`, or the first of several."""
    scores = outputs if isinstance(outputs, torch.Tensor) else _part(outputs, "logits")
    if scores is None and isinstance(outputs, tuple | list) and outputs:
        scores = outputs[0]
    if not isinstance(scores, torch.Tensor):
        raise TrainingError(
            f"the model returned {type(outputs).__name__}, which has no scores: name a loss of your own"
        )
    return scores


def class_dimension(scores: torch.Tensor, targets: torch.Tensor) -> int:
    """The dimension of `scores` that has one score per class: torch's (1), or the last, as in language models.

    TrainingError if neither fits the targets.
    """
    for place in dict.fromkeys((1, int(scores.dim()) - 1)):
        if scores.dim() > 1 and scores.shape[:place] + scores.shape[place + 1 :] == targets.shape:
            return place
    column = scores.dim() == targets.dim() == 2 and targets.shape[1] == 1
    raise TrainingError(
        f"scores of shape {list(scores.shape)} and targets of shape {list(targets.shape)} do not fit: cross_entropy "
        f"takes a score per class and target{'; return targets.reshape(-1)' if column else ''}"
    )


@dataclass(frozen=True)
class LabelTargets:
    """The argument `labels` of a model that computes its loss, as targets of the scores that it returns.

    `shifted`: the scores at a token are of the next one, as those of a causal language model.
    """

    shifted: bool

    def of(self, inputs: CallArguments) -> CallArguments:
        """The targets: the same shape as the labels. The last score of a shifted row has none, so it gets IGNORED."""
        labels = _labels(inputs)
        if labels is None:
            raise AssertionError(f"{', '.join(inputs.names)} have no labels")
        if self.shifted:
            labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], dim=1)
        return CallArguments.of([labels.long()])


def find_label_targets(loss: LossFunction, example: CallArguments, outputs: Any) -> LabelTargets | None:
    """How the labels among the arguments are the targets of a model's own loss; None if they are not.

    `outputs`: of the example. The model's loss is compared with the mean over the labels, and over the labels shifted
    by one as language models do; so are its gradients by the scores, as a model that has not been trained gives every
    class the same score, whose loss is the same for all labels.
    """
    labels = _labels(example)
    if loss is not model_loss or labels is None or labels.is_floating_point() or isinstance(outputs, torch.Tensor):
        return None
    scores = class_scores(outputs)
    if scores.dim() != labels.dim() + 1 or scores.shape[:-1] != labels.shape:
        return None
    computed = model_loss(outputs, None)
    gradient = _gradient(computed, scores)
    for targets in (LabelTargets(shifted=False), *([LabelTargets(shifted=True)] if labels.dim() > 1 else [])):
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad():
            loss = cross_entropy(leaf, targets.of(example).tensors[0])
        if _is_same(loss, computed) and (gradient is None or _is_same(_gradient(loss, leaf), gradient)):
            return targets
    return None


def _gradient(loss: torch.Tensor, scores: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a loss by scores; None if it is not computed from them."""
    if not (loss.requires_grad and scores.requires_grad):
        return None
    return torch.autograd.grad(loss, scores, retain_graph=True, allow_unused=True)[0]


def valid_targets(samples: Samples) -> torch.Tensor:
    """Number of targets of each row that count in a mean over them; 1 where targets are no classes.

    Targets are those of the loss, or `labels` among the arguments of a model that computes its loss.
    """
    classes = samples.classes if samples.targets is not None else class_labels(samples.inputs)
    if classes is None:
        return torch.ones(len(samples))
    return (classes.reshape(len(classes), -1) != IGNORED).sum(1).double()


def class_labels(inputs: CallArguments) -> torch.Tensor | None:
    """The argument `labels`, if it is of classes."""
    labels = _labels(inputs)
    return None if labels is None or labels.is_floating_point() else labels


def _labels(inputs: CallArguments) -> torch.Tensor | None:
    return dict(zip(inputs.names, inputs.tensors, strict=True)).get("labels")


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _part(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _is_same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    if one is None:
        return False
    same = _SAME_16_BIT if other.dtype in (torch.bfloat16, torch.float16) and other.dim() else _SAME
    one, other = one.detach().double(), other.detach().double()
    return bool((one - other).abs().max() <= same * max(1e-6, float(other.abs().max())))
