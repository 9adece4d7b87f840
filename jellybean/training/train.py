"""The training loop: epochs of iterations, evaluated, logged and checkpointed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.training.checkpoints.checkpoint import (
    LoadedCheckpoint,
    check_writable,
    clear_partial,
    finish_checkpoint,
    load_exact,
    load_newest,
    write_rank_file,
)
from jellybean.training.checkpoints.states import belongs_to, collect_state, restore_state
from jellybean.training.data import DatasetFeed
from jellybean.training.errors import TrainingError
from jellybean.training.evaluation import evaluate
from jellybean.training.lr_schedules import LrSchedule, make_lr_schedule
from jellybean.training.processes.ranks import Rank
from jellybean.training.setup import RankRun
from jellybean.training.stages.interpreter import ActionLog
from jellybean_solver.pipeline import Timeline, bubble_fraction

_RECENT = 5  # number of last epochs over which the remaining time is estimated


@dataclass(frozen=True)
class EpochResult:
    """Results of one epoch.

    `losses`: per update. `accuracy`: percent of the test rows; None if targets are no classes. `samples`: training
    rows. `idle`, `predicted_idle`: bubble fractions, measured in the epoch's last iteration and simulated. `left_s`:
    estimated seconds until the end of the run.
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
        """Mean loss over the updates."""
        return sum(self.losses) / len(self.losses)


OnEpoch = Callable[[EpochResult], None]


def run_folder(directory: Path) -> Path:
    """The folder of a run's checkpoints, logs and model."""
    return directory / "training"


def train(
    run: RankRun, document: TrainingDocument, directory: Path, on_epoch: OnEpoch, warn: Callable[[str], None]
) -> list[EpochResult]:
    """Train the remaining epochs and return their results. A collective call; only rank 0 calls `on_epoch`."""
    lr = make_lr_schedule(document.lr_schedule, run.optimizer, run.sampler.updates, document.epochs)
    test_losses = _resume(run, document, directory, warn)
    for loss in test_losses:
        if loss is not None:
            lr.end_epoch(loss)
    told: list[EpochResult] = []
    ends_s = [time.perf_counter()]
    for number in range(len(test_losses), document.epochs):
        measured = _epoch(run, document, number, lr)
        ends_s.append(time.perf_counter())
        epoch = replace(measured, left_s=left_s(ends_s, document.epochs - number - 1))
        told.append(epoch)
        test_losses.append(epoch.test_loss)
        lr.end_epoch(epoch.test_loss)
        if run.rank.is_first:
            on_epoch(epoch)
        last = number + 1 == document.epochs
        if last or (number + 1) % document.checkpoint.every == 0:
            _save_checkpoint(run, document, directory, test_losses)
    run.transport.close()
    return told


def left_s(ends_s: Sequence[float], epochs: int) -> float:
    """Estimated seconds of `epochs` more epochs: mean over the last `_RECENT`, checkpoints included.

    `ends_s`: the start of the first epoch, then the end of each.
    """
    recent = ends_s[-1 - _RECENT :]
    return epochs * (recent[-1] - recent[0]) / (len(recent) - 1)


