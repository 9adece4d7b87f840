"""Loads the document's data: what a function returns, or files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.data import CsvSpec, FolderSpec, FunctionSpec
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.pipeline.user_functions import load_function
from jellybean.training.data.pictures import read_pictures
from jellybean.training.data.rows import MemoryRows, RowSource
from jellybean.training.data.rules import RowRules
from jellybean.training.data.sources import SourceSettings, find_source
from jellybean.training.data.tables import read_csv
from jellybean.training.errors import TrainingError
from jellybean.training.losses import ROWS
from jellybean.training.samples import SHAPE, Samples


@dataclass(frozen=True)
class TrainingData:
    """Training and test rows. `name`: of the source, for messages. `labels`: class names, where these are texts.

    `counts`: what the loss counts, once that is known.
    """

    train: RowSource
    test: RowSource
    name: str
    labels: tuple[str, ...] = ()
    counts: str = ROWS

    def ruled(self, rules: RowRules) -> TrainingData:
        """The same with the rows' targets and weights, checked."""
        return replace(self, train=self.train.ruled(rules), test=self.test.ruled(rules), counts=rules.counts)


def load_data(document: TrainingDocument, directory: Path) -> TrainingData:
    """Load the document's data. TrainingError if it is malformed."""
    if isinstance(document.data, FolderSpec):
        samples, labels = read_pictures(document.data, directory)
        return _divided(samples, document, document.data.heldout, labels)
    if isinstance(document.data, CsvSpec):
        table = read_csv(document.data, directory, classes=document.loss.function == "cross_entropy")
        return _divided(table.samples, document, document.data.heldout, table.labels)
    spec = document.data if isinstance(document.data, FunctionSpec) else FunctionSpec(function=document.data)
    place, _, name = spec.function.rpartition(":")
    given = load_function(place, name, directory)()
    if not isinstance(given, dict):
        raise TrainingError(f"{spec.function} returned {type(given).__name__}; {SHAPE}")
    if missing := [part for part in ("train", "test") if part not in given]:
        raise TrainingError(f"{spec.function} returned a dict without {' and '.join(map(repr, missing))}; {SHAPE}")
    train, test = (find_source(given[part], SourceSettings.of(document, spec, part)) for part in ("train", "test"))
    if spec.workers and isinstance(train, MemoryRows) and isinstance(test, MemoryRows):
        raise TrainingError(f"data.workers is for data sets and streams, and {spec.function} returns arrays: remove it")
    one, other = train.example(2), test.example(2)
    _check_alike(spec.function, "inputs", one.inputs, other.inputs)
    _check_alike(spec.function, "targets", one.targets, other.targets)
    return TrainingData(train, test, spec.function)


def _divided(samples: Samples, document: TrainingDocument, heldout: float, labels: tuple[str, ...]) -> TrainingData:
    """A random share of the rows is held out for the test."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(document.seed))
    apart = min(max(1, round(heldout * len(samples))), len(samples) - 1)
    test, train = order[:apart], order[apart:]
    return TrainingData(
        MemoryRows(samples.take(train), "train", document.seed),
        MemoryRows(samples.take(test), "test"),
        document.data_name,
        labels,
    )


def _check_alike(name: str, what: str, train: CallArguments | None, test: CallArguments | None) -> None:
    """TrainingError if a row of the test samples has other arrays, shapes or types than one of the training samples."""
    if train is None or test is None:
        return
    formats = [
        ", ".join(f"{value.dtype} {list(value.shape[1:])}".removeprefix("torch.") for value in part.tensors)
        for part in (train, test)
    ]
    if train.names != test.names:
        formats = [", ".join(part.names) for part in (train, test)]
    if formats[0] != formats[1]:
        raise TrainingError(f"{name}: a row of {what} is {formats[0]} in train and {formats[1]} in test")
