"""Saves and restores checkpoints: collective calls, so that all ranks go on from the same one or end with a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.references import RUN_FOLDER
from jellybean.training.checkpoints.checkpoint import (
    LoadedCheckpoint,
    check_writable,
    clear_partial,
    finish_checkpoint,
    load_at,
    load_exact,
    load_newest,
    write_rank_file,
)
from jellybean.training.checkpoints.position import Position, checkpoint_folder, checkpoints_in
from jellybean.training.checkpoints.states import WEIGHT, belongs_to, collect_state, restore_state, weight_of
from jellybean.training.checkpoints.tied_names import TensorsByAnyName, by_all_names
from jellybean.training.early_stop import Metrics, epoch_to_restore
from jellybean.training.errors import TrainingError
from jellybean.training.processes.ranks import Rank, gather_from_ranks
from jellybean.training.setup import RankRun
from jellybean.training.tensor_parallel.weights import PartsOf


def run_folder(directory: Path) -> Path:
    """The folder of a run's checkpoints, logs and model."""
    return directory / RUN_FOLDER


@dataclass
class Progress:
    """How far a run is, beside its tensors: what a checkpoint's manifest records.

    `history`: loss and metrics on the test rows after each epoch; empty where not recorded. `losses`: of the updates
    done in the epoch that follows. `lost`: epochs, counted from 1, whose weights `early_stop` cannot restore.
    """

    history: list[Metrics] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """Its checkpoint's position."""
        return Position(len(self.history), len(self.losses))


class _RankFile(NamedTuple):
    """What a rank has written of a checkpoint. `sha256`: None if it writes no file. `frozen`: fingerprints by name."""

    rank: int
    sha256: str | None
    frozen: dict[str, str]
    error: str


def save_checkpoint(run: RankRun, document: TrainingDocument, directory: Path, progress: Progress) -> None:
    """Write a checkpoint; if one rank fails, TrainingError on all ranks. A collective call."""
    folder, position = checkpoint_folder(directory), progress.position
    hashed: str | None = None
    frozen: dict[str, str] = {}
    error = ""
    try:
        if run.rank.replica == 0:
            with run.rank.busy("writing a checkpoint"):
                frozen = run.frozen.fingerprints()
                state = run.split.weights.whole_state(collect_state(run.held, run.updates), run.held)
                if run.rank.tensor_index == 0:
                    hashed = write_rank_file(folder, position, run.rank.rank, state)
    except TrainingError as failure:
        error = str(failure)
    written = gather_from_ranks(_RankFile(run.rank.rank, hashed, frozen, error))
    errors = [file.error for file in written if file.error]
    if not errors and run.rank.is_first:
        hashes = {file.rank: file.sha256 for file in written if file.sha256 is not None}
        fingerprints = {name: digest for file in written for name, digest in file.frozen.items()}
        facts = _facts(run, document, progress) | {"frozen": fingerprints}
        best = best_position(document, progress)
        try:
            with run.rank.busy("writing a checkpoint"):
                finish_checkpoint(folder, position, hashes, facts, document.checkpoint.keep, best)
        except TrainingError as failure:
            errors.append(str(failure))
    outcome = [errors[0] if errors else ""]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0]:
        raise TrainingError(f"{outcome[0]}; the previous checkpoint is intact, and the same command resumes from it")


def best_position(document: TrainingDocument, progress: Progress) -> Position | None:
    """Position of the checkpoint whose weights the run would end with; None: those that it has."""
    epoch = epoch_to_restore(document.early_stop, progress.history, progress.lost)
    return Position(epoch) if epoch is not None else None


def _facts(run: RankRun, document: TrainingDocument, progress: Progress) -> dict[str, Any]:
    scale = run.updates.loss_scale
    found = {
        "schedule": run.choice.name,
        "devices": run.schedule.devices,
        "optimizer": document.optimizer.name,
        "history": progress.history,
        "lost": progress.lost,
        "loss_scale": scale.state() if scale is not None else None,
    }
    return {**found, "losses": progress.losses, "division": _division(run, document)} if progress.losses else found


def _division(run: RankRun, document: TrainingDocument) -> dict[str, int]:
    """What decides which rows the updates of an epoch take, and which are left after some of them.

    The number of updates depends on microbatches x replicas, too: left-over rows make an update if they are as many.
    """
    return {
        "batch": document.batch,
        "rows": run.sampler.samples,
        "seed": document.seed,
        "updates": run.sampler.updates,
    }


def resume(run: RankRun, document: TrainingDocument, directory: Path, warn: Callable[[str], None]) -> Progress:
    """Restore the newest checkpoint, if any, and tell how far it is. A collective call."""
    found = agree_on_checkpoint(run.rank, checkpoint_folder(directory), belongs_to(run.held, run.tied_names))
    if found is None:
        return Progress()
    before, now = found.manifest["optimizer"], document.optimizer.name
    if before.lower() != now.lower():
        raise TrainingError(
            f"{found.path} has the state of {before}, which {now} cannot use: "
            f"--set optimizer.name={before} resumes, --fresh starts over"
        )
    if found.position.updates:
        _check_division(found, run, document)
    if run.rank.is_first:
        for line in found.skipped:
            warn(line)
        warn(f"resuming from {found.path}, after {found.position}")
    _check_names(run, found)
    _restore(run, found)
    _check_states(run, document, found)
    scale = run.updates.loss_scale
    if scale is not None and found.manifest.get("loss_scale"):
        scale.restore(found.manifest["loss_scale"])
    history = found.manifest.get("history", [{}] * found.position.epochs)
    progress = Progress(list(history), list(found.manifest.get("losses", ())), list(found.manifest.get("lost", ())))
    progress.lost += _newly_lost(run.rank, document, directory, progress, warn)
    return progress


