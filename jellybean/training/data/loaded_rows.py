"""Rows of data sets and streams, which need not fit into memory: read as the schedule needs them."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from jellybean.training.data.batches import Batch, MapBatches, RowFormat, Stream, StreamBatches, kinds_of
from jellybean.training.data.coverage import covering_rows
from jellybean.training.data.digests import digest_of
from jellybean.training.data.rows import MicrobatchIndex, Reading, ReadPlan, RowDigest
from jellybean.training.data.rules import RowRules
from jellybean.training.errors import RankCrashError, TrainingError
from jellybean.training.losses import SUM, valid_targets
from jellybean.training.processes.environment import end_with_parent
from jellybean.training.samples import Samples
from jellybean.user_modules import RENAMED
from jellybean_agent import describe_error

Order = Callable[[int], torch.Tensor | None]  # epoch -> row numbers in the order of the epoch; None: their own
# Imported once by the fork server: otherwise each worker of each pass would import torch anew.
_PRELOADED = ["torch.utils.data", "jellybean.training.data.batches"]
_WORKER_ENDS_S = 1.0  # between the end of a worker's connection and that of its process
_FURTHER_ROWS = 64  # that are read where the first ones have no valid target
LoaderOptions = Mapping[str, Any]  # arguments of torch's DataLoader: workers and how they run


class BatchSource(Protocol):
    """A data set or a stream of rows."""

    @property
    def rows(self) -> int:
        """Number of rows of an epoch."""

    @property
    def skips(self) -> bool:
        """True if a rank may leave out rows of other replicas without reading them."""

    def batches(self, reading: Reading, options: LoaderOptions) -> Iterator[Batch]:
        """The micro-batches of a reading."""

    def example(self, size: int) -> Samples:
        """The first rows."""

    def spread(self, size: int) -> Samples:
        """Rows at even distances; the first ones of a stream."""


@dataclass(frozen=True)
class MapSource:
    """A map-style data set: rows have numbers."""

    dataset: Any
    form: RowFormat
    rows: int
    order: Order
    seed: int

    @property
    def skips(self) -> bool:
        """Any row can be read."""
        return True

    def batches(self, reading: Reading, options: LoaderOptions) -> Iterator[Batch]:
        """Micro-batches in the order of the epoch."""
        epoch, order = reading.plan.epoch, self.order(reading.plan.epoch)

        def items() -> Iterator[tuple[int, tuple[int, ...]]]:
            for own in reading:
                yield epoch, tuple(own if order is None else order[own.start : own.stop].tolist())

        rows = MapBatches(self.dataset, self.form, self.seed)
        return _load(rows, (self.dataset, self.form.collate), options, sampler=_Items(items))

    def example(self, size: int) -> Samples:
        """The first rows."""
        order = self.order(0)
        numbers = range(size) if order is None else order.topk(size, largest=False, sorted=True).values.tolist()
        return MapBatches(self.dataset, self.form, self.seed).example(numbers)

    def spread(self, size: int) -> Samples:
        """Rows at even distances in the order of the first epoch."""
        order, places = self.order(0), torch.linspace(0, self.rows - 1, size, dtype=torch.float64).long()
        numbers = (places if order is None else order[places]).tolist()
        return MapBatches(self.dataset, self.form, self.seed).example(numbers)


@dataclass(frozen=True)
class StreamSource:
    """A stream: rows come in one order, which is that of every epoch unless the stream takes the epoch."""

    stream: Stream
    form: RowFormat
    rows: int
    seed: int

    @property
    def skips(self) -> bool:
        """All rows come by."""
        return False

    def batches(self, reading: Reading, options: LoaderOptions) -> Iterator[Batch]:
        """Micro-batches; rows before the first are read and dropped."""
        sendable = replace(reading, plan=reading.plan.without_uses())
        rows = StreamBatches(self.stream, self.form, (self.seed, reading.plan.epoch), sendable, self.rows)
        return _load(rows, (self.stream, self.form.collate), options)

    def example(self, size: int) -> Samples:
        """The first rows."""
        first = [range(min(size, self.rows))]
        return StreamBatches(self.stream, self.form, (self.seed, 0), first, self.rows).example()

    def spread(self, size: int) -> Samples:
        """The first rows."""
        return self.example(size)


@dataclass(frozen=True)
class LoadedRows:
    """Rows that are read when they are needed (`RowSource`)."""

    source: BatchSource
    form: RowFormat
    options: LoaderOptions = field(default_factory=dict)
    rules: RowRules | None = None
    _examples: dict[int, Samples] = field(default_factory=dict, compare=False)

    @property
    def rows(self) -> int:
        """Number of rows of an epoch."""
        return self.source.rows

    def example(self, size: int) -> Samples:
        """The first rows, or others where none of these has a valid target; read once."""
        size = min(size, self.rows)
        if size not in self._examples:
            samples = self.source.example(size)
            if not valid_targets(samples).any():
                further = self.source.spread(min(_FURTHER_ROWS, self.rows))
                samples = further.take(covering_rows(further, size))
            self._examples[size] = samples
        return self._examples[size]

    def sample(self, size: int) -> Samples:
        """Rows that cover what occurs, as far as rows at even distances do."""
        size = min(size, self.rows)
        samples = self.source.spread(size)
        return samples.take(covering_rows(samples, size))

    def digest(self) -> str:
        """Of the number of rows and the first ones."""
        return f"{self.rows} {digest_of(self.example(2)).hex()}"

    def ruled(self, rules: RowRules) -> LoadedRows:
        """The same; rows are checked when they are read."""
        return replace(self, rules=rules)

    def read(self, plan: ReadPlan) -> LoadedReader:
        """Begin a pass."""
        return LoadedReader(self, plan)


class LoadedReader:
    """One pass of a rank (`MicrobatchReader`). Nothing is read before the first micro-batch is needed.

    A micro-batch is kept until the rank's stages have used it, so that memory does not grow with the epoch.
    """

    def __init__(self, rows: LoadedRows, plan: ReadPlan) -> None:
        self._rows, self._plan = rows, plan
        self._weighs = rows.rules is not None and rows.rules.weighs
        self._sums = rows.rules is not None and rows.rules.counts == SUM
        own_only = rows.source.skips and not self._weighs and plan.division.replicas > 1
        self._reading = Reading(plan, own_only)
        self._first = rows.example(2)
        self._kinds = kinds_of(self._first)
        self._batches: Iterator[Batch] | None = None
        self._keys = self._reading.keys()
        self._next = next(self._keys, None)  # iteration, part
        self._last = plan.first  # iteration that was read last
        self._kept: dict[tuple[int, int], tuple[Samples, int]] = {}
        self._weights: dict[tuple[int, int], float] = {}
        self._digest = hashlib.blake2b(digest_size=16)

    def prepare(self) -> None:
        """Start the workers and read the first micro-batch."""
        if self._batches is None and self._next is not None:
            self._read()

    def inputs(self, index: MicrobatchIndex, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The model's tensors with these indices: copies, which its forward may overwrite."""
        tensors = self._use(index).inputs.tensors
        return tuple(tensors[argument].clone() for argument in arguments)

    def target(self, index: MicrobatchIndex, device: torch.device) -> Any:
        """Second argument of the loss."""
        return self._use(index).target(slice(None), device)

    def weight(self, index: MicrobatchIndex) -> float:
        """How much the rows of a micro-batch count."""
        return self._weight(index.iteration, self._plan.number(index))

    def update_weight(self, index: MicrobatchIndex) -> float:
        """How much all rows of the micro-batch's update count."""
        if self._sums:
            return self.weight(index)
        if not self._weighs:
            return float(len(self._plan.update(index)))
        return sum(self._weight(index.iteration, number) for number in self._plan.division.update(index.microbatch))

    def digest(self) -> RowDigest | None:
        """Of all rows up to the end of the iteration that was read last."""
        if self._batches is None:
            return None
        while self._next is not None and self._next[0] <= self._last:
            self._read()
        readers = f"replica {self._plan.replica}" if self._reading.own_only else "all"
        return RowDigest(readers, self._digest.hexdigest())

    def close(self) -> None:
        """End the workers."""
        self._batches = None
        self._kept.clear()

    def _weight(self, iteration: int, number: int) -> float:
        if not self._weighs:
            return float(len(self._plan.division.part(iteration, number)))
        self._read_until((iteration, number), self._weights)
        return self._weights[iteration, number]

    def _use(self, index: MicrobatchIndex) -> Samples:
        key = (index.iteration, self._plan.number(index))
        self._read_until(key, self._kept)
        samples, left = self._kept.pop(key)
        if left > 1:
            self._kept[key] = samples, left - 1
        return samples

    def _read_until(self, key: tuple[int, int], rows: Mapping[tuple[int, int], Any]) -> None:
        while key not in rows:
            self._read()

    def _read(self) -> None:
        key = self._next
        if key is None:
            raise AssertionError("no micro-batch is left to read")
        if self._batches is None:
            self._batches = self._rows.source.batches(self._reading, self._rows.options)
        batch = self._next_batch(self._batches)
        samples = self._checked(batch.samples(self._first), batch.kinds)
        self._last, self._next = key[0], next(self._keys, None)
        self._digest.update(batch.digest)
        if self._weighs:
            if key[1] == 0:  # a new iteration; a rank reads ahead by at most one
                self._weights = {other: value for other, value in self._weights.items() if other[0] >= key[0] - 1}
            self._weights[key] = samples.weight(slice(None))
        microbatch, replica = divmod(key[1], self._plan.division.replicas)
        uses = self._plan.uses(microbatch) if replica == self._plan.replica else 0
        if uses:
            self._kept[key] = samples, uses

    def _next_batch(self, batches: Iterator[Batch]) -> Batch:
        """What is read next. RankCrashError, the same each time, if a process of `workers` has ended."""
        if not self._rows.options.get("num_workers"):
            return next(batches)
        try:
            return next(batches)
        except (RuntimeError, OSError, EOFError) as error:  # torch's message has the process' number
            form, ended = self._rows.form, _endings(batches)
            raise RankCrashError(
                f"{form.name}, {form.part}: {ended or f'a process of `workers` failed: {describe_error(error)}'} while "
                "it read rows: with workers: 0 the rank reads them itself, and an exception names its line"
            ) from error

    def _checked(self, samples: Samples, kinds: str) -> Samples:
        form, rules = self._rows.form, self._rows.rules
        if kinds != self._kinds:
            raise TrainingError(
                f"{form.name}, {form.part}: a row is {kinds}, and the first rows are {self._kinds}: rows must have the "
                "same sizes and types"
            )
        if rules is None:
            return samples
        rules.check(samples, form.part)
        return rules.apply(samples)


