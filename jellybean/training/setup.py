"""Puts a run together on one rank: model, cuts, schedule, stages, transport, updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.documents.training import OptimizerSpec, TrainingDocument
from jellybean.training.choose import Choice, choose
from jellybean.training.data import Cutter, Data, Loss, load_data, load_loss, load_model
from jellybean.training.errors import TrainingError
from jellybean.training.processes.ranks import NEVER, Rank
from jellybean.training.processes.transport import Transport
from jellybean.training.stages.cut import CutModule, cut_module, trace
from jellybean.training.stages.gradient_sums import make_groups
from jellybean.training.stages.interpreter import Interpreter, peers_of
from jellybean.training.stages.stage import Settings, Stage
from jellybean.training.stages.updates import Updates, refuse_ties
from jellybean_solver.pipeline import Schedule


@dataclass(frozen=True)
class Material:
    """What the document names."""

    module: nn.Module
    data: Data
    loss: Loss

    def example(self, document: TrainingDocument) -> tuple[torch.Tensor, ...]:
        """A micro-batch; of two samples at least, so that no tracer takes the size for a constant."""
        size = max(2, document.batch // (document.microbatches * document.replicas))
        return (self.data.train[0][:size],)


@dataclass(frozen=True)
class Run:
    """One rank's part of a run."""

    rank: Rank
    material: Material
    choice: Choice
    schedule: Schedule
    cutter: Cutter
    held: dict[tuple[int, int], Stage]
    updates: Updates
    transport: Transport
    interpreter: Interpreter
    copies: dict[int, dist.ProcessGroup | None]


def load_material(document: TrainingDocument, directory: Path) -> Material:
    """Model, data and loss, tried on one micro-batch. TrainingError when they do not go together."""
    found = Material(load_model(document, directory), load_data(document, directory), load_loss(document, directory))
    inputs = found.example(document)
    targets = found.data.train[1][: len(inputs[0])]
    weights = [value for value in found.module.parameters() if value.requires_grad]
    try:
        kept = {name: value.clone() for name, value in found.module.state_dict().items()}
        with torch.random.fork_rng():
            outputs = found.module(*inputs)
            _refuse_targets(document, outputs, found.data)
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
    except Exception as error:  # whatever people's own code raises
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


def _refuse_targets(document: TrainingDocument, outputs: Any, data: Data) -> None:
    """TrainingError where the document's own losses would fail at a later row, or compare what does not belong."""
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


def set_up(document: TrainingDocument, directory: Path, rank: Rank) -> Run:
    """All ranks call this together. The first one profiles and chooses; the others do as it says."""
    with rank.busy("loading the model and the data, and profiling"):
        material = load_material(document, directory)
        inputs = material.example(document)
        traced = trace(material.module, inputs)
        told: list[Choice | None] = [choose(traced, inputs, document) if rank.tells else None]
    dist.broadcast_object_list(told, src=0)
    choice = told[0]
    if choice is None:
        raise TrainingError("rank 0 told no choice of a schedule")
    cut = cut_module(traced, choice.stage_of, inputs)
    cutter = Cutter(
        len(material.data.train[0]),
        document.batch,
        document.microbatches,
        document.replicas,
        document.seed,
        choice.period,
    )
    if cutter.updates < 1:
        parts = document.microbatches * document.replicas
        raise TrainingError(
            f"{cutter.samples} rows are too few for one update of {choice.name}: {parts} micro-batches of "
            f"{max(1, cutter.size)}; lower batch or microbatches"
        )
    schedule = choice.schedule(document.devices, cutter.run)
    refuse_ties(schedule, cut.tied)
    groups = make_groups(schedule, document.replicas, cut.tied)
    headers = dist.new_group(backend="gloo", timeout=NEVER)
    held = _held(document, schedule, cut, material.loss, rank)
    updates = Updates(
        held,
        optimizers(document.optimizer),
        groups,
        flushes=schedule.flushes,
        tied=cut.tied,
        clip=document.clip,
        counts=rank.replica == 0,
    )
    transport = Transport(
        peers_of(schedule, rank.place, rank.first),
        rank.device,
        compress=document.compress,
        patience_s=NEVER.total_seconds(),
        headers=headers,
    )
    interpreter = Interpreter(
        schedule, held, transport, updates, device=rank.place, first_rank=rank.first, done=rank.step
    )
    return Run(rank, material, choice, schedule, cutter, held, updates, transport, interpreter, dict(groups.copies))


def _held(
    document: TrainingDocument, schedule: Schedule, cut: CutModule, loss: Loss, rank: Rank
) -> dict[tuple[int, int], Stage]:
    precision = torch.bfloat16 if document.precision == "bfloat16" else None
    settings = Settings(precision, document.recompute)
    return {
        (number, pipe): Stage(
            cut.stages[number].to(rank.device), settings, loss if number == schedule.stages - 1 else None
        )
        for pipe, places in enumerate(schedule.device_of)
        for number, device in enumerate(places)
        if device == rank.place
    }


def optimizers(spec: OptimizerSpec) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Makes the document's optimizer."""
    more: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.name == "sgd":
        return lambda own: torch.optim.SGD(own, momentum=spec.momentum, **more)
    return lambda own: (torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW)(own, **more)
