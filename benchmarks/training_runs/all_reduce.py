"""Sums of 100 MB by messages, each way beside gloo's all_reduce, on 2 and 4 processes of this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

if TYPE_CHECKING:
    import torch

SIZE_BYTES, ROUNDS, WORKERS = 100_000_000, 15, (2, 4)
_COLUMNS = ("processes", "way", "time (ms)", "gloo (ms)", "throughput over gloo's", "MB sent by process 0")


@benchmark
def all_reduce(smoke: bool) -> Result:
    """Seconds of one sum of gradients by each way, in turn with gloo's all_reduce."""
    from tests.integration.training.ranks import run_ranks

    os.environ["OMP_NUM_THREADS"] = "1"
    size_bytes, rounds = (SIZE_BYTES // 10, 3) if smoke else (SIZE_BYTES, ROUNDS)
    rows: list[tuple[str, ...]] = []
    for workers in WORKERS:
        (measured,) = run_ranks(workers, [TimeSums(size_bytes, rounds)], seconds=600)
        rows += _rows(workers, measured[0])
    return Result(
        title="Sums of gradients by messages",
        topic=Topic.TRAINING,
        method=f"All-reduces of {size_bytes / 1e6:,.0f} MB of float32 between processes of one machine, over TCP: "
        f"medians of {rounds} rounds, each way in turn with gloo, from a barrier until all had ended. The two cores "
        "had other work too.",
        reference="gloo's all_reduce (a ring, in C++), as torch.distributed calls it: its time over ours.",
        tables=(Table.of(_COLUMNS, rows),),
    )


def _rows(workers: int, measured: Mapping[str, TimedSums]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, sums in measured.items():
        own_s, gloo_s = statistics.median(sums.seconds), statistics.median(sums.gloo_seconds)
        times = (f"{1000 * own_s:.0f}", f"{1000 * gloo_s:.0f}", f"{gloo_s / own_s:.2f}")
        rows.append((str(workers), name, *times, f"{sums.sent_bytes / 1e6:,.0f}"))
    return rows


@dataclass(frozen=True)
class TimedSums:
    """Durations of a way's sums and of gloo's in turn with them, and the bytes that this rank sent in one."""

    seconds: list[float]
    gloo_seconds: list[float]
    sent_bytes: int


@dataclass(frozen=True)
class TimeSums:
    """Time the sums of all ranks, each way in turn with gloo; checks the results. Returns them by way."""

    size_bytes: int
    rounds: int

    def __call__(self, rank: int) -> dict[str, TimedSums]:
        import torch

        from jellybean.documents.training.run import MESSAGE_WAYS

        values = torch.empty(self.size_bytes // 4)
        return {way: self._time(way, values, rank) for way in MESSAGE_WAYS}

    def _time(self, way: str, values: torch.Tensor, rank: int) -> TimedSums:
        import torch.distributed as dist

        from jellybean.training.collectives.interpreter import AllReduceInterpreter
        from jellybean_solver.pipeline import make_all_reduce

        world = dist.get_world_size()
        interpreter = AllReduceInterpreter(make_all_reduce(way, world), dist.group.WORLD)
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(self.rounds + 1):
            for durations, run in zip(seconds, (interpreter.run, dist.all_reduce), strict=True):
                values.fill_(rank + 1.0)
                dist.barrier()
                began = time.perf_counter()
                run(values)
                dist.barrier()
                if turn:  # the first turn makes connections and buffers
                    durations.append(time.perf_counter() - began)
                if not (values == world * (world + 1) / 2).all():
                    raise AssertionError(f"{way}: the sum is wrong")
        return TimedSums(*seconds, interpreter.sent_bytes // (self.rounds + 1))
