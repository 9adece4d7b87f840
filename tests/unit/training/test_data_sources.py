"""Data sets and streams give the micro-batches of the same rows in memory, whoever reads them and wherever from."""

from __future__ import annotations

import os
import random
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from jellybean.training import ReadPlan, TrainingError
from jellybean.training.data.rows import MicrobatchIndex, RowSource
from jellybean.training.data.rules import RowRules
from jellybean.training.data.sampler import MicrobatchSampler, TestSampler
from jellybean.training.data.sources import SourceSettings, find_source
from jellybean.training.errors import RankCrashError
from jellybean.user_modules import import_file

ROWS, BATCH = 26, 8
CPU = torch.device("cpu")
Read = dict[tuple[int, int], tuple[list[Any], list[Any], float]]


def _settings(part: str = "train", **more: Any) -> SourceSettings:
    given = {"name": "nets.py:data", "seed": 3, "batch": BATCH, "targets": True, "workers": None, "stated": None}
    return SourceSettings(part=part, **{**given, **more})


def _arrays() -> tuple[Any, Any]:
    inputs = torch.arange(2.0 * ROWS).reshape(ROWS, 2)
    return inputs, torch.arange(ROWS) % 3


class Rows(Dataset):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return tuple(value[row] for value in _arrays())


class Augmented(Rows):
    """Noise from all three generators."""

    def __getitem__(self, row: int) -> Any:
        inputs, target = super().__getitem__(row)
        return inputs + torch.rand(2) + float(np.random.rand()) + random.random(), target


class Counted(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*_arrays(), strict=True))

    def __len__(self) -> int:
        return ROWS


def _stream(epoch: int) -> Iterator[Any]:
    for inputs, target in zip(*_arrays(), strict=True):
        yield inputs + 1000 * epoch + torch.rand(2), target


def _read(source: RowSource, first: int = 0, epoch: int = 1, replicas: int = 1, period: int | None = None) -> Read:
    """(inputs, target, factor) by iteration and part, as one rank per replica reads them. Inputs are read twice."""
    sampler = MicrobatchSampler(source.rows, BATCH, 2, replicas, period)
    found: Read = {}
    for replica in range(replicas):
        reader = source.read(ReadPlan(sampler, epoch, first, replica, uses=lambda microbatch: 3))
        for iteration in range(first, sampler.iterations):
            for microbatch in range(sampler.run):
                index = MicrobatchIndex(iteration, microbatch)
                (inputs,) = reader.inputs(index, (0,))
                assert torch.equal(reader.inputs(index, (0,))[0], inputs)
                target = reader.target(index, CPU)
                factor = reader.weight(index) / reader.update_weight(index)
                found[iteration, microbatch * replicas + replica] = inputs.tolist(), target.tolist(), factor
        reader.close()
    return found


@pytest.mark.parametrize(
    ("replicas", "period", "first"), [(1, None, 0), (2, None, 0), (1, None, 2), (2, None, 2), (1, 3, 0), (2, 2, 0)]
)
def test_a_data_set_gives_what_arrays_give(replicas, period, first):
    expected = _read(find_source(_arrays(), _settings()), first, replicas=replicas, period=period)
    for given in (Rows(), DataLoader(Rows(), shuffle=True)):
        assert _read(find_source(given, _settings()), first, replicas=replicas, period=period) == expected


@pytest.mark.parametrize("given", [Rows(), Counted()])
def test_test_rows_come_in_order(given):
    source = find_source(given, _settings("test"))
    reader = source.read(ReadPlan(TestSampler(source.rows, 8, 1)))
    found = torch.cat([reader.inputs(MicrobatchIndex(0, number), (0,))[0] for number in range(4)])
    assert torch.equal(found, _arrays()[0])


def test_random_rows_do_not_depend_on_workers_or_where_reading_begins():
    """Nor does reading change the generators of the training loop."""
    state = torch.get_rng_state()
    whole = _read(find_source(Augmented(), _settings()))
    assert torch.equal(torch.get_rng_state(), state)
    assert _read(find_source(Augmented(), _settings(workers=2))) == whole
    assert _read(find_source(Augmented(), _settings()), first=2) == {k: v for k, v in whole.items() if k[0] >= 2}
    assert _read(find_source(Augmented(), _settings()), epoch=2) != whole


