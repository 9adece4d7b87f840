"""`pipeline profile` of ONNX files: layers, cuts, and what the partitioner reads of it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from rich.console import Console

from jellybean.errors import JellyBeanError
from jellybean.pipeline import (
    OnnxGraph,
    OnnxProfile,
    find_layers,
    offered_cuts,
    partition_notes,
    partition_table,
    profile_model,
    read_profile,
)
from jellybean.pipeline.onnx_graph import GraphError
from jellybean_solver.pipeline import Layer, LayerGraph, TopologyLevel, partition, partition_line
from tests.unit.pipeline.onnx_models import conv_net, skip_net


def test_a_file_by_layer(tmp_path):
    onnx.save(conv_net(), tmp_path / "net.onnx")
    found = profile_model(str(tmp_path / "net.onnx"), seconds=0.05)
    assert [layer.name for layer in found.graph.layers] == ["conv0", "conv1", "conv2", "linear"]
    assert min(layer.forward_s for layer in found.graph.layers) > 0
    assert {layer.backward_s for layer in found.graph.layers} == {0.0}
    assert [cut.layers for cut in found.cuts] == [(0,), (0, 1), (0, 1, 2)]
    assert [cut.why_not for cut in found.cuts] == ["", "", ""]
    record = found.to_json()
    assert record["cuts"][0]["crossing_bytes"] == 4 * 8 * 8 * 4
    assert record["complete"]

    (tmp_path / "layers.txt").write_text(found.to_text(), encoding="utf-8")
    graph = read_profile(tmp_path / "layers.txt")
    assert [layer.parameter_bytes for layer in graph.layers] == [layer.parameter_bytes for layer in found.graph.layers]
    assert sum(len(stage.layers) for stage in partition(graph, [TopologyLevel(2, 1e12)]).stages) == 4

    console = Console(width=120, record=True)
    console.print(found.table())
    text = console.export_text()
    assert "2 conv1" in text
    assert "backward" not in text  # an ONNX file has none
    assert "1 KiB" in text  # across, after the first layer
    assert found.notes[0] == "3 legal cuts, 3 of which can be served"


def test_tied_weights_and_cuts_that_cannot_be_served(tmp_path):
    onnx.save(skip_net(), tmp_path / "net.onnx")
    found = profile_model(str(tmp_path / "net.onnx"), seconds=0.05)
    assert found.tied == {"w": ("first", "second")}
    np.savez(tmp_path / "requests.npz", a=np.zeros((3, 6), np.float32), b=np.zeros((3, 4), np.float32))
    again = profile_model(str(tmp_path / "net.onnx"), inputs=tmp_path / "requests.npz", seconds=0.05)
    assert [cut.crossing_bytes for cut in again.cuts] == [cut.crossing_bytes for cut in found.cuts]
    np.savez(tmp_path / "requests.npz", a=np.zeros((3, 6), np.float32))
    with pytest.raises(GraphError, match="has no array 'b'"):
        profile_model(str(tmp_path / "net.onnx"), inputs=tmp_path / "requests.npz")


def test_a_torch_function_needs_torch_and_a_file(tmp_path):
    with pytest.raises(JellyBeanError, match=r"torch is not installed|there is no file"):
        profile_model(f"{tmp_path}/nets.py:make")


def test_offered_cuts_are_spread_over_the_time_with_the_fewest_bytes():
    graph = OnnxGraph(conv_net())
    rng = np.random.default_rng(0)
    layers = find_layers(graph, graph.observe([{"picture": rng.normal(size=(1, 1, 16, 16)).astype(np.float32)}]))
    profile = OnnxProfile(layers, (0.1, 0.1, 0.7, 0.1))  # cuts after 10, 20 and 90 %
    assert [len(cut.layers) for cut in offered_cuts(profile, 10)] == [1, 2, 3]
    assert [len(cut.layers) for cut in offered_cuts(profile, 2)] == [2, 3]  # of the first half the one with fewer bytes
    assert [len(cut.layers) for cut in offered_cuts(profile, 1)] == [3]


def test_a_plan_of_a_profile_without_backward_says_what_it_counts():
    graph = LayerGraph((Layer("a", 1.0, 0.0, 500.0), Layer("b", 1.0, 0.0, 0.0)), ((0, 1),))
    (told,) = partition_notes(graph, partition(graph, [TopologyLevel(2, 1e3)]), line=False)
    assert "counts gradient sums between replicas and activations both ways" in told
    assert partition_notes(graph, partition(graph, [TopologyLevel(2, 1e3)], objective="balance"), line=False) == ()
    trained = LayerGraph(tuple(Layer(layer.name, 1.0, 2.0, 500.0) for layer in graph.layers), graph.edges)
    assert partition_notes(trained, partition(trained, [TopologyLevel(2, 1e3)]), line=False) == ()


def test_a_line_says_which_device_a_stage_is_on():
    graph = LayerGraph((Layer("a", 1.0, 0.0, 500.0), Layer("b", 8.0, 0.0, 0.0)), ((0, 1),))
    found = partition_line(graph, [0.1, 1.0, 2.0], [1e3, 1e9])
    console = Console(width=120, record=True)
    console.print(partition_table(graph, found))
    assert re.search(r"stage +. device .*\n.*\n. 0 +. 2 ", console.export_text())
    (told,) = partition_notes(graph, found, line=True)
    assert told.startswith("0 s are sending; devices count from 0")
