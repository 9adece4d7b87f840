"""Sets up one rank of a run: model, cuts, schedule, stages, transport, updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.documents.training import OptimizerSpec, TrainingDocument
from jellybean.training.data import MicrobatchSampler, TrainingData, load_data, load_loss, load_model
from jellybean.training.errors import TrainingError
from jellybean.training.processes.ranks import NO_TIMEOUT, Rank
from jellybean.training.processes.transport import StageTransport
from jellybean.training.schedule_choice import ScheduleChoice, choose_schedule
from jellybean.training.stages.all_reduce import make_process_groups
from jellybean.training.stages.cut import CutModule, cut_module, trace
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

    def example(self, document: TrainingDocument) -> tuple[torch.Tensor, ...]:
        """One micro-batch; of at least two samples, so that tracers do not specialise the batch size."""
        size = max(2, document.batch // (document.microbatches * document.replicas))
        return (self.data.train[0][:size],)


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
    inputs = found.example(document)
    targets = found.data.train[1][: len(inputs[0])]
    weights = [value for value in found.module.parameters() if value.requires_grad]
    try:
        kept = {name: value.clone() for name, value in found.module.state_dict().items()}
        with torch.random.fork_rng():
            outputs = found.module(*inputs)
            _check_targets(document, outputs, found.data)
            told = found.loss(outputs, targets)
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
            f"{_types(found.module, inputs[0])}"
        ) from error
    found.module.load_state_dict(kept)
    return found


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _types(module: nn.Module, inputs: torch.Tensor) -> str:
    own = next((value.dtype for value in module.parameters() if value.is_floating_point()), inputs.dtype)
    if not inputs.is_floating_point() or inputs.dtype == own:
        return ""
    told = [str(dtype).removeprefix("torch.") for dtype in (inputs.dtype, own)]
    return f"; the inputs are {told[0]} and the weights {told[1]}: return inputs.astype('{told[1]}')"


def _check_targets(document: TrainingDocument, outputs: Any, data: TrainingData) -> None:
    """TrainingError if the built-in losses would fail on a later row, or if the shapes do not match."""
    if document.loss not in ("cross_entropy", "mse"):
        return
    if not isinstance(outputs, torch.Tensor) or outputs.dim() < 1 + (document.loss == "cross_entropy"):
        shape = f"the shape {list(outputs.shape)}" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise TrainingError(f"{document.model} gives {shape}; {document.loss} takes a tensor of a row per sample")
    for part, (_, targets) in (("train", data.train), ("test", data.test)):
        if document.loss == "mse" and outputs.shape[1:] != targets.shape[1:]:
            raise TrainingError(
                f"{document.model} gives {list(outputs.shape[1:])} of a sample and the targets in {part} have "
                f"{list(targets.shape[1:])}: mse needs the same"
            )
        classes = outputs.shape[1] if outputs.dim() > 1 else 1
        if document.loss == "cross_entropy" and not targets.is_floating_point():
            least, most = int(targets.min()), int(targets.max())
            if least < 0 or most >= classes:
                raise TrainingError(
                    f"the targets in {part} are {least} to {most}, and {document.model} gives scores of {classes} "
                    f"classes, 0 to {classes - 1}"
                )


def set_up_run(document: TrainingDocument, directory: Path, rank: Rank) -> RankRun:
    """Set up this rank. A collective call: rank 0 profiles and chooses the schedule, and broadcasts its choice."""
    with rank.busy("loading the model and the data, and profiling"):
        material = load_training_inputs(document, directory)
        inputs = material.example(document)
        traced = trace(material.module, inputs)
        told: list[ScheduleChoice | None] = [choose_schedule(traced, inputs, document) if rank.is_first else None]
    dist.broadcast_object_list(told, src=0)
    choice = told[0]
    if choice is None:
        raise TrainingError("rank 0 told no choice of a schedule")
    cut = cut_module(traced, choice.stage_of, inputs)
    sampler = MicrobatchSampler(
        len(material.data.train[0]),
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
    held = _held_stages(document, schedule, cut, material.loss, rank)
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


def _held_stages(
    document: TrainingDocument, schedule: Schedule, cut: CutModule, loss: LossFunction, rank: Rank
) -> dict[tuple[int, int], StageCopy]:
    precision = torch.bfloat16 if document.precision == "bfloat16" else None
    settings = StageSettings(precision, document.recompute)
    return {
        (number, pipe): StageCopy(
            cut.stages[number].to(rank.device), settings, loss if number == schedule.stages - 1 else None
        )
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
