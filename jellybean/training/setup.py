"""Sets up one rank of a run: model, cuts, schedule, stages, transport, updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.documents.training import OptimizerSpec, TrainingDocument
from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_graph import graph_facts
from jellybean.pipeline.torch_trace import CallArguments, TracedModule, trace
from jellybean.training.data import MicrobatchSampler, TrainingData, load_data, load_model
from jellybean.training.errors import TrainingError
from jellybean.training.losses import RowWeights, class_dimension, class_scores, load_loss, row_weights
from jellybean.training.processes.ranks import NO_TIMEOUT, Rank
from jellybean.training.processes.transport import StageTransport
from jellybean.training.samples import IGNORED
from jellybean.training.schedule_choice import ScheduleChoice, choose_schedule
from jellybean.training.stages.all_reduce import make_process_groups
from jellybean.training.stages.cut import CutModule, cut_module
from jellybean.training.stages.interpreter import Interpreter, peers_of
from jellybean.training.stages.stage import LossFunction, StageCopy, StageSettings
from jellybean.training.stages.updates import WeightUpdates, check_tied_weights
from jellybean_solver.pipeline import Schedule


@dataclass(frozen=True)
class TrainingInputs:
    """The model, data and loss that the document names."""

    module: nn.Module
    data: TrainingData
    loss: LossFunction

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


@dataclass(frozen=True)
class RankRun:
    """Everything that one rank needs for a run."""

    rank: Rank
    material: TrainingInputs
    choice: ScheduleChoice
    schedule: Schedule
    sampler: MicrobatchSampler
    held: dict[tuple[int, int], StageCopy]
    updates: WeightUpdates
    transport: StageTransport
    interpreter: Interpreter
    copies: dict[int, dist.ProcessGroup | None]


def load_training_inputs(document: TrainingDocument, directory: Path) -> TrainingInputs:
    """Load model, data and loss and try them on one micro-batch. TrainingError if they do not fit together."""
    found = TrainingInputs(
        load_model(document, directory), load_data(document, directory), load_loss(document, directory)
    )
    arguments, target = found.example(document), found.example_target(document)
    weights = [value for value in found.module.parameters() if value.requires_grad]
    try:
        kept = {name: value.clone() for name, value in found.module.state_dict().items()}
        with torch.random.fork_rng():
            outputs = arguments.form.call(found.module, arguments.tensors)
            _check_targets(document, outputs, found.data)
            told = found.loss(outputs, target)
        if not isinstance(told, torch.Tensor) or told.numel() != 1:
            raise TrainingError(f"the loss {document.loss} gave no single number; it must be a mean over samples")
        if not told.requires_grad:
            raise TrainingError(
                f"there is nothing to train: the loss {document.loss} depends on no weights of {document.model} "
                "that take gradients"
            )
        torch.autograd.grad(told, weights, allow_unused=True)
    except TrainingError:
        raise
    except Exception as error:  # user code may raise anything
        raise TrainingError(
            f"{document.model} cannot be trained on {document.data} with the loss {document.loss}: {_said(error)}"
            f"{_types(found.module, arguments.tensors)}"
        ) from error
    found.module.load_state_dict(kept)
    return found.weighted(row_weights(found.loss, arguments, outputs, target))


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


def set_up_run(document: TrainingDocument, directory: Path, rank: Rank) -> RankRun:
    """Set up this rank. A collective call: rank 0 profiles and chooses the schedule, and broadcasts its choice."""
    with rank.busy("loading the model and the data, and profiling"):
        material = load_training_inputs(document, directory)
        arguments = material.example(document)
        traced = _trace(material.module, arguments, check=rank.is_first)
        facts = graph_facts(traced, arguments.tensors)
        told: list[ScheduleChoice | None] = [
            choose_schedule(traced, facts, arguments.tensors, document) if rank.is_first else None
        ]
    dist.broadcast_object_list(told, src=0)
    choice = told[0]
    if choice is None:
        raise TrainingError("rank 0 told no choice of a schedule")
    if traced.tracer != choice.tracer:  # rank 0 found that the graph of the first tracer is not the model
        traced = trace(material.module, arguments, tracer=choice.tracer)
        facts = graph_facts(traced, arguments.tensors)
    cut = cut_module(traced, facts, choice.stage_of)
    sampler = MicrobatchSampler(
        len(material.data.train),
        document.batch,
        document.microbatches,
        document.replicas,
        document.seed,
        choice.period,
    )
    if sampler.updates < 1:
        parts = document.microbatches * document.replicas
        raise TrainingError(
            f"{sampler.samples} rows are too few for one update of {choice.name}: {parts} micro-batches of "
            f"{max(1, sampler.size)}; lower batch or microbatches"
        )
    schedule = choice.schedule(document.devices, sampler.run)
    check_tied_weights(schedule, cut.tied)
    groups = make_process_groups(schedule, document.replicas, cut.tied)
    headers = dist.new_group(backend="gloo", timeout=NO_TIMEOUT)
    held = _held_stages(document, schedule, cut, _loss_of_stage(traced, material.loss), rank)
    updates = WeightUpdates(
        held,
        optimizer_factory(document.optimizer),
        groups,
        flushes=schedule.flushes,
        tied=cut.tied,
        clip=document.clip,
        first_replica=rank.replica == 0,
    )
    transport = StageTransport(
        peers_of(schedule, rank.device_index, rank.first),
        rank.device,
        compress=document.compress,
        patience_s=NO_TIMEOUT.total_seconds(),
        headers=headers,
    )
    transport.start()
    interpreter = Interpreter(
        schedule, held, transport, updates, device=rank.device_index, first_rank=rank.first, done=rank.step
    )
    return RankRun(
        rank, material, choice, schedule, sampler, held, updates, transport, interpreter, dict(groups.copies)
    )


def _trace(module: nn.Module, arguments: CallArguments, *, check: bool) -> TracedModule:
    try:
        return trace(module, arguments, check=check)
    except TrainingError:
        raise
    except JellyBeanError as error:
        raise TrainingError(str(error)) from error


def _loss_of_stage(traced: TracedModule, loss: LossFunction) -> LossFunction:
    """The loss of the tensors that the last stage returns."""
    return lambda tensors, target: loss(traced.result.nest(tensors), target)


def _held_stages(
    document: TrainingDocument, schedule: Schedule, cut: CutModule, loss: LossFunction, rank: Rank
) -> dict[tuple[int, int], StageCopy]:
    precision = torch.bfloat16 if document.precision == "bfloat16" else None
    settings = StageSettings(precision, document.recompute)
    return {
        (number, pipe): cut.stages[number].copy(settings, loss if number == schedule.stages - 1 else None, rank.device)
        for pipe, places in enumerate(schedule.device_of)
        for number, device in enumerate(places)
        if device == rank.device_index
    }


def optimizer_factory(spec: OptimizerSpec) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """A factory of the document's optimizer."""
    more: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.name == "sgd":
        return lambda own: torch.optim.SGD(own, momentum=spec.momentum, **more)
    return lambda own: (torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW)(own, **more)
