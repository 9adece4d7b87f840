"""What a run trains: the model, its data and its loss, loaded and tried on one micro-batch."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_gradients import gradient_digests
from jellybean.pipeline.torch_saved import TemporaryFileError, activations_in_file
from jellybean.pipeline.torch_stages import StageChain
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.batch_dependence import TRIED_ROWS, dependence_note
from jellybean.training.data.loading import TrainingData, load_data
from jellybean.training.data.rules import CountFunction, RowRules
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.errors import TrainingError
from jellybean.training.loss_counts import check_number
from jellybean.training.loss_trial import LossTrial
from jellybean.training.losses import (
    ROWS,
    TARGETS,
    class_dimension,
    class_scores,
    cross_entropy,
    find_label_targets,
    load_count,
    load_loss,
)
from jellybean.training.metrics import Measures, check_metrics, load_metrics
from jellybean.training.models.buffers import buffer_shapes_kept
from jellybean.training.models.building import load_model
from jellybean.training.models.lora import trained_module, with_adapters
from jellybean.training.models.pretrained import PretrainedWeights, open_weights
from jellybean.training.optimization.lr_schedules import check_lr_schedule
from jellybean.training.optimization.optimizers import OptimizerPlan, plan_optimizer
from jellybean.training.optimization.sparse_steps import check_sparse_steps, sparse_weights
from jellybean.training.samples import Samples
from jellybean.training.stages.stage import LossFunction

TRIAL_ROWS = 3  # so that graphs are compared with batches of 3 and of 2 samples


@dataclass(frozen=True)
class TrainingInputs:
    """The model, data, loss and optimizer that the document names.

    `count`: the function that says what counts in the loss. `pretrained`: the document's weights; the module then has
    no memory for its own until they are filled in.
    """

    module: nn.Module
    data: TrainingData
    loss: LossFunction
    metrics: Measures
    optimizer: OptimizerPlan
    count: CountFunction | None = None
    pretrained: PretrainedWeights | None = None

    def ruled(self, rules: RowRules) -> TrainingInputs:
        """The same with the rows' targets and weights, checked."""
        return replace(self, data=self.data.ruled(replace(rules, count=self.count)))

    def example(self, document: TrainingDocument, rows: int | None = None) -> Samples:
        """One micro-batch, or its first `rows`; of at least two samples, so that tracers do not specialise the size."""
        size = max(2, document.batch // (document.microbatches * document.workers))
        return self.data.train.example(size if rows is None else min(size, rows))


@dataclass(frozen=True)
class CheckedInputs:
    """What trying the model showed.

    `trial_rows`: samples with which it was tried; None: a whole micro-batch. `warning`: what the user must know; empty
    if there is nothing.
    """

    rules: RowRules
    trial_rows: int | None
    warning: str


def read_inputs(document: TrainingDocument, directory: Path) -> TrainingInputs:
    """Load model, data, loss and optimizer, without checks of how data and loss fit the model."""
    module, pretrained = load_model(document, directory), None
    if document.weights is not None:
        pretrained = open_weights(directory / document.weights, module)
    module = trained_module(with_adapters(module, document))
    optimizer = plan_optimizer(document.optimizer, module, directory)
    data, loss = load_data(document, directory), load_loss(document, directory)
    metrics, count = load_metrics(document, directory, loss), load_count(document, directory)
    return TrainingInputs(module, data, loss, metrics, optimizer, count, pretrained)


def check_inputs(
    inputs: TrainingInputs, document: TrainingDocument, directory: Path = Path(), servers_workers: int = 1
) -> CheckedInputs:
    """Try a few samples, forward and backward; returns what holds for all rows.

    Few, as the activations of the whole model are in this process's memory; a whole micro-batch if the model takes no
    smaller one. TrainingError if model, data and loss do not fit together. Pretrained weights are read first, all of
    them. The module is afterwards as before. `servers_workers`: of a run with parameter servers, which divide updates.
    """
    sampler = MicrobatchSampler(inputs.data.train.rows, document.batch, document.microbatches, document.workers)
    updates = max(1, sampler.updates)
    check_lr_schedule(document.lr_schedule, inputs.optimizer, updates, document.epochs, directory)
    if inputs.pretrained is not None:
        inputs.pretrained.fill((*inputs.module.parameters(), *inputs.module.buffers()))
    rows: int | None = TRIAL_ROWS
    try:
        rules = _tried(inputs, document, rows)
    except TrainingError:
        rows = None
        rules = _tried(inputs, document, rows)
    _check_saved_tensors(inputs, document, rows)
    judged = LossTrial(inputs.module, inputs.data, inputs.loss, inputs.count, servers_workers).judge(document, rules)
    notes = (judged.warning, _dependence(inputs, document, judged.rules, servers_workers))
    return CheckedInputs(judged.rules, rows, "; ".join(filter(None, notes)))


def _dependence(inputs: TrainingInputs, document: TrainingDocument, rules: RowRules, servers_workers: int) -> str:
    """That rows of a batch change each other in the model, where an update is divided; otherwise empty."""
    parts = document.microbatches * document.workers * servers_workers
    divided = parts > 1 or document.leaves_open("microbatches") or document.leaves_open("replicas")
    if not divided or document.loss.counts is not None:  # what the user declares is taken as it is
        return ""
    size = min(TRIED_ROWS, document.batch, inputs.data.train.rows)
    samples = rules.apply(inputs.data.train.sample(size))
    weights = {} if samples.weights is None else {rules.counts: samples.weights}
    return dependence_note(inputs.module, inputs.loss, samples, rules.counts, weights, document.model_name)


def _check_saved_tensors(inputs: TrainingInputs, document: TrainingDocument, rows: int | None) -> None:
    """Repeat the trial in memory: only there does autograd notice that a tensor it needs was overwritten.

    On one sample, or on as many as before if the model takes no single one.
    """
    try:
        _tried(inputs, document, 1, in_file=False)
    except TrainingError:
        _tried(inputs, document, rows, in_file=False)


def _tried(inputs: TrainingInputs, document: TrainingDocument, rows: int | None, *, in_file: bool = True) -> RowRules:
    example, module = inputs.example(document, rows), inputs.module
    arguments, target = example.inputs, example.target(slice(None))
    _check_arguments(module, arguments, document)
    weights = list(module.parameters())
    try:
        in_memory = (*weights, *module.buffers())
        with (
            buffer_shapes_kept(module, document.model_name),
            activations_in_file(in_memory) if in_file else nullcontext(),
        ):
            outputs = arguments.call(module)
            rules = _rules(inputs, document, outputs, example)
            loss = inputs.loss(outputs, target)
            _check_loss(loss, document)
            with sparse_weights(module) as sparse:
                gradient_digests([loss], [torch.ones_like(loss)], [own for own in weights if own.requires_grad])
            check_sparse_steps(inputs.optimizer, sparse)
            # After the backward pass: it may write into buffers.
            _check_evaluation(inputs, document, rules.apply(example))
    except (TrainingError, TemporaryFileError):
        raise
    except Exception as error:  # user code may raise anything
        raise TrainingError(
            f"{document.model_name} cannot be trained on {document.data_name} with the loss {document.loss}; it failed"
            f"{place_and_reason(error)}{_types(module, arguments.tensors)} (inputs: {_sizes(arguments)}"
            f"{_unknown_names(module, arguments)})"
        ) from error
    return rules


def _check_evaluation(inputs: TrainingInputs, document: TrainingDocument, example: Samples) -> None:
    """Try the loss and the metrics on outputs in evaluation mode, by which the test rows are measured."""
    inputs.module.eval()
    try:
        with torch.no_grad():
            outputs = example.inputs.call(inputs.module)
            try:
                if example.weight(slice(None)):  # a loss may fail on rows of which nothing counts
                    check_number(inputs.loss(outputs, example.target(slice(None))))
            except Exception as error:  # user code may raise anything
                raise TrainingError(
                    f"in evaluation mode, in which the test rows are measured, the loss {document.loss} failed on what "
                    f"{document.model_name} returns{place_and_reason(error)}"
                ) from error
            check_metrics(inputs.metrics, outputs, example.target(slice(None)))
    finally:
        inputs.module.train()


def _check_loss(loss: Any, document: TrainingDocument) -> None:
    try:
        check_number(loss)
    except TypeError as error:
        raise TrainingError(f"loss: {document.loss}: {error}") from error
    if not loss.requires_grad:
        raise TrainingError(
            f"there is nothing to train: the loss {document.loss} depends on no weights of {document.model_name} "
            "that take gradients"
        )


def _check_arguments(module: nn.Module, arguments: CallArguments, document: TrainingDocument) -> None:
    """TrainingError if `forward` does not take the arguments that the data give, by number and name."""
    args, kwargs = arguments.form.nest(arguments.tensors)
    signature = _signature(module)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TrainingError(
            f"{document.data_name}: {error}; the inputs are {_sizes(arguments)}, and forward of "
            f"{type(_entry(module)).__name__} takes {', '.join(signature.parameters) or 'nothing'}"
        ) from error


def _entry(module: nn.Module) -> nn.Module:
    """The module that takes the model's arguments: the first of `stages`."""
    return next(module.children()) if isinstance(module, StageChain) else module


def _signature(module: nn.Module) -> inspect.Signature | None:
    """The arguments of `forward`; None for compiled code, which does not state them."""
    try:
        return inspect.signature(_entry(module).forward)
    except ValueError:
        return None


def _unknown_names(module: nn.Module, arguments: CallArguments) -> str:
    """Which inputs `forward` takes by no name of its own, but as `**kwargs`, and the names that it has."""
    signature = _signature(module)
    if signature is None:
        return ""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [name for name, one in signature.parameters.items() if one.kind not in variadic]
    unknown = [name for name in arguments.form.nest(arguments.tensors)[1] if name not in named]
    if not unknown or not named:
        return ""
    return f"; forward of {type(_entry(module)).__name__} has no {', '.join(unknown)}: it takes {', '.join(named)}"


def _sizes(arguments: CallArguments) -> str:
    """Names, types and shapes of the inputs, for messages."""
    pairs = zip(arguments.names, arguments.tensors, strict=True)
    return ", ".join(f"{name} {value.dtype} {list(value.shape)}".replace("torch.", "") for name, value in pairs)


def _types(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> str:
    given = next((value.dtype for value in tensors if value.is_floating_point()), None)
    own = next((value.dtype for value in module.parameters() if value.is_floating_point()), given)
    if given is None or given == own:
        return ""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in (given, own)]
    return f"; the inputs are {dtypes[0]} and the weights {dtypes[1]}: return inputs.astype('{dtypes[1]}')"


def _check_probabilities(scores: torch.Tensor, example: Samples, document: TrainingDocument) -> None:
    """TrainingError if targets that are not whole numbers are no probabilities of the classes either."""
    targets = example.targets.tensors if example.targets is not None else ()
    if len(targets) == 1 and targets[0].is_floating_point() and targets[0].shape != scores.shape:
        dtype = str(targets[0].dtype).removeprefix("torch.")
        raise TrainingError(
            f"{document.data_name}: the targets are {dtype}, and cross_entropy takes classes as whole numbers: return "
            "targets.astype('int64'), or name another loss, such as mse"
        )


def _rules(inputs: TrainingInputs, document: TrainingDocument, outputs: Any, example: Samples) -> RowRules:
    """What the loss demands of rows. TrainingError if a built-in one cannot take these outputs."""
    labels = find_label_targets(inputs.loss, example.inputs, outputs)
    by_targets = labels is not None or (inputs.loss is cross_entropy and example.classes is not None)
    rules = RowRules(document.model_name, labels, TARGETS if by_targets else ROWS)
    if document.loss.function not in ("cross_entropy", "mse"):
        return rules
    scores = outputs if document.loss.function == "mse" else class_scores(outputs)
    if not isinstance(scores, torch.Tensor) or scores.dim() < 1 + (document.loss.function == "cross_entropy"):
        shape = f"the shape {list(scores.shape)}" if isinstance(scores, torch.Tensor) else type(outputs).__name__
        raise TrainingError(f"{document.model_name} gives {shape}; {document.loss} takes a tensor of a row per sample")
    if document.loss.function == "mse":
        rules = replace(rules, sizes=tuple(scores.shape[1:]))
    elif example.classes is None:
        _check_probabilities(scores, example, document)
    else:
        rules = replace(rules, classes=scores.shape[class_dimension(scores, example.classes)])
    rules.check(example, "train")
    return rules