def _load(rows: Any, code: Sequence[Any], options: LoaderOptions, sampler: Any = None) -> Iterator[Batch]:
    """Read by torch's DataLoader, whose own generator leaves that of the training loop alone.

    Its workers are started by a fork server unless the user's DataLoader says how: a rank has threads,
    and a fork would copy the locks they hold. `code`: what of the rows is the user's. TrainingError for
    rows that cannot be sent to the workers.
    """
    if options.get("num_workers"):
        end_with_rank = _EndWithRank(os.getpid(), options.get("worker_init_fn"))
        options = {**options, "worker_init_fn": end_with_rank}
    if options.get("num_workers") and options.get("multiprocessing_context") is None:
        _require_importable(code)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        options = {**options, "multiprocessing_context": context}
    loader = DataLoader(rows, batch_size=None, sampler=sampler, generator=torch.Generator(), **options)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Got pickle error")  # the error below says it
            return iter(loader)
    except (PicklingError, AttributeError, TypeError) as error:
        if not options.get("num_workers") or not _is_about_pickling(error):
            raise
        raise TrainingError(
            f"rows cannot be sent to the processes of `workers` ({error}): define the data set, its functions and "
            "collate_fn at the top of a module, write workers: 0, or give a DataLoader with multiprocessing_context"
        ) from error


