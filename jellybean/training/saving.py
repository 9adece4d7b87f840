"""Saves and restores checkpoints: collective calls, so that all ranks go on from the same one or end with a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from jellybean.training.errors import TrainingError
from jellybean.training.processes.ranks import Rank
from jellybean.training.setup import RankRun


def run_folder(directory: Path) -> Path:
    """The folder of a run's checkpoints, logs and model."""
    return directory / "training"


def save_checkpoint(
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
            "loss_scale": scale.state() if (scale := run.updates.loss_scale) is not None else None,
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


def resume(
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
    scale = run.updates.loss_scale
    if scale is not None and found.manifest.get("loss_scale"):
        scale.restore(found.manifest["loss_scale"])
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
