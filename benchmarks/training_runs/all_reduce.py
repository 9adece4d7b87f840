"""Sums of 100 MB by messages, each way beside gloo's all_reduce, on 2 and 4 processes of this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

SIZE_BYTES, ROUNDS, WORKERS = 100_000_000, 15, (2, 4)


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
        f"medians of {rounds} rounds, each with a sum by every way, from a barrier until all had ended. The cores had "
        "other work too.",
        reference="gloo's all_reduce (a ring, in C++), as torch.distributed calls it: its time over ours.",
        tables=(Table.of(("processes", "way", "time (ms)", "throughput over gloo's", "MB sent by process 0"), rows),),
    )


def _rows(workers: int, measured: Mapping[str, TimedSums]) -> list[tuple[str, ...]]:
    gloo_s = statistics.median(measured["gloo"].seconds)
    rows: list[tuple[str, ...]] = []
    for name, sums in measured.items():
        own_s = statistics.median(sums.seconds)
        ratio, sent = ("", "") if name == "gloo" else (f"{gloo_s / own_s:.2f}", f"{sums.sent_bytes / 1e6:,.0f}")
        rows.append((str(workers), name, f"{1000 * own_s:.0f}", ratio, sent))
    return rows


@dataclass(frozen=True)
class TimedSums:
    """Durations of a way's sums, and the bytes that this rank sent in one; 0 if they are not counted."""

    seconds: list[float]
    sent_bytes: int = 0


@dataclass(frozen=True)
class TimeSums:
    """Time the sums of all ranks; checks the results. Returns them by way, gloo first."""

    size_bytes: int
    rounds: int

    def __call__(self, rank: int) -> dict[str, TimedSums]:
        import torch
        import torch.distributed as dist

        from jellybean.documents.training_run import SYNC_WAYS, TORCH
        from jellybean.training.collectives.interpreter import AllReduceInterpreter
        from jellybean_solver.pipeline import make_all_reduce

        world = dist.get_world_size()
        ways = sorted(way for way in SYNC_WAYS if way != TORCH)
        interpreters = {way: AllReduceInterpreter(make_all_reduce(way, world), dist.group.WORLD) for way in ways}
        seconds: dict[str, list[float]] = {name: [] for name in ("gloo", *ways)}
        values = torch.empty(self.size_bytes // 4)
        for turn in range(self.rounds + 1):
            for name, durations in seconds.items():
                values.fill_(rank + 1.0)
                dist.barrier()
                began = time.perf_counter()
                if name == "gloo":
                    dist.all_reduce(values)
                else:
                    interpreters[name].run(values)
                dist.barrier()
                if turn:  # the first turn makes connections and buffers
                    durations.append(time.perf_counter() - began)
                if not torch.all(values == world * (world + 1) / 2):
                    raise AssertionError(f"{name}: the sum is wrong")
        sent = {way: interpreter.sent_bytes // (self.rounds + 1) for way, interpreter in interpreters.items()}
        return {name: TimedSums(durations, sent.get(name, 0)) for name, durations in seconds.items()}