def _epoch(run: RankRun, document: TrainingDocument, number: int, lr: LrSchedule) -> EpochResult:
    sampler, rank = run.sampler, run.rank
    per_iteration = sampler.updates // sampler.iterations
    losses = torch.zeros(sampler.updates, dtype=torch.float64)
    log, began, seen = ActionLog(), time.perf_counter(), 0
    for iteration in range(sampler.iterations):
        rows = sampler.rows(number, iteration, rank.replica)
        before = number * sampler.updates + iteration * per_iteration
        feed = DatasetFeed(run.data.train, rows, rank.device, before, rank.replica, document.seed)
        last = iteration + 1 == sampler.iterations
        if last:
            dist.barrier()
        log = run.interpreter.run(feed, lr.settings(before, per_iteration))
        period = sampler.period or sampler.run
        for microbatch, loss in log.losses.items():
            losses[iteration * per_iteration + microbatch // period] += float(loss) * feed.factor(microbatch)
        seen += sum(map(len, rows.updates))
    dist.all_reduce(losses)
    took_s = time.perf_counter() - began
    _check_losses(losses, number + 1)
    average_statistics(run)
    accuracy, test_loss = evaluate(run)
    return EpochResult(
        number + 1,
        sampler.samples,
        losses.tolist(),
        accuracy,
        test_loss,
        seen / took_s,
        _idle(run, log),
        run.choice.bubble,
        left_s=0.0,  # placeholder; the caller sets it
    )


def _check_losses(losses: torch.Tensor, epoch: int) -> None:
    """TrainingError if a loss is not finite, before a checkpoint can store the result."""
    wrong = torch.nonzero(~torch.isfinite(losses))
    if len(wrong):
        update = int(wrong[0])
        raise TrainingError(
            f"the loss is {float(losses[update])} at update {update + 1} of epoch {epoch}: lower optimizer.lr, set "
            "clip, or look for nan in the data; the previous checkpoint is intact, and the same command resumes from it"
        )


def _idle(run: RankRun, log: ActionLog) -> float:
    """Measured bubble fraction of the first replica. Assumes that its ranks share a clock, as on one machine."""
    first = log.starts_s[0]
    own = ([s - first for s in log.starts_s], [s - first for s in log.ends_s], first)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    ranks = told[: run.schedule.devices]
    origin = min(one[2] for one in ranks)
    starts = tuple(tuple(s + one[2] - origin for s in one[0]) for one in ranks)
    ends = tuple(tuple(s + one[2] - origin for s in one[1]) for one in ranks)
    return bubble_fraction(Timeline(run.schedule, starts, ends))


def average_statistics(run: RankRun) -> None:
    """Average the buffers (running means) over the copies of each stage, which processed different micro-batches."""
    for (number, _), stage in sorted(run.held.items()):
        group = run.copies.get(number)
        for _, value in sorted(stage.buffers.items()) if group is not None else ():
            if value.is_floating_point():
                dist.all_reduce(value, group=group)
                value.div_(dist.get_world_size(group))


def _save_checkpoint(
    run: RankRun, document: TrainingDocument, directory: Path, test_losses: Sequence[float | None]
) -> None:
    """Write a checkpoint; if one rank fails, TrainingError on all ranks. `test_losses`: of the epochs done."""
    epochs = len(test_losses)
    folder = run_folder(directory) / "checkpoints"
    hashed: str | None = None
    error = ""
    try:
        if run.rank.replica == 0:
            with run.rank.busy("writing a checkpoint"):
                hashed = write_rank_file(folder, epochs, run.rank.rank, collect_state(run.held, run.updates))
    except TrainingError as failure:
        error = str(failure)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (run.rank.rank, hashed, error))
    errors = [one[2] for one in told if one[2]]
    if not errors and run.rank.is_first:
        facts = {
            "schedule": run.choice.name,
            "devices": run.schedule.devices,
            "optimizer": document.optimizer.name,
            "test_losses": test_losses,
        }
        try:
            with run.rank.busy("writing a checkpoint"):
                finish_checkpoint(
                    folder, epochs, {one[0]: one[1] for one in told if one[1]}, facts, document.checkpoint.keep
                )
        except TrainingError as failure:
            errors.append(str(failure))
    outcome = [errors[0] if errors else ""]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0]:
        raise TrainingError(f"{outcome[0]}; the previous checkpoint is intact, and the same command resumes from it")


def _resume(
    run: RankRun, document: TrainingDocument, directory: Path, warn: Callable[[str], None]
) -> list[float | None]:
    """Restore the newest checkpoint, if any. Returns the test losses of the epochs done; None where not recorded."""
    found = agree_on_checkpoint(run.rank, run_folder(directory) / "checkpoints", belongs_to(run.held))
    if found is None:
        return []
    before, now = found.manifest["optimizer"], document.optimizer.name
    if before.lower() != now.lower():
        raise TrainingError(
            f"{found.path} has the state of {before}, which {now} cannot use: "
            f"--set optimizer.name={before} resumes, --fresh starts over"
        )
    if run.rank.is_first:
        for line in found.skipped:
            warn(line)
        warn(f"resuming from {found.path}, after epoch {found.manifest['epochs']}")
    restore_state(found.tensors, run.held, run.updates)
    return list(found.manifest.get("test_losses", [None] * found.manifest["epochs"]))


def agree_on_checkpoint(
    rank: Rank, folder: Path, needs: Callable[[str], bool] = lambda name: True
) -> LoadedCheckpoint | None:
    """The newest checkpoint that rank 0 can read, on all ranks. TrainingError on all if one cannot read it.

    `needs`: whether this rank will read a tensor, by name. Rank 0 verifies all files, others those that they need.
    """
    found, error = None, ""
    if rank.is_first:
        try:
            with rank.busy("reading a checkpoint"):
                check_writable(folder)
                clear_partial(folder)
                found = load_newest(folder)
        except TrainingError as failure:
            error = str(failure)
    chosen: list[Any] = [(found.path.name, found.sha256) if found is not None else None]
    dist.broadcast_object_list(chosen, src=0)
    if chosen[0] is not None and not rank.is_first:
        name, sha256 = chosen[0]
        try:
            with rank.busy("reading a checkpoint"):
                found = load_exact(folder / name, sha256, needs)
        except TrainingError as failure:
            error = (
                f"rank {rank.rank} does not have the checkpoint that rank 0 resumes from: {failure}; all machines "
                "must see the same folder"
            )
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, error)
    if any(told):
        raise TrainingError(next(text for text in told if text))
    return found


def epoch_json(epoch: EpochResult) -> dict[str, Any]:
    """The epoch as a JSON record, for --json and the run's log file."""
    return {**asdict(epoch), "loss": epoch.loss}
