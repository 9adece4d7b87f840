"""The training loop: epochs of iterations, evaluated, logged and checkpointed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jellybean.documents.training import TrainingDocument
from jellybean.training.checkpoints.position import Position
from jellybean.training.early_stop import Metrics, reason_to_stop, why_undefined
from jellybean.training.epoch import EpochResult, EpochStart, SaveUpdates, run_epoch
from jellybean.training.errors import TrainingError, UntrainableError
from jellybean.training.optimization.lr_schedules import LrSchedule, make_lr_schedule
from jellybean.training.saving import Progress, best_position, restore_best, resume, save_checkpoint
from jellybean.training.setup import RankRun

_RECENT = 5  # number of last epochs over which the remaining time is estimated


OnEpoch = Callable[[EpochResult], None]
RunEpoch = Callable[[RankRun, TrainingDocument, EpochStart, LrSchedule, SaveUpdates], EpochResult]


@dataclass(frozen=True)
class TrainedRun:
    """What a run did. `epochs`: those trained now, without those of earlier runs that it resumes.

    `model_epoch`: the epoch, counted from 1, whose weights the model has: the last one, or the best by `early_stop`.
    `model_metrics`: its test loss, as `loss`, and metrics on the test rows; empty where not recorded.
    """

    epochs: list[EpochResult]
    model_epoch: int
    model_metrics: Metrics


def train(
    run: RankRun,
    document: TrainingDocument,
    directory: Path,
    on_epoch: OnEpoch,
    warn: Callable[[str], None],
    train_epoch: RunEpoch = run_epoch,
    log: OnEpoch | None = None,
) -> TrainedRun:
    """Train the remaining epochs, and end with the weights of the last one or of the best.

    A collective call; only rank 0 calls `log` and `on_epoch`. `log`: writes an epoch down before its checkpoint, so
    that no epoch is missing in the log of a run that is killed; a resumed run writes it again. `on_epoch`: reports an
    epoch after its checkpoint, so that one that is reported is not lost.
    """
    _check_updates(run, document)
    lr = make_lr_schedule(document.lr_schedule, run.optimizer, run.sampler.updates, document.epochs, directory)
    progress = resume(run, document, directory, warn)
    _repeat(lr, progress)

    def save(losses: list[float]) -> None:
        save_checkpoint(run, document, directory, replace(progress, losses=losses))

    results: list[EpochResult] = []
    ends_s = [time.perf_counter()]
    reason = reason_to_stop(document.early_stop, progress.history)
    for number in range(progress.position.epochs, document.epochs):
        if reason:
            break
        measured = train_epoch(run, document, EpochStart(number, progress.losses), lr, save)
        progress.losses = []
        ends_s.append(time.perf_counter())
        epoch = replace(measured, left_s=left_s(ends_s, document.epochs - number - 1))
        results.append(epoch)
        progress.history.append({**epoch.metrics, "loss": epoch.test_loss})
        lr.end_epoch(epoch.test_loss)
        reason = reason_to_stop(document.early_stop, progress.history)
        undefined = why_undefined(document.early_stop, progress.history)
        if run.rank.is_first and log is not None:
            log(epoch)
        if reason or undefined or _is_saved(document, progress):
            save_checkpoint(run, document, directory, progress)
        if run.rank.is_first:
            on_epoch(epoch)
        if undefined:
            raise TrainingError(undefined)
    if reason and run.rank.is_first:
        warn(reason)
    model_epoch = _end_with_best(run, document, directory, progress, warn)
    run.transport.close()
    return TrainedRun(results, model_epoch, progress.history[model_epoch - 1])


def _repeat(lr: LrSchedule, progress: Progress) -> None:
    """Show the learning rate's schedule the test losses of the epochs that a run resumes after."""
    for metrics in progress.history:
        if (loss := metrics.get("loss")) is not None:
            lr.end_epoch(loss)


def _is_saved(document: TrainingDocument, progress: Progress) -> bool:
    """Whether there is a checkpoint after the last epoch done: if it is due, or for its weights, which are the best."""
    epochs = progress.position.epochs
    is_best = best_position(document, progress) == Position(epochs)
    return is_best or epochs == document.epochs or epochs % document.checkpoint.every == 0


def _end_with_best(
    run: RankRun, document: TrainingDocument, directory: Path, progress: Progress, warn: Callable[[str], None]
) -> int:
    """Restore the weights of the best epoch, if there is one; returns the epoch whose weights the model has."""
    restored = restore_best(run, document, directory, progress)
    if restored is None:
        return progress.position.epochs
    if run.rank.is_first:
        warn(f"the trained model has the weights of epoch {restored}, the best{' that was kept' * bool(progress.lost)}")
    return restored


def _check_updates(run: RankRun, document: TrainingDocument) -> None:
    """TrainingError if checkpoints within an epoch are asked of a schedule that does not stop there."""
    if document.checkpoint.updates is not None and not run.schedule.flushes:
        raise UntrainableError(
            f"checkpoint.updates: {run.choice.name} runs an epoch without interruption: remove it, or take a schedule "
            "with a flush"
        )


def left_s(ends_s: Sequence[float], epochs: int) -> float:
    """Estimated seconds of `epochs` more epochs: mean over the last `_RECENT`, checkpoints included.

    `ends_s`: the start of the first epoch, then the end of each.
    """
    recent = ends_s[-1 - _RECENT :]
    return epochs * (recent[-1] - recent[0]) / (len(recent) - 1)
