"""A training run: epochs of iterations, measured, told, and kept so that it can go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jellybean.documents.training import LrSpec, TrainingDocument
from jellybean.training.checkpoints.checkpoint import (
    Loaded,
    clear_partial,
    finish,
    load_newest,
    load_same,
    refuse_unwritable,
    write_part,
)
from jellybean.training.checkpoints.states import restore, states_of
from jellybean.training.data import RowFeed
from jellybean.training.errors import TrainingError
from jellybean.training.measure import accuracy_of, whole_model
from jellybean.training.processes.ranks import Rank
from jellybean.training.setup import Run
from jellybean.training.stages.interpreter import Record
from jellybean_solver.pipeline import Timeline, bubble_fraction

_RECENT = 5  # epochs


@dataclass(frozen=True)
class Epoch:
    """What one came to. `losses`: of its updates. `accuracy`: percent of the test rows, where targets are classes.

    `samples`: rows to train on. `idle`, `predicted_idle`: shares of the devices' time, of the epoch's last iteration
    and by the simulator.
    """

    number: int
    samples: int
    losses: list[float]
    accuracy: float | None
    test_loss: float
    samples_per_s: float
    idle: float
    predicted_idle: float
    left_s: float

    @property
    def loss(self) -> float:
        """Mean over its updates."""
        return sum(self.losses) / len(self.losses)


Tell = Callable[[Epoch], None]


def folder_of(directory: Path) -> Path:
    """Where a run keeps what it makes."""
    return directory / "training"


def train(
    run: Run, document: TrainingDocument, directory: Path, tell: Tell, warn: Callable[[str], None]
) -> list[Epoch]:
    """The epochs that were left to do. All ranks call this together; only the first tells."""
    begin = _resume(run, document, directory, warn)
    lr = rate(document.lr_schedule, document.optimizer.lr, run.cutter.updates, document.epochs)
    told: list[Epoch] = []
    ends_s = [time.perf_counter()]
    for number in range(begin, document.epochs):
        measured = _epoch(run, document, number, lr)
        ends_s.append(time.perf_counter())
        epoch = replace(measured, left_s=left_s(ends_s, document.epochs - number - 1))
        told.append(epoch)
        if run.rank.tells:
            tell(epoch)
        last = number + 1 == document.epochs
        if last or (number + 1) % document.checkpoint.every == 0:
            _keep(run, document, directory, number + 1)
    run.transport.close()
    return told


def left_s(ends_s: Sequence[float], epochs: int) -> float:
    """What so many epochs will take, by the mean over the last `_RECENT`, checkpoints counted: one alone may be odd.

    `ends_s`: the beginning of the first, and the end of each.
    """
    recent = ends_s[-1 - _RECENT :]
    return epochs * (recent[-1] - recent[0]) / (len(recent) - 1)


def rate(spec: LrSpec, own: float, updates: int, epochs: int) -> Callable[[int], float]:
    """The learning rate of an update, by its number in the run."""
    total, warmup = updates * epochs, spec.warmup * updates

    def lr(update: int) -> float:
        if update < warmup:
            return own * (update + 1) / (warmup + 1)
        done = (update - warmup) / max(1.0, total - warmup)
        match spec.name:
            case "linear":
                return own * (1.0 - done)
            case "cosine":
                return own * (1.0 + math.cos(math.pi * done)) / 2
        return own

    return lr


def _epoch(run: Run, document: TrainingDocument, number: int, lr: Callable[[int], float]) -> Epoch:
    cutter, rank = run.cutter, run.rank
    per_iteration = cutter.updates // cutter.iterations
    losses = torch.zeros(cutter.updates, dtype=torch.float64)
    record, began, seen = Record(), time.perf_counter(), 0
    for iteration in range(cutter.iterations):
        rows = cutter.rows(number, iteration, rank.replica)
        before = number * cutter.updates + iteration * per_iteration
        feed = RowFeed(run.material.data.train, rows, rank.device, before, rank.replica)
        last = iteration + 1 == cutter.iterations
        if last:
            dist.barrier()
        record = run.interpreter.run(feed, lambda update, before=before: lr(before + update))  # type: ignore[misc]
        period = cutter.period or cutter.run
        for microbatch, loss in record.losses.items():
            losses[iteration * per_iteration + microbatch // period] += float(loss) * feed.factor(microbatch)
        seen += sum(rows.counted[::period])
    dist.all_reduce(losses)
    took_s = time.perf_counter() - began
    _refuse_divergence(losses, number + 1)
    _average_statistics(run)
    module = whole_model(run)
    with run.rank.busy("measuring the test rows"):
        accuracy, test_loss = accuracy_of(module, run.material) if module is not None else (None, 0.0)
    return Epoch(
        number + 1,
        cutter.samples,
        losses.tolist(),
        accuracy,
        test_loss,
        seen / took_s,
        _idle(run, record),
        run.choice.bubble,
        left_s=0.0,  # told by who knows the epochs before
    )


def _refuse_divergence(losses: torch.Tensor, epoch: int) -> None:
    """TrainingError where a loss is no number: nothing that follows could be, and no checkpoint is to hold it."""
    wrong = torch.nonzero(~torch.isfinite(losses))
    if len(wrong):
        update = int(wrong[0])
        raise TrainingError(
            f"the loss is {float(losses[update])} at update {update + 1} of epoch {epoch}: lower optimizer.lr, set "
            "clip, or look for nan in the data; the checkpoint before it stays, and the same command goes on from there"
        )


def _idle(run: Run, record: Record) -> float:
    """Measured, of all ranks of the first pipeline."""
    first = record.starts_s[0]
    own = ([s - first for s in record.starts_s], [s - first for s in record.ends_s], first)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    ranks = told[: run.schedule.devices]
    origin = min(one[2] for one in ranks)
    starts = tuple(tuple(s + one[2] - origin for s in one[0]) for one in ranks)
    ends = tuple(tuple(s + one[2] - origin for s in one[1]) for one in ranks)
    return bubble_fraction(Timeline(run.schedule, starts, ends))


def _average_statistics(run: Run) -> None:
    """Copies of a stage saw other micro-batches: running means become those of all."""
    for (number, _), stage in sorted(run.held.items()):
        group = run.copies.get(number)
        for _, value in sorted(stage.module.named_buffers()) if group is not None else ():
            if value.is_floating_point():
                dist.all_reduce(value, group=group)
                value.div_(dist.get_world_size(group))


def _keep(run: Run, document: TrainingDocument, directory: Path, epochs: int) -> None:
    """A checkpoint; on all ranks or on none."""
    folder = folder_of(directory) / "checkpoints"
    hashed: str | None = None
    error = ""
    try:
        if run.rank.replica == 0:
            with run.rank.busy("writing a checkpoint"):
                hashed = write_part(folder, epochs, run.rank.rank, states_of(run.held, run.updates))
    except TrainingError as failure:
        error = str(failure)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (run.rank.rank, hashed, error))
    errors = [one[2] for one in told if one[2]]
    if not errors and run.rank.tells:
        facts = {
            "schedule": run.choice.name,
            "devices": run.schedule.devices,
            "optimizer": document.optimizer.name,
        }
        try:
            with run.rank.busy("writing a checkpoint"):
                finish(folder, epochs, {one[0]: one[1] for one in told if one[1]}, facts, document.checkpoint.keep)
        except TrainingError as failure:
            errors.append(str(failure))
    outcome = [errors[0] if errors else ""]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0]:
        raise TrainingError(f"{outcome[0]}; the checkpoint before it stays, and the same command goes on from there")


def _resume(run: Run, document: TrainingDocument, directory: Path, warn: Callable[[str], None]) -> int:
    """Epochs that are done."""
    found = same_checkpoint(run.rank, folder_of(directory) / "checkpoints")
    if found is None:
        return 0
    before, now = found.told["optimizer"], document.optimizer.name
    if before != now:
        raise TrainingError(
            f"{found.path} has the state of {before}, which {now} cannot go on from: "
            f"--set optimizer.name={before} goes on, --fresh begins anew"
        )
    if run.rank.tells:
        for line in found.skipped:
            warn(line)
        warn(f"going on from {found.path}, after epoch {found.told['epochs']}")
    restore(found.tensors, run.held, run.updates)
    return int(found.told["epochs"])


def same_checkpoint(rank: Rank, folder: Path) -> Loaded | None:
    """The newest that the first rank can read, on all ranks; TrainingError on all where one cannot read it."""
    found, error = None, ""
    if rank.tells:
        try:
            with rank.busy("reading a checkpoint"):
                refuse_unwritable(folder)
                clear_partial(folder)
                found = load_newest(folder)
        except TrainingError as failure:
            error = str(failure)
    chosen: list[Any] = [(found.path.name, found.sha256) if found is not None else None]
    dist.broadcast_object_list(chosen, src=0)
    if chosen[0] is not None and not rank.tells:
        name, sha256 = chosen[0]
        try:
            with rank.busy("reading a checkpoint"):
                found = load_same(folder / name, sha256)
        except TrainingError as failure:
            error = (
                f"rank {rank.rank} does not have the checkpoint that rank 0 goes on from: {failure}; all machines "
                "must see the same folder"
            )
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, error)
    if any(told):
        raise TrainingError(next(text for text in told if text))
    return found


def to_json(epoch: Epoch) -> dict[str, Any]:
    """For --json and the run's log."""
    return {**asdict(epoch), "loss": epoch.loss}
