"""Reads micro-batches from data sets and streams, in this process or in workers of torch's DataLoader.

Each rank reads by itself, so the rows of a micro-batch must not depend on who reads it: generators are seeded by epoch
and row, whatever the number of workers, and wherever a resumed run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch.utils.data import Dataset, IterableDataset

from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.data.digests import digest_of
from jellybean.training.data.randomness import Randomness, seed_by
from jellybean.training.errors import RankCrashError, TrainingError
from jellybean.training.samples import Samples, read_samples

Stream: TypeAlias = Callable[[int], Iterable[Any]]  # epoch -> rows


@dataclass(frozen=True)
class Batch:
    """A micro-batch as a worker sends it: tensors without the structure, which is that of the first rows.

    `kinds`: names, types and sizes of a row. `failure`: why there is no micro-batch, as text, since not every exception
    can be sent; `crashed`: user code raised, so that a retry may help.
    """

    inputs: tuple[torch.Tensor, ...] = ()
    targets: tuple[torch.Tensor, ...] = ()
    kinds: str = ""
    digest: bytes = b""
    failure: str = ""
    crashed: bool = False

    def samples(self, first: Samples) -> Samples:
        """With the structure of the first rows. TrainingError if there is no micro-batch."""
        if self.failure:
            raise (RankCrashError if self.crashed else TrainingError)(self.failure)
        targets = first.targets if first.targets is None else replace(first.targets, tensors=self.targets)
        return Samples(replace(first.inputs, tensors=self.inputs), targets)


@dataclass(frozen=True)
class RowFormat:
    """How rows become a micro-batch. `name`: of the function that returned the source. `targets`: see read_samples."""

    name: str
    part: str
    targets: bool
    collate: Callable[[list[Any]], Any]

    def batch(self, numbers: Sequence[int], fetch: Callable[[], list[Any]]) -> Batch:
        """The micro-batch of some rows, or why there is none."""
        try:
            samples = self.samples(numbers, fetch)
        except TrainingError as error:
            return Batch(failure=str(error), crashed=isinstance(error, RankCrashError))
        targets = samples.targets.tensors if samples.targets is not None else ()
        return Batch(samples.inputs.tensors, targets, kinds_of(samples), digest_of(samples))

    def samples(self, numbers: Sequence[int], fetch: Callable[[], list[Any]]) -> Samples:
        """The micro-batch of some rows. TrainingError if there is none."""
        where = f"{self.name}, {self.part}"
        try:
            rows = fetch()
        except TrainingError:
            raise
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise self.unreadable(numbers, error) from error
        try:
            given = self.collate(rows)
        except Exception as error:  # rows of any kind; a user's collate_fn
            raise TrainingError(
                f"{where}: {_span(numbers)} do not make a micro-batch: rows must have the same sizes and types, or "
                f"come by a DataLoader with a collate_fn{place_and_reason(error)}"
            ) from error
        samples = read_samples(_with_tuples(given), self.name, self.part, targets=self.targets, numbers=numbers)
        if len(samples) != len(numbers):
            raise TrainingError(
                f"{where}: the collate_fn made {len(samples)} rows of {len(numbers)}; each row must stay one row"
            )
        return samples

    def unreadable(self, numbers: Sequence[int], error: BaseException) -> RankCrashError:
        """User code raised while it gave some rows."""
        return RankCrashError(f"{self.name}, {self.part}: reading {_span(numbers)} failed{place_and_reason(error)}")


class MapBatches(Dataset):  # type: ignore[misc]  # mypy does not follow torch
    """Micro-batches of a map-style data set; an item is named by its epoch and its row numbers."""

    def __init__(self, dataset: Any, form: RowFormat, seed: int) -> None:
        self._dataset, self._form, self._seed = dataset, form, seed

    def __getitem__(self, item: tuple[int, tuple[int, ...]]) -> Batch:
        epoch, numbers = item
        with Randomness().active():
            return self._form.batch(numbers, lambda: [self.read_row(epoch, number) for number in numbers])

    def example(self, numbers: Sequence[int]) -> Samples:
        """Some rows of the first epoch."""
        with Randomness().active():
            return self._form.samples(numbers, lambda: [self.read_row(0, number) for number in numbers])

    def read_row(self, epoch: int, number: int) -> Any:
        """A row of the data set, with generators seeded by the epoch and its number. Heartbeats know it by its name."""
        seed_by(self._seed, epoch, number)
        try:
            return self._dataset[number]
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise self._form.unreadable([number], error) from error


class StreamBatches(IterableDataset):  # type: ignore[misc]  # mypy does not follow torch
    """Micro-batches of a stream, in its order.

    `positions`: of the micro-batches in the epoch; rows before the first are read and dropped. `stated`: number of rows
    that the stream must have.
    """

    def __init__(
        self, stream: Stream, form: RowFormat, seeds: tuple[int, int], positions: Iterable[range], stated: int
    ) -> None:
        self._stream, self._form, self._positions, self._stated = stream, form, positions, stated
        self._seeds = seeds  # of the run, epoch

    def __iter__(self) -> Iterator[Batch]:
        generators, cursor = Randomness(*self._seeds), _Cursor(self._stream, self._seeds[1])
        for positions in self._positions:
            with generators.active():
                batch = self._form.batch(positions, partial(self._take, cursor, positions))
            yield batch
            if batch.failure:
                return

    def example(self) -> Samples:
        """The first micro-batch."""
        positions = next(iter(self._positions))
        cursor = _Cursor(self._stream, self._seeds[1])
        with Randomness(*self._seeds).active():
            return self._form.samples(positions, partial(self._take, cursor, positions))

    def _take(self, cursor: _Cursor, positions: range) -> list[Any]:
        cursor.skip_to(positions.start)
        rows = cursor.take(len(positions))
        if len(rows) < len(positions):
            raise TrainingError(
                f"{self._form.name}, {self._form.part}: the stream ended after {cursor.position:,} rows, and an epoch "
                f"has {self._stated:,}: correct rows_per_epoch or test_rows, or its length"
            )
        return rows


class _Cursor:
    """Reads a stream in order. `position`: rows read. The stream is opened by the first call."""

    def __init__(self, stream: Stream, epoch: int) -> None:
        self._open, self.position = partial(stream, epoch), 0
        self._rows: Iterator[Any] | None = None

    def skip_to(self, position: int) -> None:
        """Read and drop rows before a position."""
        while self.position < position and self.take(1):
            pass

    def take(self, count: int) -> list[Any]:
        """The next rows; fewer at the end. Heartbeats know it by its name."""
        if self._rows is None:
            self._rows = iter(self._open())
        rows = list(islice(self._rows, count))
        self.position += len(rows)
        return rows


def _with_tuples(given: Any) -> Any:
    """What torch's default_collate made, with tuples in place of its lists."""
    if isinstance(given, list | tuple):
        return tuple(map(_with_tuples, given))
    return {name: _with_tuples(value) for name, value in given.items()} if isinstance(given, dict) else given


def kinds_of(samples: Samples) -> str:
    """Names, types and sizes of a row, and what all rows share."""
    inputs = [
        f"{name} {value.dtype} {list(value.shape[1:])}"
        for name, value in zip(samples.inputs.names, samples.inputs.tensors, strict=True)
    ]
    targets = samples.targets.tensors if samples.targets is not None else ()
    constants = [repr(value) for value in samples.inputs.form.constants if value is not None]
    parts = [*inputs, *(f"target {value.dtype} {list(value.shape[1:])}" for value in targets), *constants]
    return ", ".join(parts).replace("torch.", "")


def _span(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"row {numbers[0]}"
    if isinstance(numbers, range):
        return f"rows {numbers[0]} to {numbers[-1]}"
    return f"rows {', '.join(map(str, numbers[:4]))}{', ...' if len(numbers) > 4 else ''}"
