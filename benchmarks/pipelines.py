"""Time to simulate schedules and to partition models, and comparison with published figures of PipeDream and GPipe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.pipeline.profile_file import read_profile
from jellybean_solver.pipeline import (
    Layer,
    LayerGraph,
    MemoryLimit,
    Partition,
    ScheduleCosts,
    TopologyLevel,
    make_schedule,
    partition,
    simulate,
)

PROFILES = Path(__file__).resolve().parents[1] / "examples" / "published" / "pipedream"
PIPEDREAM = [  # profile, (workers, bytes per second) by level, slowest stage in seconds by PipeDream's optimizer
    ("vgg16", [(4, 1e9)], 0.205521),
    ("vgg16", [(16, 1e9)], 0.056530),
    ("resnet50", [(4, 1e9)], 0.162881),
    ("resnet50", [(4, 4 * 2.0**30), (4, 2.5 * 2.0**30)], 0.035153),
    ("gnmt", [(4, 1e9)], 0.025868),
]
DEVICES = (2, 4, 8)
# model -> micro-batches -> throughput on 2, 4, 8 TPUs over that on 2 TPUs with one micro-batch (Huang et al. 2019)
GPIPE = {
    "Transformer": {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8), 32: (1.8, 3.4, 6.3)},
    "AmoebaNet": {1: (1, 1.13, 1.38), 4: (1.07, 1.26, 1.72), 32: (1.21, 1.84, 3.48)},
}
T = TypeVar("T")
FITTED_TO = 32  # micro-batches
BACKWARD = 3.0  # backward over forward time: GPipe recomputes activations


@benchmark
def pipelines(smoke: bool) -> Result:
    """CPU time to simulate a million actions, and to partition 1,000 layers over 64 devices."""
    devices, microbatches, layers = (16, 320, 100) if smoke else (64, 7_813, 1_000)
    schedule, made_s = timed(lambda: make_schedule("1f1b", devices, microbatches))
    _, took_s = timed(lambda: simulate(schedule))
    actions = sum(map(len, schedule.actions))
    rows = [[f"1f1b: {actions:,} actions generated, then simulated", f"{made_s:.1f} + {took_s:.1f}", ""]]
    graph = chain(layers)
    inner, outer = TopologyLevel(8, 1e10), TopologyLevel(8, 1e9)
    limit = MemoryLimit(8e8 if not smoke else 8e9, "1f1b")
    asked: dict[str, Callable[[], Partition]] = {
        "64 devices": lambda: partition(graph, [TopologyLevel(64, 1e9)]),
        "64 devices, each within its memory": lambda: partition(graph, [TopologyLevel(64, 1e9)], limit=limit),
        "8 machines of 8 devices": lambda: partition(graph, [inner, outer]),
        "8 machines of 8 devices, each within its memory": lambda: partition(graph, [inner, outer], limit=limit),
    }
    for label, ask in asked.items():
        found, took_s = timed(ask)
        rows.append([f"{layers:,} layers cut for {label}", f"{took_s:.1f}", f"{100 * found.gap:.1f} %"])
    return Result(
        title="Time to simulate and to cut pipelines",
        topic=Topic.PIPELINES,
        method="Seconds of processor time, one run each.",
        reference="for the gap, the lower bound on the slowest stage; gap 0 is a proof of optimality.",
        tables=(Table.of(["what", "CPU s", "gap"], rows),),
    )


@benchmark
def pipedream_profiles(smoke: bool) -> Result:
    """The slowest stage on PipeDream's own profiles, beside that of its own optimizer."""
    rows = []
    for model, levels, seconds in PIPEDREAM:
        graph = read_profile(PROFILES / f"{model}.txt")
        found, took_s = timed(partial(partition, graph, [TopologyLevel(*one) for one in levels]))
        stages = "-".join(str(stage.replicas) for stage in found.stages)
        workers = " x ".join(str(count) for count, _ in levels)
        figures = (f"{seconds:.6f}", f"{found.objective_s:.6f}", stages, f"{100 * found.gap:.0f} %", f"{took_s:.2f}")
        rows.append([model, workers, *figures])
    return Result(
        title="Slowest stage on PipeDream's profiles",
        topic=Topic.PIPELINES,
        method="Time of the slowest stage of the best partition; workers over 1e9 bytes/s, 4 x 4 over 4 and 2.5 GiB/s.",
        reference="PipeDream's own optimizer (Narayanan et al. 2019) on the profiles it published. Gap 0 is a proof of "
        "optimality.",
        tables=(Table.of(["profile", "workers", "PipeDream's s", "s here", "replicas", "gap", "CPU s"], rows),),
    )


