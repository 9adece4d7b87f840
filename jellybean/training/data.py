"""Training data in memory, and how each iteration's samples are cut into micro-batches: the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jellybean.documents.training import FolderSpec, TrainingDocument
from jellybean.pipeline.user_functions import load_function
from jellybean.training.errors import TrainingError
from jellybean_agent import describe_error

Pair = tuple[torch.Tensor, torch.Tensor]
_SHAPE = "it must return {'train': (inputs, targets), 'test': (inputs, targets)}, one row per sample"


@dataclass(frozen=True)
class Data:
    """Rows of inputs and targets. `labels`: of a folder."""

    train: Pair
    test: Pair
    labels: tuple[str, ...] = ()


def load_data(document: TrainingDocument, directory: Path) -> Data:
    """What the document names. TrainingError when it is no data."""
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
    return Data(train, test)


def _pair(given: Any, name: str, part: str) -> Pair:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TrainingError(f"{name}, {part}: {_SHAPE}; it has {_told(given)}")
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
        targets = targets.long()  # classes, as torch's losses take them
    return inputs, targets


def _told(given: Any) -> str:
    return f"{len(given)} of them" if isinstance(given, tuple | list) else f"a {type(given).__name__}"


def _folder(spec: FolderSpec, directory: Path, seed: int) -> Data:
    from PIL import Image

    root = directory / spec.folder
    folders = [path for path in _shown(root) if path.is_dir()] if root.is_dir() else []
    labels = [path.name for path in folders]
    files = [(path, label) for label, name in enumerate(labels) for path in _shown(root / name)]
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
    return Data((inputs[train], targets[train]), (inputs[test], targets[test]), tuple(labels))


def _shown(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@dataclass(frozen=True)
class Rows:
    """The rows of one replica's micro-batches in an iteration. `counted[m]`: samples of the update that m is in."""

    own: tuple[torch.Tensor, ...]
    counted: tuple[int, ...]


@dataclass(frozen=True)
class Cutter:
    """Cuts epochs into iterations of `microbatches`, `period` of them per update. A flush has one update an iteration,
    of all that is left at the end of an epoch; without one an epoch is a single iteration of whole updates, and a few
    samples wait for another epoch's order.
    """

    samples: int
    batch: int
    microbatches: int
    replicas: int
    seed: int
    period: int | None = None  # of schedules without a flush

    @property
    def iterations(self) -> int:
        """Of an epoch."""
        if self.period is not None:
            return 1
        least = self.microbatches * self.replicas
        whole, left = divmod(self.samples, self.batch)
        return whole + (left >= least)

    @property
    def size(self) -> int:
        """Samples of a micro-batch, where there is no flush."""
        return self.batch // (self.microbatches * self.replicas)

    @property
    def run(self) -> int:
        """Micro-batches of an iteration, per replica."""
        if self.period is None:
            return self.microbatches
        return self.samples // (self.size * self.replicas) // self.period * self.period

    @property
    def updates(self) -> int:
        """Of an epoch."""
        return self.iterations if self.period is None else self.run // self.period

    def rows(self, epoch: int, iteration: int, replica: int) -> Rows:
        """Micro-batches of a replica; all together they hold every sample of the iteration once."""
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
        return Rows(tuple(every[replica]), tuple(sums[number // period] for number in range(self.run)))


@dataclass(frozen=True)
class RowFeed:
    """One iteration of a replica, from rows of data that lie in memory."""

    data: Pair
    rows: Rows
    device: torch.device
    step: int
    replica: int

    def inputs(self, microbatch: int) -> tuple[torch.Tensor]:
        """Of the first stage."""
        return (self.data[0][self.rows.own[microbatch]].to(self.device),)

    def target(self, microbatch: int) -> torch.Tensor:
        """Of the loss."""
        return self.data[1][self.rows.own[microbatch]].to(self.device)

    def factor(self, microbatch: int) -> float:
        """Share of the samples of its update."""
        return len(self.rows.own[microbatch]) / self.rows.counted[microbatch]

    def seed(self, microbatch: int, stage: int) -> int:
        """The same whenever this forward is run again."""
        return hash((self.step, self.replica, microbatch, stage)) & 0x7FFFFFFF


Loss = Callable[[Any, Any], Any]


def load_loss(document: TrainingDocument, directory: Path) -> Loss:
    """The function of outputs and targets, a mean over samples."""
    if document.loss == "cross_entropy":
        return _cross_entropy
    if document.loss == "mse":
        return _mse
    place, _, name = document.loss.rpartition(":")
    return load_function(place, name, directory)


def load_model(document: TrainingDocument, directory: Path) -> torch.nn.Module:
    """The module, made under the document's seed so that every rank has the same."""
    place, _, name = document.model.rpartition(":")
    torch.manual_seed(document.seed)
    made = load_function(place, name, directory)()
    made = made[0] if isinstance(made, tuple) else made  # as `pipeline profile` takes them, with inputs
    if not isinstance(made, torch.nn.Module):
        raise TrainingError(f"{document.model} returned {type(made).__name__}; it must return a torch.nn.Module")
    return made.train()


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    return torch.nn.functional.cross_entropy(outputs, targets)


def _mse(outputs: Any, targets: Any) -> Any:
    return torch.nn.functional.mse_loss(outputs, targets)
