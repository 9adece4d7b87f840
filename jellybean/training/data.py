"""Training data in memory, and how its samples are divided into micro-batches: identical on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jellybean.documents.training import FolderSpec, TrainingDocument
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.pipeline.user_functions import load_function
from jellybean.training.errors import TrainingError
from jellybean.training.losses import MODEL
from jellybean.training.samples import SHAPE, Samples, read_samples
from jellybean_agent import describe_error


@dataclass(frozen=True)
class TrainingData:
    """Training and test samples. `labels`: class names, for a folder of pictures."""

    train: Samples
    test: Samples
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
    return TrainingData(train, test)


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
    return TrainingData(parts[0], parts[1], tuple(labels))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@dataclass(frozen=True)
class IterationSamples:
    """Samples of one replica in an iteration. `own[m]`: sample indices of micro-batch m.

    `updates[u]`: sample indices of update u over all replicas; `period` micro-batches of a replica are one update.
    """

    own: tuple[torch.Tensor, ...]
    updates: tuple[torch.Tensor, ...]
    period: int

    @property
    def counted(self) -> tuple[int, ...]:
        """Number of samples in the update to which each micro-batch belongs, over all replicas."""
        return tuple(len(self.updates[number // self.period]) for number in range(len(self.own)))


@dataclass(frozen=True)
class MicrobatchSampler:
    """Divides epochs of `samples` samples into iterations, and iterations into micro-batches.

    With a flush (`period` None), an iteration is one update of `batch` samples over all replicas, in `microbatches`
    micro-batches per replica; the last iteration of an epoch may be smaller. Without a flush, an epoch is a single
    iteration with one update per `period` micro-batches of `size` samples; left-over samples are skipped in that epoch.
    """

    samples: int
    batch: int
    microbatches: int
    replicas: int
    seed: int
    period: int | None = None  # None: schedules with a flush

    @property
    def iterations(self) -> int:
        """Iterations per epoch."""
        if self.period is not None:
            return 1
        least = self.microbatches * self.replicas
        whole, left = divmod(self.samples, self.batch)
        return whole + (left >= least)

    @property
    def size(self) -> int:
        """Samples per micro-batch, for schedules without a flush."""
        return self.batch // (self.microbatches * self.replicas)

    @property
    def run(self) -> int:
        """Micro-batches per iteration and replica."""
        if self.period is None:
            return self.microbatches
        return self.samples // (self.size * self.replicas) // self.period * self.period

    @property
    def updates(self) -> int:
        """Updates per epoch."""
        return self.iterations if self.period is None else self.run // self.period

    def rows(self, epoch: int, iteration: int, replica: int) -> IterationSamples:
        """The samples of a replica in an iteration. Over all replicas, every sample of the iteration occurs once."""
        maker = torch.Generator().manual_seed((self.seed << 20) + epoch)
        order = torch.randperm(self.samples, generator=maker)
        if self.period is None:
            chosen = order[iteration * self.batch : (iteration + 1) * self.batch]
            parts = chosen.tensor_split(self.run * self.replicas)
            period = self.run
        else:
            parts = order[: self.run * self.replicas * self.size].split(self.size)
            period = self.period
        every = [parts[first :: self.replicas] for first in range(self.replicas)]
        updates = tuple(
            torch.cat([part for own in every for part in own[first : first + period]])
            for first in range(0, self.run, period)
        )
        return IterationSamples(tuple(every[replica]), updates, period)


@dataclass(frozen=True)
class DatasetFeed:
    """The micro-batches of one iteration of a replica, from data in memory (`MicrobatchFeed`)."""

    data: Samples
    rows: IterationSamples
    device: torch.device
    step: int
    replica: int
    base_seed: int

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The model's tensors with these indices."""
        rows = self.rows.own[microbatch]
        return tuple(self.data.inputs.tensors[index][rows].to(self.device) for index in arguments)

    def target(self, microbatch: int) -> Any:
        """Second argument of the loss."""
        return self.data.target(self.rows.own[microbatch], self.device)

    def factor(self, microbatch: int) -> float:
        """Weight of the micro-batch's mean loss in the loss of its update: its share of what counts in it."""
        update = self.rows.updates[microbatch // self.rows.period]
        return self.data.weight(self.rows.own[microbatch]) / max(1.0, self.data.weight(update))

    def seed(self, microbatch: int, stage: int) -> int:
        """Random seed of a stage's forward; the same when the forward is recomputed."""
        return hash((self.base_seed, self.step, self.replica, microbatch, stage)) & 0x7FFFFFFF
