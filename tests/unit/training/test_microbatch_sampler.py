"""Every sample of an epoch is in one micro-batch, however many there are; runs are repeatable."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.pipeline import CallArguments
from jellybean.training import ReadPlan
from jellybean.training.data.rows import MemoryRows, MicrobatchIndex
from jellybean.training.data.sampler import MicrobatchSampler, TestSampler
from jellybean.training.samples import Samples


def _read(rows: MemoryRows, sampler: MicrobatchSampler, epoch: int, iteration: int) -> list[list[list[int]]]:
    """Row numbers as [replica][micro-batch]."""
    readers = [rows.read(ReadPlan(sampler, epoch, replica=replica)) for replica in range(sampler.replicas)]
    for microbatch in range(sampler.run):
        index = MicrobatchIndex(iteration, microbatch)
        assert len({reader.update_weight(index) for reader in readers}) == 1
    return [
        [reader.inputs(MicrobatchIndex(iteration, microbatch), (0,))[0].tolist() for microbatch in range(sampler.run)]
        for reader in readers
    ]


def _rows(count: int) -> MemoryRows:
    return MemoryRows(Samples(CallArguments.of([torch.arange(count)]), None), seed=7)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.integers(0, 3))
def test_with_a_flush(samples, microbatches, replicas, extra, epoch):
    batch, rows = microbatches * replicas + extra - 1, _rows(samples)
    sampler = MicrobatchSampler(samples, batch, microbatches, replicas)
    seen: list[int] = []
    for iteration in range(sampler.iterations):
        every = _read(rows, sampler, epoch, iteration)
        sizes = [len(part) for own in every for part in own]
        assert len(sizes) == microbatches * replicas
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert rows.read(ReadPlan(sampler, epoch)).update_weight(MicrobatchIndex(iteration, 0)) == sum(sizes)
        assert sampler.rows(iteration) == sum(sizes)
        seen += [row for own in every for part in own for row in part]
        assert _read(_rows(samples), sampler, epoch, iteration) == every
    assert len(set(seen)) == len(seen)
    assert samples - len(seen) < microbatches * replicas


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_without_a_flush(samples, period, replicas, size):
    sampler = MicrobatchSampler(samples, size * 2 * replicas, 2, replicas, period)
    assume(sampler.run > 0)
    every = _read(_rows(samples), sampler, 0, 0)
    seen = [row for own in every for part in own for row in part]
    assert len(set(seen)) == len(seen) == sampler.run * replicas * size
    assert samples - len(seen) < period * size * replicas
    assert sampler.updates * period == sampler.run
    weights = {_rows(samples).read(ReadPlan(sampler)).update_weight(MicrobatchIndex(0, m)) for m in range(sampler.run)}
    assert weights == {period * size * replicas}


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 3))
def test_test_rows_are_read_once_and_in_order(samples, size, replicas):
    sampler = TestSampler(samples, size, replicas)
    assert [row for number in range(sampler.parts) for row in sampler.part(0, number)] == list(range(samples))
