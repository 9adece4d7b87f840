"""What a run trains: the model, its data and its loss, loaded and tried on one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_gradients import gradient_digests
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.data import TrainingData, load_data
from jellybean.training.errors import TrainingError
from jellybean.training.losses import RowWeights, class_dimension, class_scores, load_loss, row_weights
from jellybean.training.models import load_model
from jellybean.training.optimizers import OptimizerPlan, plan_optimizer
from jellybean.training.pretrained import PretrainedWeights, open_weights
from jellybean.training.samples import IGNORED
from jellybean.training.stages.stage import LossFunction


@dataclass(frozen=True)
class TrainingInputs:
    """The model, data, loss and optimizer that the document names.

    `pretrained`: the document's weights; the module then has no memory for its own until they are filled in.
    """

    module: nn.Module
    data: TrainingData
    loss: LossFunction
    optimizer: OptimizerPlan
    pretrained: PretrainedWeights | None = None

    def weighted(self, weights: RowWeights | None) -> TrainingInputs:
        """The same with the rows' weights in the loss."""
        if weights is None:
            return self
        train, test = (replace(part, weights=weights(part)) for part in (self.data.train, self.data.test))
        return replace(self, data=replace(self.data, train=train, test=test))

    def example(self, document: TrainingDocument) -> CallArguments:
        """The arguments of one micro-batch; of at least two samples, so that tracers do not specialise the size."""
        return self.data.train.arguments(torch.arange(self._example_size(document)))

    def example_target(self, document: TrainingDocument) -> Any:
        """The loss' second argument for the example."""
        return self.data.train.target(torch.arange(self._example_size(document)))

    def _example_size(self, document: TrainingDocument) -> int:
        size = max(2, document.batch // (document.microbatches * document.replicas))
        return min(size, len(self.data.train))


def load_training_inputs(document: TrainingDocument, directory: Path) -> TrainingInputs:
    """Load model with all weights, data and loss, and check them. TrainingError if they do not fit together."""
    found = read_inputs(document, directory)
    return found.weighted(check_inputs(found, document))


def read_inputs(document: TrainingDocument, directory: Path) -> TrainingInputs:
    """Load model, data, loss and optimizer, without checks of how data and loss fit the model."""
    module, pretrained = load_model(document, directory), None
    if document.weights is not None:
        pretrained = open_weights(directory / document.weights, module)
    optimizer = plan_optimizer(document.optimizer, module)
    data, loss = load_data(document, directory), load_loss(document, directory)
    return TrainingInputs(module, data, loss, optimizer, pretrained)


def check_inputs(inputs: TrainingInputs, document: TrainingDocument) -> RowWeights | None:
    """Try one micro-batch, forward and backward; returns how rows count in the loss.

    TrainingError if model, data and loss do not fit together. Pretrained weights are read first, all of them. The
    module's buffers are restored.
    """
    if inputs.pretrained is not None:
        inputs.pretrained.fill((*inputs.module.parameters(), *inputs.module.buffers()))
    arguments, target, module = inputs.example(document), inputs.example_target(document), inputs.module
    buffers = [(value, value.clone()) for value in module.buffers()]
    try:
        with torch.random.fork_rng():
            outputs = arguments.form.call(module, arguments.tensors)
            _check_targets(document, outputs, inputs.data)
            told = inputs.loss(outputs, target)
        _check_loss(told, document)
        gradient_digests([told], [torch.ones_like(told)], [own for own in module.parameters() if own.requires_grad])
    except TrainingError:
        raise
    except Exception as error:  # user code may raise anything
        raise TrainingError(
            f"{document.model} cannot be trained on {document.data} with the loss {document.loss}: {_said(error)}"
            f"{_types(module, arguments.tensors)}"
        ) from error
    with torch.no_grad():
        for value, before in buffers:
            value.copy_(before)
    return row_weights(inputs.loss, arguments, outputs, target)


def _check_loss(told: Any, document: TrainingDocument) -> None:
    if not isinstance(told, torch.Tensor) or told.numel() != 1:
        raise TrainingError(f"the loss {document.loss} gave no single number; it must be a mean over samples")
    if not told.requires_grad:
        raise TrainingError(
            f"there is nothing to train: the loss {document.loss} depends on no weights of {document.model} "
            "that take gradients"
        )


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _types(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> str:
    given = next((value.dtype for value in tensors if value.is_floating_point()), None)
    own = next((value.dtype for value in module.parameters() if value.is_floating_point()), given)
    if given is None or given == own:
        return ""
    told = [str(dtype).removeprefix("torch.") for dtype in (given, own)]
    return f"; the inputs are {told[0]} and the weights {told[1]}: return inputs.astype('{told[1]}')"


def _check_targets(document: TrainingDocument, outputs: Any, data: TrainingData) -> None:
    """TrainingError if the built-in losses would fail on a later row, or if the shapes do not match."""
    if document.loss not in ("cross_entropy", "mse"):
        return
    scores = outputs if document.loss == "mse" else class_scores(outputs)
    if not isinstance(scores, torch.Tensor) or scores.dim() < 1 + (document.loss == "cross_entropy"):
        shape = f"the shape {list(scores.shape)}" if isinstance(scores, torch.Tensor) else type(outputs).__name__
        raise TrainingError(f"{document.model} gives {shape}; {document.loss} takes a tensor of a row per sample")
    for part, samples in (("train", data.train), ("test", data.test)):
        targets = samples.targets.tensors[0] if samples.targets is not None else None
        if document.loss == "mse" and targets is not None and scores.shape[1:] != targets.shape[1:]:
            raise TrainingError(
                f"{document.model} gives {list(scores.shape[1:])} of a sample and the targets in {part} have "
                f"{list(targets.shape[1:])}: mse needs the same"
            )
        if document.loss == "cross_entropy" and samples.classes is not None:
            place = class_dimension(scores, samples.classes[: len(scores)])
            _check_classes(document, samples.classes, scores.shape[place], part)


def _check_classes(document: TrainingDocument, targets: torch.Tensor, classes: int, part: str) -> None:
    counted = targets[targets != IGNORED]
    least, most = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
    if least < 0 or most >= classes:
        raise TrainingError(
            f"the targets in {part} are {least} to {most}, and {document.model} gives scores of {classes} "
            f"classes, 0 to {classes - 1}"
        )