@benchmark
def gpipe_throughput(smoke: bool) -> Result:
    """GPipe's published throughput beside the simulator's."""
    tables = []
    for model, published in GPIPE.items():
        sent = fitted(model)
        rows = []
        for microbatches, there in published.items():
            pairs = zip(there, simulated(microbatches, sent), strict=True)
            rows.append([microbatches, *(f"{figure:g} / {here:.2f}" for figure, here in pairs)])
        columns = ["micro-batches", *(f"{devices} TPUs" for devices in DEVICES)]
        caption = (
            f"{model}, published / simulated; sending what crosses a cut takes {100 * sent:.1f} % of the computation"
        )
        tables.append(Table.of(columns, rows, caption))
    free = ", ".join(f"{figure:.2f}" for figure in simulated(4, 0.0))
    return Result(
        title="GPipe's published throughput",
        topic=Topic.PIPELINES,
        method="Throughput over that on 2 TPUs with one micro-batch, simulated with equal stages and one parameter, "
        "the "
        f"time to send what crosses a cut, fitted to the row of {FITTED_TO} micro-batches.",
        reference="the throughput that Huang et al. (2019) published.",
        tables=tuple(tables),
        notes=(
            f"Equal stages without any communication give {free} at 4 micro-batches, so no simulator of equal stages "
            "can reach the Transformer's row.",
            "AmoebaNet's stages are far from equal.",
        ),
    )


def simulated(microbatches: int, sent: float) -> list[float]:
    """Throughput on each number of devices over that on 2 with one micro-batch; equal stages.

    `sent`: transfer time of a mini-batch over a cut, over its computation time; the only parameter.
    """
    return [_seconds(2, 1, sent) / _seconds(devices, microbatches, sent) for devices in DEVICES]


def _seconds(devices: int, microbatches: int, sent: float) -> float:
    pass_s = 1 / (devices * microbatches * (1 + BACKWARD))
    costs = ScheduleCosts(pass_s, BACKWARD * pass_s, transfer_s=sent / microbatches, overlap=False)
    return simulate(make_schedule("gpipe", devices, microbatches), costs).makespan_s


def fitted(model: str) -> float:
    """The parameter that minimises the largest difference in the row of most micro-batches."""
    return min((number / 1000 for number in range(0, 201, 4)), key=lambda sent: worst(model, FITTED_TO, sent))


def worst(model: str, microbatches: int, sent: float) -> float:
    """The largest relative difference in a row."""
    published = GPIPE[model][microbatches]
    return max(abs(here / there - 1) for there, here in zip(published, simulated(microbatches, sent), strict=True))


def chain(size: int, seed: int = 1) -> LayerGraph:
    """A chain of layers of uneven times and sizes."""
    rng = random.Random(seed)
    layers = tuple(
        Layer(
            f"l{i}", rng.uniform(0.5, 2) * 1e-3, rng.uniform(1, 4) * 1e-3, rng.uniform(1e5, 1e6), rng.uniform(1e6, 1e7)
        )
        for i in range(size)
    )
    return LayerGraph(layers, tuple((i, i + 1) for i in range(size - 1)))


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The return value of `work` and its CPU seconds."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began
