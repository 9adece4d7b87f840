"""Checkpoints: atomic, verified when read, independent of the number of stages and of the schedule.

A checkpoint is a folder `epoch-N` (N epochs done) or `epoch-N-update-M` (and M updates of the next epoch) with one
safetensors file per rank, which holds weights, buffers and optimizer states under the model's parameter names, and a
manifest with every file's sha256. It is written to a temporary folder and renamed when all ranks are done, so a killed
run leaves the previous checkpoint intact.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from jellybean.training.checkpoints.position import Position, checkpoints_in
from jellybean.training.checkpoints.tensor_files import TensorFiles
from jellybean.training.errors import TrainingError
from jellybean_agent import describe_error

VERSION = 2
_READ_VERSIONS = (1, VERSION)  # version 1 has no updates within an epoch
MANIFEST = "manifest.json"
MODEL_FILE = "model.safetensors"  # the trained model, beside the folder of checkpoints
NamedTensors = dict[str, torch.Tensor]
_READ_ERRORS = (OSError, ValueError, KeyError, SafetensorError)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint. `sha256`: of the manifest, which has the hashes of all files.

    `tensors`: of all ranks, read from disk when they are asked for. `manifest`: parsed. `skipped`: messages about newer
    checkpoints that are broken.
    """

    path: Path
    sha256: str
    tensors: TensorFiles
    manifest: dict[str, Any]
    skipped: tuple[str, ...] = ()

    @property
    def position(self) -> Position:
        """How far the run was."""
        return Position(self.manifest["epochs"], self.manifest.get("updates", 0))


def rank_file(rank: int) -> str:
    """File name of a rank's tensors."""
    return f"rank-{rank}.safetensors"


def partial_folder(folder: Path, position: Position) -> Path:
    """The temporary folder in which a checkpoint is written before it is complete."""
    return folder / f".{position.name}.partial"


def write_rank_file(folder: Path, position: Position, rank: int, tensors: NamedTensors) -> str:
    """Write one rank's file, synced to disk; returns its sha256. TrainingError if it cannot be written."""
    place = partial_folder(folder, position)
    try:
        place.mkdir(parents=True, exist_ok=True)
        path = place / rank_file(rank)
        save_file(_separate(tensors), path)
        _sync(path)
        return _sha256(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"the checkpoint of {position} cannot be written to {place}: {describe_error(error, file=place)}"
        ) from error


def finish_checkpoint(
    folder: Path,
    position: Position,
    hashes: Mapping[int, str],
    manifest: Mapping[str, Any],
    keep: int,
    best: Position | None = None,
) -> Path:
    """Write the manifest, rename the folder, delete old checkpoints; returns the checkpoint's folder.

    The `keep` newest ones stay, and the one at `best`. Called by one rank after all have written. Only older
    checkpoints are deleted; newer ones were found broken.
    """
    place, final = partial_folder(folder, position), folder / position.name
    try:
        files = {rank_file(rank): sha256 for rank, sha256 in sorted(hashes.items())}
        path = place / MANIFEST
        place_in_run = {"epochs": position.epochs, "updates": position.updates}
        manifest = {"version": VERSION, **place_in_run, "files": files, **manifest}
        path.write_text(json.dumps(manifest), encoding="utf-8")
        _sync(path)
        _sync(place)
        if final.exists():
            shutil.rmtree(final)
        place.rename(final)
        _sync(folder)
    except OSError as error:
        raise TrainingError(
            f"the checkpoint of {position} cannot be written to {place}: {describe_error(error)}"
        ) from error
    older = [(other, path) for other, path in checkpoints_in(folder) if other < position]
    for other, path in older[keep - 1 :]:
        if other != best:
            shutil.rmtree(path, ignore_errors=True)
    return final


