"""Every sample of an epoch is in one micro-batch, however many there are; runs are repeatable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.data import MicrobatchSampler  # noqa: E402


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.integers(0, 3))
def test_with_a_flush(samples, microbatches, replicas, extra, epoch):
    batch = microbatches * replicas + extra - 1
    sampler = MicrobatchSampler(samples, batch, microbatches, replicas, 7)
    seen: list[int] = []
    for iteration in range(sampler.iterations):
        every = [sampler.rows(epoch, iteration, replica) for replica in range(replicas)]
        sizes = [len(part) for rows in every for part in rows.own]
        assert len(sizes) == microbatches * replicas
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert all(count == sum(sizes) for rows in every for count in rows.counted)
        seen += [int(row) for rows in every for part in rows.own for row in part]
    assert len(set(seen)) == len(seen)
    assert samples - len(seen) < microbatches * replicas
    again = [int(row) for i in range(sampler.iterations) for part in sampler.rows(epoch, i, 0).own for row in part]
    assert again == [
        int(row) for i in range(sampler.iterations) for part in sampler.rows(epoch, i, 0).own for row in part
    ]


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_without_a_flush(samples, period, replicas, size):
    sampler = MicrobatchSampler(samples, size * 2 * replicas, 2, replicas, 7, period)
    if sampler.run == 0:
        return
    every = [sampler.rows(0, 0, replica) for replica in range(replicas)]
    seen = [int(row) for rows in every for part in rows.own for row in part]
    assert len(set(seen)) == len(seen) == sampler.run * replicas * size
    assert samples - len(seen) < period * size * replicas
    assert sampler.updates * period == sampler.run
    assert all(count == period * size * replicas for rows in every for count in rows.counted)
