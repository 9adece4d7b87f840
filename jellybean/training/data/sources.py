"""Recognises what a data function returned for train or test: arrays, a data set, a DataLoader or a stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.data import FunctionSpec
from jellybean.training.data.batches import RowFormat, Stream
from jellybean.training.data.loaded_rows import LoadedRows, MapSource, Order, StreamSource
from jellybean.training.data.randomness import Randomness, epoch_order, epoch_seed, seed_by
from jellybean.training.data.rows import MemoryRows, RowSource
from jellybean.training.errors import TrainingError
from jellybean.training.losses import MODEL
from jellybean.training.samples import read_samples

_TRAIN = "train"


@dataclass(frozen=True)
class SourceSettings:
    """Settings of one part of the data. `stated`: rows per epoch that the document gives; None: the source's own."""

    name: str
    part: str
    seed: int
    batch: int
    targets: bool
    workers: int | None
    stated: int | None

    @staticmethod
    def of(document: TrainingDocument, spec: FunctionSpec, part: str) -> SourceSettings:
        """Those of the document for train or test."""
        stated = spec.rows_per_epoch if part == _TRAIN else spec.test_rows
        targets = document.loss.function != MODEL
        return SourceSettings(spec.function, part, document.seed, document.batch, targets, spec.workers, stated)

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.name}, {self.part}"

    @property
    def length_key(self) -> str:
        """The key of the document that gives the number of rows."""
        return "rows_per_epoch" if self.part == _TRAIN else "test_rows"

    def form(self, collate: Callable[[list[Any]], Any] = default_collate) -> RowFormat:
        """How rows become micro-batches."""
        return RowFormat(self.name, self.part, self.targets, collate)


def find_source(given: Any, settings: SourceSettings) -> RowSource:
    """The rows that a function returned. TrainingError if they cannot be read, or not by several processes alike."""
    if isinstance(given, DataLoader):
        return _from_loader(given, settings)
    if hasattr(given, "__next__"):
        raise TrainingError(
            f"{settings.where}: it has a {type(given).__name__}, which can be read only once: give the function that "
            "makes it, without calling it"
        )
    if isinstance(given, tuple | list | Mapping | torch.Tensor | np.ndarray):
        if settings.stated is not None:
            raise TrainingError(
                f"{settings.where}: data.{settings.length_key} is for data sets and streams, and the function returns "
                "arrays: remove it"
            )
        samples = read_samples(given, settings.name, settings.part, targets=settings.targets)
        return MemoryRows(samples, settings.part, settings.seed if settings.part == _TRAIN else None)
    options = {"num_workers": settings.workers or 0}
    if not isinstance(given, IterableDataset) and hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        shuffled = _Shuffle(len(given), settings.seed) if settings.part == _TRAIN else _in_order
        return _map_rows(given, shuffled, len(given), settings, settings.form(), options)
    if hasattr(given, "__iter__") or callable(given):
        return _stream_rows(given, settings, settings.form(), options)
    samples = read_samples(given, settings.name, settings.part, targets=settings.targets)  # reports what is expected
    return MemoryRows(samples, settings.part)


def _map_rows(
    dataset: Any, order: Order, count: int, settings: SourceSettings, form: RowFormat, options: Mapping[str, Any]
) -> LoadedRows:
    rows = settings.stated if settings.stated is not None else count
    if not 0 < rows <= count:
        raise TrainingError(f"{settings.where}: it has {count:,} rows; data.{settings.length_key} is {rows:,}")
    return LoadedRows(MapSource(dataset, form, rows, order, settings.seed), form, options)


def _stream_rows(given: Any, settings: SourceSettings, form: RowFormat, options: Mapping[str, Any]) -> LoadedRows:
    rows = settings.stated
    if rows is None and hasattr(given, "__len__"):
        rows = len(given)
    if rows is None:
        raise TrainingError(
            f"{settings.where}: a stream has no length, and all processes must know where an epoch ends: write "
            f"data: {{function: {settings.name}, {settings.length_key}: ROWS}}"
        )
    if options["num_workers"] > 1:
        raise TrainingError(
            f"{settings.where}: {options['num_workers']} workers would each read the whole stream: write workers: 1, "
            "or give a data set with __getitem__ and __len__"
        )
    return LoadedRows(StreamSource(_opener(given), form, rows, settings.seed), form, options)