def test_a_stream_is_read_in_order_and_again_for_each_epoch():
    settings = _settings(stated=ROWS)
    whole = _read(find_source(_stream, settings))
    rows = [row for key in sorted(whole) for row in whole[key][0]]
    assert [round(row[0] - 1000.5) // 2 for row in rows] == list(range(ROWS))
    assert _read(find_source(_stream, _settings(stated=ROWS, workers=1))) == whole
    assert _read(find_source(_stream, settings), first=2) == {k: v for k, v in whole.items() if k[0] >= 2}
    assert _read(find_source(_stream, settings), replicas=2).keys() == {(i, n) for i in range(3) for n in range(4)}
    plain = _read(find_source(Counted(), _settings()))
    assert plain == _read(find_source(DataLoader(Rows()), _settings()))


@pytest.mark.slow
def test_a_stream_keeps_no_more_than_an_update():
    """A million rows would not fit: what was used is forgotten."""
    alive: set[int] = set()

    def stream() -> Iterator[Any]:
        number = 0
        while True:
            yield torch.full((2,), float(number)), 0
            number += 1

    source = find_source(stream, _settings(stated=2_000))
    sampler = MicrobatchSampler(source.rows, BATCH, 2, 1, period=2)
    reader = source.read(ReadPlan(sampler))
    for microbatch in range(sampler.run):
        reader.inputs(MicrobatchIndex(0, microbatch), (0,))
        alive.add(len(reader._kept))
    assert alive == {0}


def test_padded_rows_count_by_their_tokens():
    def tokens() -> Iterator[Any]:
        for row in range(ROWS):
            yield torch.tensor([row, row]), torch.tensor([1, -100 if row % 3 else 2])

    rules = RowRules("net", counts="targets")
    arrays = [torch.stack(part) for part in zip(*tokens(), strict=True)]
    in_memory = find_source(tuple(arrays), _settings("test")).ruled(rules)
    for replicas, period in ((1, None), (2, None), (2, 2)):
        expected = _read(in_memory, replicas=replicas, period=period)
        assert (
            _read(find_source(tokens, _settings(stated=ROWS)).ruled(rules), replicas=replicas, period=period)
            == expected
        )
        updates = {key[0]: 0.0 for key in expected}
        for key, (_, _, factor) in expected.items():
            updates[key[0]] += factor
        assert period is not None or list(updates.values()) == pytest.approx([1.0] * len(updates))


class Named(Rows):
    """Rows with arguments by name, in a tuple, or with labels for a model that computes its loss."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getitem__(self, row: int) -> Any:
        inputs, target = super().__getitem__(row)
        if self.kind == "tuple":
            return (inputs, inputs.numpy() * 2), target
        if self.kind == "model":
            return {"x": inputs, "labels": int(target)}
        return {"x": inputs, "mask": inputs > 3}, target


@pytest.mark.parametrize(
    ("kind", "names"), [("tuple", ("input_0", "input_1")), ("dict", ("x", "mask")), ("model", ("x", "labels"))]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_with_several_arguments(kind, names, workers):
    source = find_source(Named(kind), _settings("test", targets=kind != "model", workers=workers))
    assert source.example(3).inputs.names == names
    reader = source.read(ReadPlan(TestSampler(source.rows, 8, 1), uses=lambda microbatch: 2))
    first, second = reader.inputs(MicrobatchIndex(0, 1), (0, 1))
    inputs, targets = (value[8:16] for value in _arrays())
    assert torch.equal(first, inputs)
    expected = {"tuple": inputs * 2, "dict": inputs > 3, "model": targets}[kind]
    assert torch.equal(second, expected)
    target = reader.target(MicrobatchIndex(0, 1), CPU)
    assert target is None if kind == "model" else torch.equal(target, targets)
    reader.close()


def _negated(rows: list[Any]) -> Any:
    inputs, targets = torch.utils.data.default_collate(rows)
    return -inputs, targets


def test_rows_that_no_worker_can_be_sent_are_told_with_the_ways_out():
    loader = DataLoader(Rows(), collate_fn=lambda rows: tuple(_negated(rows)), num_workers=1)
    with pytest.raises(TrainingError, match=r"cannot be sent to the processes of `workers` .*at the top of a module"):
        _read(find_source(loader, _settings()))


def test_rows_of_a_file_that_had_to_be_renamed_are_told_before_a_worker_starts(tmp_path: Path):
    (tmp_path / "random.py").write_text("class Numbers(list):\n    pass\n", encoding="utf-8")
    numbers = import_file(tmp_path / "random.py").Numbers((float(n), 0.0) for n in range(32))
    loader = DataLoader(numbers, num_workers=1)
    with pytest.raises(TrainingError, match=r"random\.py has the name of another module .*rename the file"):
        _read(find_source(loader, _settings()))


def test_a_loader_has_its_own_sampler_and_collate():
    chosen = SubsetRandomSampler([1, 2, 3, 5, 7, 11, 13, 17, 19, 23])
    source = find_source(DataLoader(Rows(), sampler=chosen), _settings())
    assert source.rows == 10
    rows = [row[0] / 2 for inputs, _, _ in _read(source).values() for row in inputs]
    assert set(rows) <= {1, 2, 3, 5, 7, 11, 13, 17, 19, 23}
    assert _read(source) == _read(source) != _read(source, epoch=2)
    drawn = find_source(DataLoader(Rows(), sampler=WeightedRandomSampler([0.0] * 25 + [1.0], 16)), _settings())
    assert {row[0] for inputs, _, _ in _read(drawn).values() for row in inputs} == {50.0}
    found = _read(find_source(DataLoader(Rows(), collate_fn=_negated, num_workers=1), _settings()))
    assert all(row[0] <= 0 for inputs, _, _ in found.values() for row in inputs)
    assert find_source(DataLoader(Rows(), batch_size=BATCH, drop_last=True), _settings()).rows == 24


def _once() -> Iterator[Any]:
    yield from zip(*_arrays(), strict=True)


@pytest.mark.parametrize(
    ("given", "more", "told"),
    [
        (_once(), {}, "train: it has a generator, which can be read only once"),
        (_once, {}, "a stream has no length.*rows_per_epoch: ROWS"),
        (_once, {"stated": ROWS, "workers": 2}, "2 workers would each read the whole stream"),
        (Rows(), {"stated": 99}, "it has 26 rows; data.rows_per_epoch is 99"),
        (_arrays(), {"stated": 2}, "data.rows_per_epoch is for data sets and streams"),
        (DataLoader(Rows(), batch_size=5), {}, "batch_size 5, and the document batch 8"),
        (DataLoader(Rows(), batch_size=None), {}, "batch_size=None"),
        (DataLoader(Rows(), batch_sampler=BatchSampler(SequentialSampler(Rows()), 8, False)), {}, "a batch_sampler"),
        (DataLoader(Rows(), sampler=DistributedSampler(Rows(), 2, 0)), {}, "gives every process other rows"),
        (7, {}, "train: it must return"),
    ],
)
def test_what_cannot_be_read_alike_is_refused(given, more, told):
    with pytest.raises(TrainingError, match=told):
        find_source(given, _settings(**more))


class Broken(Rows):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getitem__(self, row: int) -> Any:
        inputs, target = super().__getitem__(row)
        if row != 17:
            return inputs, target
        if self.kind == "raises":
            raise ValueError("odd row")
        if self.kind == "exits":
            sys.exit(3)
        if self.kind == "dies":
            os._exit(9)
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "larger":
            return torch.zeros(3), target
        if self.kind == "nan":
            return inputs * torch.nan, target
        return inputs, torch.tensor(9)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        (
            "raises",
            RankCrashError,
            r"reading row 17 failed at .*_sources.py:\d+: odd row",
        ),
        ("exits", RankCrashError, r"reading row 17 failed at .*_sources.py:\d+: it exits with 3"),
        (
            "larger",
            TrainingError,
            r"rows must have the same sizes and types, or come by a DataLoader with a collate_fn: ",
        ),
        ("nan", TrainingError, "row 17 of the inputs has nan"),
        ("class", TrainingError, "the targets in train are 0 to 9, and net gives scores of 3 classes"),
    ],
)
def test_a_broken_row_is_named(kind, error, told, workers):
    source = find_source(Broken(kind), _settings(workers=workers)).ruled(RowRules("net", classes=3))
    with pytest.raises(error, match=told):
        _read(source)


@pytest.mark.parametrize(
    ("kind", "ending"), [("dies", "a process of `workers` ended with status 9"), ("killed", "was killed by SIGKILL")]
)
def test_the_end_of_a_process_that_reads_is_the_same_each_time(kind, ending):
    """Without numbers of processes, so that it is known to come back."""
    messages = set()
    for _ in range(2):
        with pytest.raises(RankCrashError) as caught:
            _read(find_source(Broken(kind), _settings(workers=1)).ruled(RowRules("net", classes=10)))
        messages.add(str(caught.value))
    (message,) = messages
    assert message.startswith("nets.py:data, train: a process of `workers` ")
    assert f"{ending} while it read rows" in message


def test_a_short_stream_is_told():
    with pytest.raises(TrainingError, match="ended after 26 rows, and an epoch has 40: correct rows_per_epoch"):
        _read(find_source(_once, _settings(stated=40)))


def test_rows_of_another_size_are_refused():
    def growing() -> Iterator[Any]:
        for row in range(ROWS):
            yield torch.zeros(2 + row // BATCH), 0

    with pytest.raises(TrainingError, match=r"a row is input_0 float32 \[3\].*the first rows are .* \[2\]"):
        _read(find_source(growing, _settings(stated=ROWS)))


def test_digests_tell_what_was_read():
    sampler = MicrobatchSampler(ROWS, BATCH, 2, 1)

    def digest(given: Any, reads: int, **more: Any) -> Any:
        reader = find_source(given, _settings(**more)).read(ReadPlan(sampler))
        for microbatch in range(reads):
            reader.inputs(MicrobatchIndex(0, microbatch), (0,))
        return reader.digest()

    whole = digest(Augmented(), 2)
    assert digest(Augmented(), 1, workers=1) == whole  # up to the end of the iteration
    assert digest(Augmented(), 0) is None
    assert digest(Augmented(), 2, seed=4) != whole


class Many:
    """A data set of many rows, which is not read for its length."""

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, row: int) -> Any:
        return torch.full((2,), float(row)), row % 3


def test_the_first_rows_need_no_list_of_all():
    """Of a shuffled data set: its order is a tensor, whose memory tracemalloc does not count."""
    source = find_source(Many(), _settings())
    tracemalloc.start()
    try:
        rows = source.example(3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows.inputs.tensors[0][:, 0].tolist() == [0.0, 1.0, 2.0]
    assert peak < len(Many())  # a list has at least 8 bytes a row
