"""Comparison with published tables (GPipe's throughput) and with torchgpipe's balance."""

from __future__ import annotations

import random
import signal
from types import FrameType

import pytest

from benchmarks.pipelines import GPIPE, fitted, simulated, worst
from jellybean_solver.pipeline import Layer, LayerGraph, TopologyLevel, partition


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


def balanced(times: list[int], blocks: int) -> tuple[float, list[int]]:
    layers = tuple(Layer(f"l{i}", time, 0, 0) for i, time in enumerate(times))
    graph = LayerGraph(layers, tuple((i, i + 1) for i in range(len(times) - 1)))
    found = partition(graph, [TopologyLevel(blocks, 1.0)], objective="balance")
    return found.objective_s, [len(stage.layers) for stage in found.stages]


@pytest.mark.parametrize(
    ("times", "blocks", "sizes"), [([1, 2, 3, 4, 5, 6], 2, [4, 2]), ([2, 1, 2, 5, 2, 1, 7, 4], 3, [4, 3, 1])]
)
def test_torchgpipes_blocks(times: list[int], blocks: int, sizes: list[int]) -> None:
    """The results of torchgpipe 0.0.7."""
    assert balanced(times, blocks)[1] == sizes


class EndlessError(Exception):
    """torchgpipe's exchange of layers does not terminate for some inputs."""


def test_balance_is_never_above_torchgpipes() -> None:
    """Against torchgpipe itself, where it is installed."""
    theirs = pytest.importorskip("torchgpipe.balance.blockpartition", reason="torchgpipe is not installed")

    def ring(number: int, frame: FrameType | None) -> None:
        raise EndlessError

    rng, compared = random.Random(0), 0
    before = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(150):
            times = [rng.choice([1, 2, 3, 5, 8, 13]) for _ in range(rng.randint(2, 12))]
            blocks = rng.randint(1, len(times))
            signal.setitimer(signal.ITIMER_REAL, 2.0)
            try:
                found = theirs.solve(list(times), partitions=blocks)
            except EndlessError:
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            assert balanced(times, blocks)[0] <= max(map(sum, found))
            compared += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert compared > 100