def save_model(module: torch.nn.Module, folder: Path) -> Path:
    """Write the whole model's weights and buffers to `model.safetensors`; tied weights under each name."""
    path = folder / MODEL_FILE
    partial = path.with_name(f".{path.name}.partial")
    tensors = _separate(module.state_dict())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial)
        _sync(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise TrainingError(
            f"the model cannot be written to {path}: {describe_error(error)}; free space or mend the folder, and "
            "the same command writes it from the newest checkpoint"
        ) from error
    return path


def _separate(tensors: Mapping[str, torch.Tensor]) -> NamedTensors:
    """The tensors in host memory; those that share memory are copied, as safetensors asks for."""
    separate: NamedTensors = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        tensor = value.detach().cpu().resolve_neg().resolve_conj().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return separate


def check_writable(folder: Path) -> None:
    """TrainingError if checkpoints could not be written; checked before the first epoch."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(
            f"checkpoints cannot be written to {folder}: {describe_error(error, file=folder)}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TrainingError(f"checkpoints cannot be written to {folder}: it is read-only; change its owner or mount")


def clear_partial(folder: Path) -> None:
    """Delete incomplete checkpoints of killed runs."""
    for path in folder.glob(".epoch-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def history_in(path: Path) -> list[dict[str, float | None]]:
    """Loss and metrics on the test rows after each epoch, by a checkpoint's manifest; none if it cannot be read."""
    with suppress(OSError, ValueError, AttributeError):
        return list(json.loads((path / MANIFEST).read_bytes()).get("history", ()))
    return []


def load_newest(folder: Path) -> LoadedCheckpoint | None:
    """The newest valid checkpoint; None if there is none. TrainingError if all are broken.

    Called by rank 0 only, which broadcasts its choice: other ranks might be able to read a different one.
    """
    skipped: list[str] = []
    for _, path in checkpoints_in(folder):
        try:
            return _load(path, tuple(skipped))
        except _READ_ERRORS as error:
            skipped.append(f"{path} is not used: {_why(error)}")
    if skipped:
        raise TrainingError("no checkpoint can be used; --fresh starts over\n" + "\n".join(skipped))
    return None


def load_at(folder: Path, position: Position) -> LoadedCheckpoint:
    """The checkpoint at a position. TrainingError if it is gone or broken."""
    path = folder / position.name
    try:
        return _load(path, ())
    except _READ_ERRORS as error:
        raise TrainingError(f"{path} cannot be read: {_why(error)}") from error


def load_exact(path: Path, sha256: str, needs: Callable[[str], bool]) -> LoadedCheckpoint:
    """Load the checkpoint at `path`. TrainingError unless its manifest has this sha256.

    `needs`: whether the caller will read a tensor; only files with such tensors are verified.
    """
    try:
        checkpoint = _load(path, (), needs)
    except _READ_ERRORS as error:
        raise TrainingError(f"{path} cannot be read: {_why(error)}") from error
    if checkpoint.sha256 != sha256:
        raise TrainingError(f"{path} is another one (sha256 {checkpoint.sha256[:12]} in place of {sha256[:12]})")
    return checkpoint


def _why(error: Exception) -> str:
    return f"{MANIFEST} has no {error}" if isinstance(error, KeyError) else describe_error(error, name=True)


def _load(path: Path, skipped: tuple[str, ...], needs: Callable[[str], bool] = lambda name: True) -> LoadedCheckpoint:
    raw = (path / MANIFEST).read_bytes()
    manifest = json.loads(raw)
    if (
        not isinstance(manifest, dict)
        or not isinstance(manifest["files"], dict)
        or Position.of(path.name) != Position(manifest["epochs"], manifest.get("updates", 0))
    ):
        raise ValueError(f"its {MANIFEST} is malformed or of another epoch")
    if manifest["version"] not in _READ_VERSIONS:
        raise ValueError(f"it is of version {manifest['version']}, and versions up to {VERSION} are read here")
    path_of: dict[str, Path] = {}
    for name, sha256 in manifest["files"].items():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{name} is no file of this checkpoint")
        tensors = TensorFiles.of([path / name])
        if any(map(needs, tensors)) and _sha256(path / name) != sha256:
            raise ValueError(f"{name} is truncated or was changed (its sha256 differs)")
        path_of |= dict.fromkeys(tensors, path / name)
    return LoadedCheckpoint(path, hashlib.sha256(raw).hexdigest(), TensorFiles(path_of), manifest, skipped)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
