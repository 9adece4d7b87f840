"""Checkpoints: all or nothing, checked when read, usable on another number of stages or by another schedule.

A checkpoint is a folder `epoch-N`, N epochs done: per rank a safetensors file with weights, buffers and optimizer
states under the names that the model gives its parameters, and a manifest with every file's sha256. It is written
beside and renamed when all ranks are done, so a killed run leaves the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from jellybean.training.errors import TrainingError
from jellybean_agent import describe_error

VERSION = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"epoch-(\d+)")
Tensors = dict[str, torch.Tensor]
_BROKEN = (OSError, ValueError, KeyError, SafetensorError)


@dataclass(frozen=True)
class Loaded:
    """`sha256`: of the manifest, so of everything. `tensors`: of all ranks. `told`: what the run said of itself.
    `skipped`: newer ones that are broken, in words.
    """

    path: Path
    sha256: str
    tensors: Tensors
    told: dict[str, Any]
    skipped: tuple[str, ...] = ()


def rank_file(rank: int) -> str:
    """What a rank writes."""
    return f"rank-{rank}.safetensors"


def partial_folder(folder: Path, epochs: int) -> Path:
    """Where a checkpoint is until it is whole."""
    return folder / f".epoch-{epochs}.partial"


def write_part(folder: Path, epochs: int, rank: int, tensors: Tensors) -> str:
    """One rank's file, on disk when this returns; its sha256. TrainingError when it cannot be written."""
    place = partial_folder(folder, epochs)
    try:
        place.mkdir(parents=True, exist_ok=True)
        path = place / rank_file(rank)
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path)
        _sync(path)
        return _sha256(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"the checkpoint of epoch {epochs} cannot be written to {place}: {describe_error(error)}"
        ) from error


def finish(folder: Path, epochs: int, hashes: Mapping[int, str], told: Mapping[str, Any], keep: int) -> Path:
    """The manifest, the rename, and the oldest away; for one rank, when all have written their parts.

    Only what is older than this one goes: newer ones are broken, or were when the run went on from before them.
    """
    place, final = partial_folder(folder, epochs), folder / f"epoch-{epochs}"
    try:
        files = {rank_file(rank): sha256 for rank, sha256 in sorted(hashes.items())}
        path = place / MANIFEST
        manifest = {"version": VERSION, "epochs": epochs, "files": files, **told}
        path.write_text(json.dumps(manifest), encoding="utf-8")
        _sync(path)
        _sync(place)
        if final.exists():
            shutil.rmtree(final)
        place.rename(final)
        _sync(folder)
    except OSError as error:
        raise TrainingError(
            f"the checkpoint of epoch {epochs} cannot be written to {place}: {describe_error(error)}"
        ) from error
    for old in [path for number, path in _found(folder) if number < epochs][keep - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def save_model(module: torch.nn.Module, folder: Path) -> Path:
    """The whole model's weights and buffers as `model.safetensors`; shared weights once for each name."""
    path = folder / "model.safetensors"
    partial = path.with_name(f".{path.name}.partial")
    tensors = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial)
        _sync(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the model cannot be written to {path}: {describe_error(error)}") from error
    return path


def refuse_unwritable(folder: Path) -> None:
    """TrainingError where no checkpoint could be written: told before an epoch is spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"checkpoints cannot be written to {folder}: {describe_error(error)}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TrainingError(f"checkpoints cannot be written to {folder}: it is read-only; change its owner or mount")


def clear_partial(folder: Path) -> None:
    """What killed runs left half written."""
    for path in folder.glob(".epoch-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def newest(folder: Path) -> int:
    """Epochs of the newest one, by its name; 0 where there is none."""
    return max((epochs for epochs, _ in _found(folder)), default=0)


def load_newest(folder: Path) -> Loaded | None:
    """The newest whole checkpoint; None where there is none at all. TrainingError where all are broken.

    For one rank, which tells the others: what one can read another may not, and all must go on from the same.
    """
    skipped: list[str] = []
    for _, path in _found(folder):
        try:
            return _load(path, tuple(skipped))
        except _BROKEN as error:
            skipped.append(f"{path} is not used: {_why(error)}")
    if skipped:
        raise TrainingError("no checkpoint can be used; --fresh begins anew\n" + "\n".join(skipped))
    return None


def load_same(path: Path, sha256: str) -> Loaded:
    """The checkpoint whose manifest has this sha256, and no other. TrainingError where it is not found here."""
    try:
        found = _load(path, ())
    except _BROKEN as error:
        raise TrainingError(f"{path} cannot be read: {_why(error)}") from error
    if found.sha256 != sha256:
        raise TrainingError(f"{path} is another one (sha256 {found.sha256[:12]} in place of {sha256[:12]})")
    return found


def _why(error: Exception) -> str:
    return f"{MANIFEST} has no {error}" if isinstance(error, KeyError) else describe_error(error, name=True)


def _load(path: Path, skipped: tuple[str, ...]) -> Loaded:
    manifest = (path / MANIFEST).read_bytes()
    told = json.loads(manifest)
    if not isinstance(told, dict) or not isinstance(told["files"], dict) or path.name != f"epoch-{told['epochs']}":
        raise ValueError(f"its {MANIFEST} is none, or of another epoch")
    if told["version"] != VERSION:
        raise ValueError(f"it is of version {told['version']}, and {VERSION} is read here")
    tensors: Tensors = {}
    for name, sha256 in told["files"].items():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{name} is no file of it")
        if _sha256(path / name) != sha256:
            raise ValueError(f"{name} is torn or was changed (its sha256 differs)")
        tensors |= load_file(path / name)
    return Loaded(path, hashlib.sha256(manifest).hexdigest(), tensors, told, skipped)


def _found(folder: Path) -> Iterator[tuple[int, Path]]:
    """The newest first."""
    paths = [(int(match[1]), path) for path in folder.glob("epoch-*") if (match := _NAME.fullmatch(path.name))]
    yield from sorted(paths, reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
