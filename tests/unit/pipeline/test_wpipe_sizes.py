"""WPipe's M:N: memory by its formulas, and the choice by time and memory."""

from __future__ import annotations

import json

import pytest

from jellybean.cli import run as command
from jellybean_solver import SolverError
from jellybean_solver.pipeline import COLLECTIVES, Layer, LayerGraph, fastest_size, wpipe_sizes

LAYERS, PARAMETERS, ACTIVATIONS, STATES = 16, 1000.0, 50.0, 2.0


def graph(parameters: float = PARAMETERS, activations: float = ACTIVATIONS) -> LayerGraph:
    layers = tuple(Layer(str(i), 1e-3, 2e-3, activations, parameters) for i in range(LAYERS))
    return LayerGraph(layers, tuple((i, i + 1) for i in range(LAYERS - 1)))


@pytest.mark.parametrize("batch", [8.0, 64.0])
def test_memory_is_that_of_the_formulas(batch):
    """Device 0 has 2 M half-size activations, two versions of one stage and one of the other."""
    for one in wpipe_sizes(graph(), 8, batch, 1e9, STATES)[1:]:
        stage = PARAMETERS * LAYERS / (2 * one.devices)
        weights = stage * ((2 + 1 + STATES) + (1 + 1 + STATES))
        half = ACTIVATIONS * LAYERS / (2 * one.devices) * batch / 8
        assert one.memory_bytes == pytest.approx(weights + 2 * one.devices * half)


def test_one_device_is_data_parallelism():
    """No old weights, one sum of all gradients; the time of the whole model on an eighth of the batch."""
    alone = wpipe_sizes(graph(), 8, 8.0, 1e6, STATES)[0]
    assert (alone.devices, alone.replicas) == (1, 8)
    assert alone.memory_bytes == pytest.approx(LAYERS * (PARAMETERS * (1 + 1 + STATES) + ACTIVATIONS))
    assert alone.update_s == pytest.approx(LAYERS * 3e-3 + COLLECTIVES["ring"].seconds(LAYERS * PARAMETERS, 8, 1e6))


def test_all_sizes_with_enough_layers():
    assert [(one.devices, one.replicas) for one in wpipe_sizes(graph(), 32, 32.0, 1e9)] == [
        (1, 32),
        (2, 16),
        (4, 8),
        (8, 4),
    ]
    with pytest.raises(SolverError, match="positive"):
        wpipe_sizes(graph(), 4, 0.0, 1e9)


def test_the_choice_is_the_fastest_that_fits():
    """Large weights on slow links favour pipelines, large activations data parallelism; memory forces pipelines."""
    heavy = wpipe_sizes(graph(parameters=1e6), 8, 8.0, 1e7)
    assert fastest_size(heavy).devices > 1
    light = wpipe_sizes(graph(parameters=1.0, activations=1e6), 8, 8.0, 1e7)
    assert fastest_size(light).devices == 1
    limit = light[0].memory_bytes - 1
    assert all(one.memory_bytes > limit for one in light if one.update_s < (fastest_size(light, limit) or one).update_s)
    assert fastest_size(light, 1.0) is None
    assert fastest_size(heavy).update_s == min(one.update_s for one in heavy)


def test_the_command_marks_its_choice(tmp_path, capsys):
    path = tmp_path / "layers.txt"
    lines = [
        f"node{i} -- Layer({i}) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=50.0, "
        f"parameter_size=1000000.0"
        for i in range(8)
    ]
    path.write_text("\n".join([*lines, *(f"\tnode{i} -- node{i + 1}" for i in range(7))]) + "\n", encoding="utf-8")
    assert command(["pipeline", "wpipe", str(path), "--workers", "4", "--batches", "4,400", "--bandwidth", "1e8"]) == 0
    text = capsys.readouterr().out
    assert "batch 4: M:N = " in text
    assert "1:4" in text
    assert "4:1" in text
    assert command(["pipeline", "wpipe", str(path), "--workers", "4", "--batches", "4", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [one["model_parallel"] for one in records] == [1, 2, 4]
    assert sum(one["chosen"] for one in records) == 1
    assert command(["pipeline", "wpipe", str(path), "--batches", "x"]) == 2
