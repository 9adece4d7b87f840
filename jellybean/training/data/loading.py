"""Loads the document's data: what a function returns, or files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jellybean.documents.training import FolderSpec, TrainingDocument
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.pipeline.user_functions import load_function
from jellybean.training.data.rows import MemoryRows, RowSource
from jellybean.training.errors import TrainingError
from jellybean.training.losses import MODEL
from jellybean.training.samples import SHAPE, Samples, read_samples
from jellybean_agent import describe_error


@dataclass(frozen=True)
class TrainingData:
    """Training and test rows. `name`: of the source, for messages. `labels`: class names, for a folder of pictures."""

    train: RowSource
    test: RowSource
    name: str
    labels: tuple[str, ...] = ()


def load_data(document: TrainingDocument, directory: Path) -> TrainingData:
    """Load the document's data. TrainingError if it is malformed."""
    if isinstance(document.data, FolderSpec):
        return _folder(document.data, directory, document.seed)
    place, _, name = document.data.rpartition(":")
    given = load_function(place, name, directory)()
    if not isinstance(given, dict) or not {"train", "test"} <= set(given):
        raise TrainingError(f"{document.data} returned {type(given).__name__}; {SHAPE}")
    targets = document.loss != MODEL
    train, test = (read_samples(given[part], document.data, part, targets=targets) for part in ("train", "test"))
    for what, one, other in (("inputs", train.inputs, test.inputs), ("targets", train.targets, test.targets)):
        _check_alike(document.data, what, one, other)
    return TrainingData(MemoryRows(train, "train", document.seed), MemoryRows(test, "test"), document.data_name)


def _check_alike(name: str, what: str, train: CallArguments | None, test: CallArguments | None) -> None:
    """TrainingError if a row of the test samples has other arrays, shapes or types than one of the training samples."""
    if train is None or test is None:
        return
    told = [
        ", ".join(f"{value.dtype} {list(value.shape[1:])}".removeprefix("torch.") for value in part.tensors)
        for part in (train, test)
    ]
    if train.names != test.names:
        told = [", ".join(part.names) for part in (train, test)]
    if told[0] != told[1]:
        raise TrainingError(f"{name}: a row of {what} is {told[0]} in train and {told[1]} in test")


def _folder(spec: FolderSpec, directory: Path, seed: int) -> TrainingData:
    from PIL import Image

    root = directory / spec.folder
    folders = [path for path in _visible(root) if path.is_dir()] if root.is_dir() else []
    labels = [path.name for path in folders]
    files = [(path, label) for label, name in enumerate(labels) for path in _visible(root / name)]
    if len(labels) < 2 or len(files) < 2:
        raise TrainingError(f"{root}: {len(files)} pictures of {len(labels)} labels; write FOLDER/LABEL/PICTURE.png")
    pictures = []
    for path, _ in files:
        try:
            with Image.open(path) as picture:
                small = picture.convert("L" if spec.channels == 1 else "RGB").resize((spec.size, spec.size))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{path} is no picture: {describe_error(error)}") from error
        pictures.append(np.asarray(small, np.float32).reshape(spec.size, spec.size, spec.channels) / 255)
    inputs = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    targets = torch.tensor([label for _, label in files])
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed))
    apart = min(max(1, round(spec.heldout * len(files))), len(files) - 1)
    test, train = order[:apart], order[apart:]
    parts = [Samples(CallArguments.of([inputs[rows]]), CallArguments.of([targets[rows]])) for rows in (train, test)]
    return TrainingData(MemoryRows(parts[0], "train", seed), MemoryRows(parts[1], "test"), spec.folder, tuple(labels))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
