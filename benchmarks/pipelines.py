"""Pipelines: how fast schedules are simulated and models cut, beside what PipeDream and GPipe published."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.registry import benchmark, print_table
from jellybean.pipeline.profile_file import read_profile
from jellybean_solver.pipeline.device_limit import DeviceLimit
from jellybean_solver.pipeline.layers import Layer, LayerGraph
from jellybean_solver.pipeline.partition import Level, Partition, partition
from jellybean_solver.pipeline.schedules import make_schedule
from jellybean_solver.pipeline.simulate import Costs, simulate

PROFILES = Path(__file__).resolve().parents[2] / "shared" / "data" / "pipedream_profiles"
PIPEDREAM = [  # profile, workers and bytes per second by level, seconds of PipeDream's own optimizer
    ("vgg16", [(4, 1e9)], 0.205521),
    ("vgg16", [(16, 1e9)], 0.056530),
    ("resnet50", [(4, 1e9)], 0.162881),
    ("resnet50", [(4, 4 * 2.0**30), (4, 2.5 * 2.0**30)], 0.035153),
    ("gnmt", [(4, 1e9)], 0.025868),
]
DEVICES = (2, 4, 8)
# model -> micro-batches -> throughput on 2, 4, 8 TPUs, over that on 2 with one micro-batch (Huang et al. 2019)
GPIPE = {
    "Transformer": {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8), 32: (1.8, 3.4, 6.3)},
    "AmoebaNet": {1: (1, 1.13, 1.38), 4: (1.07, 1.26, 1.72), 32: (1.21, 1.84, 3.48)},
}
T = TypeVar("T")
FITTED_TO = 32  # micro-batches
BACKWARD = 3.0  # forwards: GPipe computes activations again


@benchmark
def pipelines(smoke: bool) -> None:
    """A million actions; 64 devices and 1,000 layers; PipeDream's profiles; GPipe's table."""
    _speed(smoke)
    _pipedream()
    for model in GPIPE:
        _gpipe(model)


def _speed(smoke: bool) -> None:
    devices, microbatches, layers = (16, 320, 100) if smoke else (64, 7_813, 1_000)
    rows = []
    schedule, made_s = timed(lambda: make_schedule("1f1b", devices, microbatches))
    _, took_s = timed(lambda: simulate(schedule))
    actions = sum(map(len, schedule.actions))
    rows.append([f"1f1b: {actions:,} actions made, then simulated", f"{made_s:.1f} + {took_s:.1f}", ""])
    graph = chain(layers)
    inner, outer = Level(8, 1e10), Level(8, 1e9)
    limit = DeviceLimit(8e8 if not smoke else 8e9, "1f1b")
    asked: dict[str, Callable[[], Partition]] = {
        "64 devices": lambda: partition(graph, [Level(64, 1e9)]),
        "64 devices, each within its memory": lambda: partition(graph, [Level(64, 1e9)], limit=limit),
        "8 machines of 8 devices": lambda: partition(graph, [inner, outer]),
        "8 machines of 8 devices, each within its memory": lambda: partition(graph, [inner, outer], limit=limit),
    }
    for label, ask in asked.items():
        found, took_s = timed(ask)
        rows.append([f"{layers:,} layers, {label}", f"{took_s:.1f}", f"{found.gap:.1%}"])
    print_table("pipelines: CPU seconds", ["what", "s", "gap"], rows)


def _pipedream() -> None:
    if not PROFILES.exists():
        print(f"\nPipeDream's profiles are not in {PROFILES}: left out.")
        return
    rows = []
    for model, levels, seconds in PIPEDREAM:
        graph = read_profile(PROFILES / f"{model}.txt")
        found, took_s = timed(partial(partition, graph, [Level(*one) for one in levels]))
        stages = "-".join(str(stage.replicas) for stage in found.stages)
        workers = " x ".join(str(count) for count, _ in levels)
        figures = (f"{seconds:.6f}", f"{found.objective_s:.6f}", stages, f"{found.gap:.0%}", f"{took_s:.2f}")
        rows.append([model, workers, *figures])
    header = ["profile", "workers", "PipeDream's s", "s here", "replicas", "gap", "CPU s"]
    print_table("slowest stage, beside PipeDream's own optimizer", header, rows)


def _gpipe(model: str) -> None:
    sent = fitted(model)
    rows = []
    for microbatches, published in GPIPE[model].items():
        ours = simulated(microbatches, sent)
        pairs = [f"{there:g} / {here:.2f}" for there, here in zip(published, ours, strict=True)]
        rows.append([microbatches, *pairs])
    title = f"GPipe's throughput of {model}, published / simulated (sending one cut: {sent:.1%} of the computation)"
    print_table(title, ["micro-batches", *(f"{devices} TPUs" for devices in DEVICES)], rows)


def simulated(microbatches: int, sent: float) -> list[float]:
    """Throughput on each number of devices, over that on 2 with one micro-batch; equal stages.

    `sent`: the one parameter, seconds that a mini-batch takes to cross a cut, over those of its computation.
    """
    return [_seconds(2, 1, sent) / _seconds(devices, microbatches, sent) for devices in DEVICES]


def _seconds(devices: int, microbatches: int, sent: float) -> float:
    pass_s = 1 / (devices * microbatches * (1 + BACKWARD))
    costs = Costs(pass_s, BACKWARD * pass_s, transfer_s=sent / microbatches, overlap=False)
    return simulate(make_schedule("gpipe", devices, microbatches), costs).makespan_s


def fitted(model: str) -> float:
    """The parameter with which the row of most micro-batches is nearest, in its worst figure."""
    return min((number / 1000 for number in range(0, 201, 4)), key=lambda sent: worst(model, FITTED_TO, sent))


def worst(model: str, microbatches: int, sent: float) -> float:
    """The largest relative difference of a row."""
    published = GPIPE[model][microbatches]
    return max(abs(here / there - 1) for there, here in zip(published, simulated(microbatches, sent), strict=True))


def chain(size: int, seed: int = 1) -> LayerGraph:
    """Layers of uneven times and sizes, one after the other."""
    rng = random.Random(seed)
    layers = tuple(
        Layer(
            f"l{i}", rng.uniform(0.5, 2) * 1e-3, rng.uniform(1, 4) * 1e-3, rng.uniform(1e5, 1e6), rng.uniform(1e6, 1e7)
        )
        for i in range(size)
    )
    return LayerGraph(layers, tuple((i, i + 1) for i in range(size - 1)))


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What comes of it, and seconds of CPU."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began
