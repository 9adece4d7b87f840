"""Training data in memory, and how its samples are divided into micro-batches: identical on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jellybean.documents.training import FolderSpec, TrainingDocument
from jellybean.pipeline.user_functions import load_function
from jellybean.training.errors import TrainingError
from jellybean.training.stages.stage import LossFunction
from jellybean_agent import describe_error

Samples = tuple[torch.Tensor, torch.Tensor]
_SHAPE = "it must return {'train': (inputs, targets), 'test': (inputs, targets)}, one row per sample"


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
        raise TrainingError(f"{document.data} returned {type(given).__name__}; {_SHAPE}")
    train, test = (_pair(given[part], document.data, part) for part in ("train", "test"))
    for what, one, other in zip(("inputs", "targets"), train, test, strict=True):
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            told = [f"{value.dtype} {list(value.shape[1:])}".removeprefix("torch.") for value in (one, other)]
            raise TrainingError(f"{document.data}: a row of {what} is {told[0]} in train and {told[1]} in test")
    return TrainingData(train, test)


def _pair(given: Any, name: str, part: str) -> Samples:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TrainingError(f"{name}, {part}: {_SHAPE}; it has {_describe(given)}")
    try:
        inputs, targets = (torch.as_tensor(value) for value in given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrainingError(f"{name}, {part}: {_SHAPE}, as arrays of numbers: {error}") from error
    if not inputs.dim() or not targets.dim() or not len(inputs) or len(inputs) != len(targets):
        shapes = [list(value.shape) for value in (inputs, targets)]
        raise TrainingError(f"{name}, {part}: inputs of shape {shapes[0]} and targets of shape {shapes[1]}; {_SHAPE}")
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        row = int(torch.nonzero(~torch.isfinite(inputs.flatten(1)).all(1))[0])
        raise TrainingError(f"{name}, {part}: row {row} of the inputs has nan or infinity")
    if not targets.is_floating_point() and not targets.is_complex():
        targets = targets.long()  # class indices must be int64 for torch's losses
    return inputs, targets


def _describe(given: Any) -> str:
    return f"{len(given)} of them" if isinstance(given, tuple | list) else f"a {type(given).__name__}"


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
    return TrainingData((inputs[train], targets[train]), (inputs[test], targets[test]), tuple(labels))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@dataclass(frozen=True)
class IterationSamples:
    """Samples of one replica in an iteration. `own[m]`: sample indices of micro-batch m.

    `counted[m]`: number of samples in the update to which micro-batch m belongs, over all replicas.
    """

    own: tuple[torch.Tensor, ...]
    counted: tuple[int, ...]


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
        sums = [
            sum(len(part) for own in every for part in own[first : first + period])
            for first in range(0, self.run, period)
        ]
        return IterationSamples(tuple(every[replica]), tuple(sums[number // period] for number in range(self.run)))


@dataclass(frozen=True)
class DatasetFeed:
    """The micro-batches of one iteration of a replica, from data in memory (`MicrobatchFeed`)."""

    data: Samples
    rows: IterationSamples
    device: torch.device
    step: int
    replica: int

    def inputs(self, microbatch: int) -> tuple[torch.Tensor]:
        """Input of the first stage."""
        return (self.data[0][self.rows.own[microbatch]].to(self.device),)

    def target(self, microbatch: int) -> torch.Tensor:
        """Target of the loss."""
        return self.data[1][self.rows.own[microbatch]].to(self.device)

    def factor(self, microbatch: int) -> float:
        """Weight of the micro-batch's mean loss in the loss of its update: its share of the samples."""
        return len(self.rows.own[microbatch]) / self.rows.counted[microbatch]

    def seed(self, microbatch: int, stage: int) -> int:
        """Random seed of a stage's forward; the same when the forward is recomputed."""
        return hash((self.step, self.replica, microbatch, stage)) & 0x7FFFFFFF


def load_loss(document: TrainingDocument, directory: Path) -> LossFunction:
    """The loss function (outputs, targets) -> mean over samples."""
    if document.loss == "cross_entropy":
        return _cross_entropy
    if document.loss == "mse":
        return _mse
    place, _, name = document.loss.rpartition(":")
    return load_function(place, name, directory)


def load_model(document: TrainingDocument, directory: Path) -> torch.nn.Module:
    """The module, constructed under the document's seed, so that all ranks have the same weights."""
    place, _, name = document.model.rpartition(":")
    torch.manual_seed(document.seed)
    made = load_function(place, name, directory)()
    made = made[0] if isinstance(made, tuple) else made  # (module, inputs), as for `pipeline profile`
    if not isinstance(made, torch.nn.Module):
        raise TrainingError(f"{document.model} returned {type(made).__name__}; it must return a torch.nn.Module")
    return made.train()


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    return torch.nn.functional.cross_entropy(outputs, targets)


def _mse(outputs: Any, targets: Any) -> Any:
    return torch.nn.functional.mse_loss(outputs, targets)