def _opener(given: Any) -> Stream:
    """How a stream is opened for an epoch. A function that takes an argument gets the epoch, from 0."""
    if hasattr(given, "__iter__"):
        return _Reopened(given)
    try:
        takes_epoch = bool(inspect.signature(given).parameters)
    except (TypeError, ValueError):
        takes_epoch = False
    return given if takes_epoch else _WithoutEpoch(given)


@dataclass(frozen=True)
class _Reopened:
    stream: Any

    def __call__(self, epoch: int) -> Any:
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)
        return iter(self.stream)


@dataclass(frozen=True)
class _WithoutEpoch:
    function: Callable[[], Any]

    def __call__(self, epoch: int) -> Any:
        return self.function()


def _in_order(epoch: int) -> torch.Tensor | None:
    return None


@dataclass(frozen=True)
class _Shuffle:
    """Another order in each epoch."""

    rows: int
    seed: int

    def __call__(self, epoch: int) -> torch.Tensor:
        return epoch_order(self.rows, self.seed, epoch)


@dataclass(frozen=True)
class _SamplerOrder:
    """The order of a sampler of the user, whose generators are seeded by the epoch."""

    sampler: Any
    seed: int
    where: str

    def __call__(self, epoch: int) -> torch.Tensor:
        with Randomness(self.seed, epoch).active():
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            if isinstance(getattr(self.sampler, "generator", None), torch.Generator):
                self.sampler.generator.manual_seed(epoch_seed(self.seed, epoch))
            seed_by(self.seed, epoch)
            order = torch.tensor(list(self.sampler), dtype=torch.long)
        if len(order) != len(self.sampler):
            raise TrainingError(
                f"{self.where}: its sampler gives {len(order)} rows, and its length is {len(self.sampler)}"
            )
        return order


def _from_loader(loader: DataLoader[Any], settings: SourceSettings) -> LoadedRows:
    """The rows of a DataLoader: its data set, collate_fn, sampler and workers. The document has the batch size."""
    where = settings.where
    if loader.batch_size is None:
        raise TrainingError(f"{where}: its DataLoader has batch_size=None or a batch_sampler: give rows, one at a time")
    if loader.batch_size not in (1, settings.batch):
        raise TrainingError(
            f"{where}: its DataLoader has batch_size {loader.batch_size}, and the document batch {settings.batch}: "
            "leave batch_size out, as the document divides a batch into micro-batches"
        )
    workers = settings.workers if settings.workers is not None else loader.num_workers
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options |= {
            "worker_init_fn": loader.worker_init_fn,
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
        }
    form = settings.form(loader.collate_fn)
    if isinstance(loader.dataset, IterableDataset):
        return _stream_rows(loader.dataset, settings, form, options)
    order, count = _loader_order(loader, settings)
    if loader.drop_last and settings.part == _TRAIN and settings.stated is None:
        count -= count % settings.batch
    return _map_rows(loader.dataset, order, count, settings, form, options)


def _loader_order(loader: DataLoader[Any], settings: SourceSettings) -> tuple[Order, int]:
    """The order of a DataLoader's rows, and their number."""
    sampler, count = loader.sampler, len(loader.dataset)
    if isinstance(sampler, DistributedSampler):
        raise TrainingError(
            f"{settings.where}: its DataLoader has a DistributedSampler, which gives every process other rows: leave "
            "it out, as replicas divide a batch by themselves"
        )
    if isinstance(sampler, SequentialSampler):
        return _in_order, count
    plain = isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == count
    if plain:
        return (_Shuffle(count, settings.seed) if settings.part == _TRAIN else _in_order), count
    if not hasattr(sampler, "__len__"):
        raise TrainingError(f"{settings.where}: its DataLoader has a sampler without a length")
    return _SamplerOrder(sampler, settings.seed, settings.where), len(sampler)
