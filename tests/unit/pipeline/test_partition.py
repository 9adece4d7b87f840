"""Partitions against PipeDream's published figures, and invalid arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jellybean.errors import DocumentError, JellyBeanError
from jellybean.pipeline import read_profile
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    Layer,
    LayerGraph,
    MemoryLimit,
    NothingFitsError,
    PartitionSettings,
    PartitionStage,
    TopologyLevel,
    partition,
    stage_devices,
)
from tests.support.paths import PUBLISHED

PROFILES = PUBLISHED / "pipedream"


@pytest.mark.parametrize(
    ("model", "levels", "seconds", "replicas"),
    [
        ("vgg16", [(4, 1e9)], 0.205521, [3, 1]),
        ("vgg16", [(16, 1e9)], 0.056530, [13, 2, 1]),
        ("resnet50", [(4, 1e9)], 0.162881, [2, 2]),
        ("resnet50", [(4, 4 * 2.0**30), (4, 2.5 * 2.0**30)], 0.035153, [4]),
        ("gnmt", [(4, 1e9)], 0.025868, [1, 1, 1, 1]),
    ],
)
def test_never_slower_than_the_published_optimizer(
    model: str, levels: list[tuple[int, float]], seconds: float, replicas: list[int]
) -> None:
    found = partition(read_profile(PROFILES / f"{model}.txt"), [TopologyLevel(*level) for level in levels])
    assert found.objective_s <= seconds + 5e-7
    assert [stage.replicas for stage in found.stages] == replicas


def test_the_papers_own_recurrence() -> None:
    found = partition(read_profile(PROFILES / "resnet50.txt"), [TopologyLevel(4, 1e9)], objective="pipedream-paper")
    assert [stage.replicas for stage in found.stages] == [3, 1]


@pytest.mark.parametrize(("workers", "seconds"), [(4, 0.025868), (8, 0.019285)])
def test_layers_without_time_may_stand_anywhere(workers: int, seconds: float) -> None:
    """6,820 down-sets, of which 27 matter: those of one order give 0.025166 s on 8 workers."""
    found = partition(read_profile(PROFILES / "gnmt.txt"), [TopologyLevel(workers, 1e9)])
    assert found.objective_s == pytest.approx(seconds, abs=5e-7)
    assert found.cuts < 100
    assert found.gap == 0


@pytest.mark.parametrize("idle_first", [True, False])
def test_a_stage_of_a_layer_without_work_saves_an_all_reduce(idle_first: bool) -> None:
    """Alpa gives every device a stage; on two replicas the weights of one layer would take 4 s an iteration to sum."""
    heavy, idle = Layer("heavy", 1e-3, 0, 1, 2e9), Layer("idle", 0, 0, 1, 0)
    graph = LayerGraph((idle, heavy) if idle_first else (heavy, idle), ((0, 1),))
    plan = partition(graph, [TopologyLevel(2, 1e9)], objective="alpa-inter", microbatches=4)
    assert (plan.objective_s, plan.gap) == (pytest.approx(4e-3), 0)
    assert [stage.layers for stage in plan.stages] == [(0,), (1,)]


def test_no_layer_is_dropped_for_its_name(tmp_path: Path) -> None:
    line = "{} -- {} -- forward_compute_time={}, backward_compute_time=0, activation_size={}, parameter_size=0"
    computed = ["Input", "InputEmbedding", "Input0", "Output", "input.1", "7", "日本", " a -- b=1 ", "x\u2028y"]
    lines = [line.format(number, name, 1, 4) for number, name in enumerate(computed)]
    lines += [line.format("read", "Input", 0, 0), line.format("shape", "Reshape", 0, 0)]
    lines += [line.format("argument", "Input0", 0, 0), line.format("other", "Input", 0, 0)]
    edges = [f"\t{number} -- {number + 1}" for number in range(len(computed) - 1)]
    edges += ["\t8 -- read", "\tread -- shape", "\targument -- 0", "\tother -- shape"]
    path = tmp_path / "layers.txt"
    path.write_text("\n".join(lines + edges), encoding="utf-8")
    assert [layer.name for layer in read_profile(path).layers] == [*computed, "Input", "Reshape"]


def test_a_graph_of_too_many_cuts_has_a_gap() -> None:
    """Eight branches of four layers have 5^8 down-sets."""
    layers = tuple(Layer(f"l{i}", 1 + i % 3, 2, 1, 1) for i in range(32))
    graph = LayerGraph(layers, tuple((i, i + 1) for i in range(32) if i % 4 != 3))
    found = partition(graph, [TopologyLevel(4, 1e9)])
    assert found.bound_s == pytest.approx(sum(layer.compute_s for layer in layers) / 4)
    assert 0 < found.gap < 0.2


CHAIN = LayerGraph((Layer("a", 1, 1, 1, 1), Layer("b", 1, 1, 1, 1)), ((0, 1),))


@pytest.mark.parametrize(
    ("levels", "objective", "told"),
    [
        ([], "slowest-stage", "at least one at each level"),
        ([TopologyLevel(0, 1.0)], "slowest-stage", "0 workers"),
        ([TopologyLevel(100, 1.0), TopologyLevel(100, 1.0)], "slowest-stage", "10000 workers"),
        ([TopologyLevel(2, 0.0)], "slowest-stage", "bandwidth"),
        ([TopologyLevel(2, 1.0)], "fastest", "there are slowest-stage, pipedream-paper, dapple"),
    ],
)
def test_what_cannot_be_asked(levels: list[TopologyLevel], objective: str, told: str) -> None:
    with pytest.raises(SolverError, match=told):
        partition(CHAIN, levels, objective=objective)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no layers"),
        ("nonsense", ":1: neither a layer"),
        ("n1 -- Conv -- forward_compute_time=1.0", "backward_compute_time, activation_size, parameter_size is missing"),
        (
            "n1 -- C -- forward_compute_time=x, backward_compute_time=1, activation_size=1, parameter_size=1",
            "no number",
        ),
        ("n1 -- C -- forward_compute_time=-1, backward_compute_time=1, activation_size=1, parameter_size=1", "below 0"),
        ("\tn1 -- n2", "an end that is no layer"),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "profile.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DocumentError, match=told):
        read_profile(path)
    with pytest.raises(JellyBeanError, match="there is no such file; make one"):
        read_profile(tmp_path / "none.txt")


def test_memory_is_kept_as_the_schedule_needs_it() -> None:
    """Three equal layers on three workers: a stage keeps the micro-batches in flight, the first stage the most."""
    graph = LayerGraph(tuple(Layer(name, 1, 2, 10, 100) for name in "abc"), ((0, 1), (1, 2)))
    needed = {
        MemoryLimit(1, "naive"): 2 * 100 + 10,
        MemoryLimit(1, "1f1b"): 2 * 100 + 3 * 10,
        MemoryLimit(1, "1f1b", 2): 2 * 100 + 2 * 10,
        MemoryLimit(1, "gpipe", 8): 2 * 100 + 8 * 10,
        MemoryLimit(1, "pipedream"): 4 * 100 + 3 * 10,
        MemoryLimit(1, "pipedream-2bw"): 3 * 100 + 3 * 10,
        MemoryLimit(1, "1f1b", None, 2.0): 4 * 100 + 3 * 10,
    }
    for limit, taken in needed.items():
        fits = partition(graph, [TopologyLevel(3, 1e9)], limit=replace(limit, limit_bytes=taken))
        assert [stage.replicas for stage in fits.stages] == [1, 1, 1]
        with pytest.raises(NothingFitsError, match="would do"):
            partition(graph, [TopologyLevel(3, 1e9)], limit=replace(limit, limit_bytes=taken - 11))


def test_too_little_memory_is_proven_only_where_all_cuts_were_looked_at() -> None:
    layers = tuple(Layer(f"l{i}", 1, 2, 10, 100) for i in range(8))
    graph = LayerGraph(layers, tuple((i, i + 1) for i in range(8) if i % 4 != 3))
    with pytest.raises(NothingFitsError, match=r"^no partition fits into 50 bytes"):
        partition(graph, [TopologyLevel(2, 1.0)], limit=MemoryLimit(50))
    with pytest.raises(NothingFitsError, match=r"^no partition at the 9 cuts that were evaluated fits into 50 bytes"):
        partition(graph, [TopologyLevel(2, 1.0)], limit=MemoryLimit(50), settings=PartitionSettings(max_pruned_cuts=3))


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ({"limit_bytes": 1, "schedule": "chimera"}, "not known here; it is for naive, gpipe"),
        ({"limit_bytes": 1, "schedule": "gpipe"}, "say how many"),
        ({"limit_bytes": 0}, "above 0 bytes"),
        ({"limit_bytes": 1, "states": -1}, "not below 0"),
    ],
)
def test_limits_that_cannot_be(limit: dict[str, Any], told: str) -> None:
    with pytest.raises(SolverError, match=told):
        MemoryLimit(**limit)


def test_dapples_plan_names_the_machines_of_its_replicas() -> None:
    """The last stage is placed first; the replicas of the first one are together on the fresh machine."""
    layers = (Layer("a", 2.0, 4.0, 1e3, 1e8), Layer("b", 1.0, 2.0, 1e3, 1e11))
    levels = [TopologyLevel(2, 1e10), TopologyLevel(2, 1e8)]
    found = partition(LayerGraph(layers, ((0, 1),)), levels, objective="dapple", microbatches=8)
    assert [stage.devices for stage in found.stages] == [(2, 3), (0,)]


def test_replicas_of_a_hierarchy_alternate_between_machines() -> None:
    """Micro-batch m is on machine m mod 2 at both stages, whose replicas take turns: 1 and 2 of each machine."""
    inner = (PartitionStage((0,), 1, 1.0), PartitionStage((1, 2), 2, 1.0))
    stages = (PartitionStage((0, 1, 2), 2, 1.0, inside=inner), PartitionStage((3,), 1, 1.0))
    placed = stage_devices(stages)
    assert [stage.devices for stage in placed] == [(0, 3), (1, 4, 2, 5), (6,)]
    machines = [[device // 3 for device in stage.devices] for stage in placed[:2]]
    assert all(own[m % len(own)] == m % 2 for own in machines for m in range(8))


def test_dapple_evaluates_fewer_cuts_where_all_are_too_many() -> None:
    settings = PartitionSettings(dapple_max_states=3)
    layers = tuple(Layer(f"l{i}", 1 + i % 3, 2 + i % 5, 10 + i % 7, 5) for i in range(70))
    chain = LayerGraph(layers, tuple((i, i + 1) for i in range(69)))
    levels = [TopologyLevel(4, 50.0), TopologyLevel(2, 5.0)]
    found = partition(chain, levels, objective="dapple", microbatches=8, settings=settings)
    assert found.cuts <= 62
    assert 0 < found.gap < 1
    assert sum(len(stage.layers) for stage in found.stages) == 70


def test_balanced_blocks_leave_out_what_is_sent() -> None:
    """The best that torchgpipe's balance could do: the slowest block of consecutive layers."""
    layers = tuple(Layer(f"l{i}", 1, time, 1e12) for i, time in enumerate([0, 4, 2, 1, 6]))
    chain = LayerGraph(layers, tuple((i, i + 1) for i in range(4)))
    found = partition(chain, [TopologyLevel(3, 1.0)], objective="balance")
    assert found.objective_s == 7
    assert found.gap == 0
