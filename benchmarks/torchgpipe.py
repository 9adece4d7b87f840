"""torchgpipe's balance of layer times beside the objective `balance`, on random models."""

from __future__ import annotations

import random
import signal
import statistics
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType

from benchmarks.harness.registry import BenchmarkError, benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean_solver.pipeline import Layer, LayerGraph, TopologyLevel, partition

MODELS = 300
LIMIT_S = 2.0  # of processor time for torchgpipe on one model, which takes milliseconds where it ends


class EndlessError(Exception):
    """torchgpipe's exchange of layers does not terminate for some models."""


@benchmark
def torchgpipe_balance(smoke: bool) -> Result:
    """The slowest block of torchgpipe's cut over that of the least one."""
    if not find_spec("torchgpipe"):
        raise BenchmarkError("torchgpipe is not installed: pip install --no-deps torchgpipe==0.0.7")
    models = 20 if smoke else MODELS
    ratios = [theirs / ours for theirs, ours in slowest_blocks(models) if theirs is not None]
    slower = [ratio for ratio in ratios if ratio > 1]
    ranges = f", {statistics.median(slower):.2f} (median) to {max(slower):.2f} times" if slower else ""
    rows = [
        ("the same as with `balance`", sum(ratio == 1 for ratio in ratios)),
        (f"slower than with `balance`{ranges}", len(slower)),
        ("faster than with `balance`", sum(ratio < 1 for ratio in ratios)),
        (f"none: torchgpipe does not end within {LIMIT_S:g} s", models - len(ratios)),
    ]
    return Result(
        title="torchgpipe's balance",
        topic=Topic.PIPELINES,
        method=f"{models} random chains of 2 to 12 layers, cut by torchgpipe 0.0.7's balance of given times and by the "
        "objective `balance`. Needs `pip install --no-deps torchgpipe==0.0.7`.",
        reference="torchgpipe, which keeps blocks alike instead of the slowest small.",
        tables=(Table.of(["torchgpipe's slowest block is", "models"], rows),),
    )


def slowest_blocks(models: int) -> Iterator[tuple[float | None, float]]:
    """Time of the slowest block of each random model: torchgpipe's, None if it does not end, and the least."""
    from torchgpipe.balance import blockpartition

    def ring(number: int, frame: FrameType | None) -> None:
        raise EndlessError

    chance = random.Random(0)
    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        for _ in range(models):
            times = [chance.choice([1, 2, 3, 5, 8, 13]) for _ in range(chance.randint(2, 12))]
            blocks = chance.randint(1, len(times))
            theirs: float | None = None
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
            try:
                theirs = max(map(sum, blockpartition.solve(list(times), partitions=blocks)))
            except EndlessError:
                pass
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            yield theirs, balanced(times, blocks)[0]
    finally:
        signal.signal(signal.SIGVTALRM, before)


def balanced(times: list[int], blocks: int) -> tuple[float, list[int]]:
    """(seconds of the slowest block, numbers of layers) of a chain cut by the objective `balance`."""
    layers = tuple(Layer(f"l{i}", time, 0, 0) for i, time in enumerate(times))
    graph = LayerGraph(layers, tuple((i, i + 1) for i in range(len(times) - 1)))
    found = partition(graph, [TopologyLevel(blocks, 1.0)], objective="balance")
    return found.objective_s, [len(stage.layers) for stage in found.stages]