def _newly_lost(
    rank: Rank, document: TrainingDocument, directory: Path, progress: Progress, warn: Callable[[str], None]
) -> list[int]:
    """Epochs without a checkpoint, if the best epoch is one of them. A collective call: rank 0 looks.

    A run without `early_stop`, or with another metric, mode or min_delta, did not keep the checkpoint of what is the
    best epoch now.
    """
    lost: list[int] = []
    best = best_position(document, progress)
    if best is not None and rank.is_first:
        kept = {position for position, _ in checkpoints_in(checkpoint_folder(directory))}
        if best not in kept:
            epochs = range(1, len(progress.history) + 1)
            lost = [epoch for epoch in epochs if Position(epoch) not in kept and epoch not in progress.lost]
            rest = [str(epoch) for epoch in epochs if Position(epoch) in kept]
            warn(
                f"early_stop: the checkpoint of {best}, the best so far, was not kept; the run ends with the weights "
                f"of the best of the epochs {', '.join([*rest, 'and those from now on'])}"
            )
    shared: list[Any] = [lost]
    dist.broadcast_object_list(shared, src=0)
    return list(shared[0])


def restore_best(run: RankRun, document: TrainingDocument, directory: Path, progress: Progress) -> int | None:
    """Restore the weights that the run ends with; returns their epoch, None if it has them. A collective call.

    TrainingError if the checkpoint of the best epoch is broken, or was deleted while the run went on.
    """
    best = best_position(document, progress)
    if best is None or best == progress.position:
        return None
    try:
        found = agree_on_checkpoint(run.rank, checkpoint_folder(directory), belongs_to(run.held, run.tied_names), best)
    except TrainingError as error:
        raise TrainingError(
            f"the weights of the best epoch cannot be restored: {error}\n--set early_stop.restore=last ends with those "
            "of the last epoch"
        ) from error
    if found is None:
        raise AssertionError(f"no checkpoint was loaded for {best}, and no error was raised")
    _restore(run, found)
    return best.epochs


def _restore(run: RankRun, found: LoadedCheckpoint) -> None:
    frozen = by_all_names(found.manifest.get("frozen", {}), run.tied_names)
    tensors = TensorsByAnyName(found.tensors, run.tied_names)
    with run.rank.busy("reading a checkpoint"):
        run.frozen.check(found.path, frozen, tensors)
        restore_state(PartsOf(tensors, run.split.weights, run.held), run.held, run.updates, frozen)


def _check_names(run: RankRun, found: LoadedCheckpoint) -> None:
    """TrainingError on all ranks if the checkpoint has a weight that the model does not have. A collective call."""
    own = {name for stage in run.held.values() for name in stage.versions.parameters}
    known = {name for names in gather_from_ranks([*own, *run.untrained]) for name in names}
    known |= {other for name in known for other in run.tied_names.get(name, ())}
    key = next((key for key in found.tensors if key.startswith(WEIGHT) and weight_of(key) not in known), None)
    if key is not None:
        raise TrainingError(
            f"the checkpoint is of another model: {key} is none of this model's weights; --fresh starts over"
        )


def _check_states(run: RankRun, document: TrainingDocument, found: LoadedCheckpoint) -> None:
    """TrainingError if the optimizer needs a state that the checkpoint lacks, as it had other arguments before."""
    keys = cache(run.optimizer.state_keys)  # of a few groups and dimensions
    for copy, optimizer in run.updates.optimizers.items():
        names = {id(value): name for name, value in run.held[copy].versions.parameters.items()}
        for parameter, state in optimizer.state.items():
            name = names[id(parameter)]
            needed = keys(run.optimizer.group_of[name], parameter.dim()) if state else frozenset[str]()
            missing = sorted(needed - state.keys())
            if missing:
                raise TrainingError(
                    f"{found.path} has no {missing[0]} of {name}, which {document.optimizer.name} needs as the "
                    "document sets it now: resume with the arguments of before; --fresh starts over"
                )


def _check_division(found: LoadedCheckpoint, run: RankRun, document: TrainingDocument) -> None:
    """TrainingError if the rest of the epoch would not have the rows that are left."""
    if not run.schedule.flushes:
        raise TrainingError(
            f"{found.path} is in the middle of an epoch, which {run.choice.name} runs without interruption: end it "
            f"with --set schedule={found.manifest['schedule']}, or delete the folder to resume from an earlier one"
        )
    now = _division(run, document)
    before = found.manifest["division"]
    for key, value in now.items():
        if before.get(key, value) != value:  # an early version did not record `updates`
            same = "as many microbatches x replicas as before" if key == "updates" else f"{key} {before[key]}"
            raise TrainingError(
                f"{found.path} is in the middle of an epoch with {key} {before[key]:,}, which is {value:,} now, so "
                f"that samples would be repeated or left out: end the epoch with {same}, or delete the folder to "
                "resume from an earlier one"
            )


def agree_on_checkpoint(
    rank: Rank, folder: Path, needs: Callable[[str], bool] = lambda name: True, position: Position | None = None
) -> LoadedCheckpoint | None:
    """The newest checkpoint that rank 0 can read, or that at `position`. TrainingError on all if one cannot read it.

    `needs`: whether this rank will read a tensor, by name. Rank 0 verifies all files, others those that they need.
    """
    found, error = None, ""
    if rank.is_first:
        try:
            with rank.busy("reading a checkpoint"):
                check_writable(folder)
                clear_partial(folder)
                found = load_newest(folder) if position is None else load_at(folder, position)
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
    errors = list(filter(None, gather_from_ranks(error)))
    if errors:
        raise TrainingError(errors[0])
    return found
