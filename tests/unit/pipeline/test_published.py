"""Comparison with published tables (GPipe's throughput) and with torchgpipe's balance."""

from __future__ import annotations

import pytest

from benchmarks.pipelines import GPIPE, fitted, simulated, worst
from benchmarks.torchgpipe import balanced, slowest_blocks


def test_gpipes_transformer_with_many_micro_batches() -> None:
    """Within 10 % with one parameter of communication."""
    sent = fitted("Transformer")
    assert 0 <= sent < 0.05
    assert worst("Transformer", 32, sent) < 0.10


def test_gpipes_row_of_four_micro_batches_beats_equal_stages() -> None:
    """No simulator with equal stages can reach it: even without communication it stays below."""
    ideal = simulated(4, 0.0)
    assert ideal == pytest.approx([devices * 4 / (3 + devices) for devices in (2, 4, 8)])
    assert all(published > most for published, most in zip(GPIPE["Transformer"][4], ideal, strict=True))


@pytest.mark.parametrize(
    ("times", "blocks", "sizes"), [([1, 2, 3, 4, 5, 6], 2, [4, 2]), ([2, 1, 2, 5, 2, 1, 7, 4], 3, [4, 3, 1])]
)
def test_torchgpipes_blocks(times: list[int], blocks: int, sizes: list[int]) -> None:
    """The results of torchgpipe 0.0.7."""
    assert balanced(times, blocks)[1] == sizes


def test_balance_is_never_above_torchgpipes() -> None:
    """Against torchgpipe itself, where it is installed."""
    pytest.importorskip("torchgpipe", reason="torchgpipe is not installed")
    compared = [(theirs, ours) for theirs, ours in slowest_blocks(150) if theirs is not None]
    assert len(compared) > 100
    assert all(ours <= theirs for theirs, ours in compared)