def _endings(batches: Any) -> str:
    """How the processes of a torch loader have ended; empty if all run."""
    statuses: set[int] = set()
    for process in getattr(batches, "_workers", ()):
        process.join(0 if statuses else _WORKER_ENDS_S)
        statuses |= {process.exitcode} if process.exitcode else set()
    names = {status: signal.Signals(-status).name if status < 0 else "" for status in sorted(statuses)}
    texts = [f"was killed by {name}" if name else f"ended with status {status}" for status, name in names.items()]
    return f"a process of `workers` {' and another '.join(texts)}" if texts else ""


def _is_about_pickling(error: Exception) -> bool:
    """True for an object that cannot be pickled; Python has no type for it, and 3.13 another text than 3.12."""
    return isinstance(error, PicklingError) or any(word in str(error) for word in ("pickle", "local object"))


def _require_importable(code: Sequence[Any]) -> None:
    """TrainingError for code in a file of the project that its workers cannot import by the module's name."""
    for part in code:
        module = str(getattr(part, "__module__", None) or "")
        if module.startswith(RENAMED):
            name = module.removeprefix(RENAMED)
            raise TrainingError(
                f"rows cannot be sent to the processes of `workers`: {name}.py has the name of another "
                "module that is loaded: rename the file, or write workers: 0"
            )


@dataclass(frozen=True)
class _EndWithRank:
    """Has a worker end when its rank does, however that ends: torch watches the worker's parent, the fork server.

    A worker that is stopped, or in code that lets no thread run, ends with its parent, by the kernel.
    """

    rank_pid: int
    user_init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        try:
            rank = os.pidfd_open(self.rank_pid)
        except ProcessLookupError:
            os._exit(1)
        end_with_parent()
        threading.Thread(target=_exit_after, args=(rank,), name="end-with-rank", daemon=True).start()
        if self.user_init is not None:
            self.user_init(worker)


def _exit_after(process: int) -> None:
    """End this process once the one of a pidfd has ended."""
    wait([process])
    os._exit(1)


@dataclass(frozen=True)
class _Items:
    """A sampler of torch: what to read next. Iterated once."""

    items: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.items()
