"""ONNX models split at every legal cut compute the same outputs as the whole model."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from jellybean.pipeline import OnnxGraph, find_layers, split
from jellybean.pipeline.onnx_graph import GraphError
from jellybean.pipeline.onnx_split import why_not_servable
from tests.unit.pipeline.onnx_models import conv_net, model, normal, random_net, skip_net


def run(proto, feed):
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    known = {item.name for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(None, {k: v for k, v in feed.items() if k in known}), strict=True))


def feeds(proto, rows, seed=1):
    rng = np.random.default_rng(seed)
    weights = {tensor.name for tensor in proto.graph.initializer}
    ports = [value for value in proto.graph.input if value.name not in weights]
    return {
        value.name: normal(rng, rows, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        for value in ports
    }


def cut_up(proto):
    graph = OnnxGraph(proto)
    return graph, find_layers(graph, graph.observe([feeds(proto, 1), feeds(proto, 1, 2)]))


def check_all(proto):
    """Check that every servable cut gives the whole model's outputs; returns their number."""
    graph, layers = cut_up(proto)
    served = 0
    for cut in layers.cuts:
        if why_not_servable(graph, layers.observed, cut):
            with pytest.raises(GraphError, match="cannot be split"):
                split(layers, cut)
            continue
        served += 1
        head, tail = split(layers, cut)
        onnx.checker.check_model(head)
        onnx.checker.check_model(tail)
        for rows in (1, 3):
            feed = feeds(proto, rows, rows)
            sent = run(head, feed)
            assert len(sent) == 1
            assert next(iter(sent.values())).nbytes == rows * cut.nbytes
            found, whole = run(tail, {**feed, **sent}), run(proto, feed)
            assert list(found) == list(whole)
            for name in whole:
                np.testing.assert_allclose(found[name], whole[name], rtol=1e-5, atol=1e-5)
    return served


def test_layers_of_a_chain_are_its_matrices():
    graph, layers = cut_up(conv_net())
    assert [layers.name(index) for index in range(len(layers.groups))] == ["conv0", "conv1", "conv2", "linear"]
    assert [cut.crossing for cut in layers.cuts] == [("p0",), ("p1",), ("flattened",)]
    assert [cut.nbytes for cut in layers.cuts] == [4 * 8 * 8 * 4, 6 * 4 * 4 * 4, 8 * 2 * 2 * 4]
    assert graph.parameter_bytes(layers.groups[0]) == 4 * (4 * 9 + 4)
    assert layers.complete


def test_every_cut_of_a_chain():
    assert check_all(conv_net()) == 3


def test_every_cut_with_skips_tied_weights_side_inputs_and_an_early_output():
    graph, layers = cut_up(skip_net())
    whole = {name: cut for cut in layers.cuts for name in [tuple(layers.name(layer) for layer in cut.layers)]}
    both = whole["first", "second"]
    assert both.crossing == ("x2", "x3")  # the skip goes across
    assert not why_not_servable(graph, layers.observed, both)
    head, tail = split(layers, whole["first",])
    assert {t.name for t in head.graph.initializer} == {"w"}
    assert {t.name for t in tail.graph.initializer} == {"w", "v", "half", "four"}  # tied weights are in both
    assert next(value.name for value in tail.graph.input) == "b"  # a branch's input goes straight to the tail
    assert check_all(skip_net()) > 3


def test_inputs_come_in_the_order_asked_for():
    _, layers = cut_up(skip_net())
    last = max(layers.cuts, key=lambda cut: len(cut.layers))
    head, _ = split(layers, last, ["b", "a"])
    assert [value.name for value in head.graph.input] == ["b", "a"]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_cut_of_random_graphs(seed):
    check_all(random_net(np.random.default_rng(seed)))


def test_a_cut_where_types_mix_is_legal_and_not_served():
    nodes = [
        helper.make_node("Tanh", ["a"], ["x"]),
        helper.make_node("Greater", ["x", "zero"], ["mask"]),
        helper.make_node("Where", ["mask", "x", "zero"], ["y"], "where"),
    ]
    proto = model(nodes, {"a": ["n", 3]}, {"y": ["n", 3]}, {"zero": np.float32(0)})
    graph, layers = cut_up(proto)
    reasons = [why_not_servable(graph, layers.observed, cut) for cut in layers.cuts]
    assert any("several types" in reason for reason in reasons)
    check_all(proto)


def test_what_a_subgraph_reads_crosses_too():
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["doubled"])],
        "then",
        [],
        [helper.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, ["n", 3])],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w2"], ["negated"])],
        "else",
        [],
        [helper.make_tensor_value_info("negated", onnx.TensorProto.FLOAT, ["n", 3])],
    )
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["x"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=other),
    ]
    weights = {"w": np.eye(3, dtype=np.float32) * 2, "w2": -np.eye(3, dtype=np.float32), "yes": np.array(True)}
    proto = model(nodes, {"a": ["n", 3]}, {"y": ["n", 3]}, weights)
    _, layers = cut_up(proto)
    assert [cut.crossing for cut in layers.cuts] == [("x",)]
    assert check_all(proto) == 1


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(GraphError, match="not an ONNX model"):
        OnnxGraph.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("content", [None, b"", b"x" * 10], ids=["missing", "empty", "cut off"])
def test_weights_in_another_file_that_cannot_be_read(tmp_path, content):
    weights = numpy_helper.from_array(np.ones((1, 64), np.float32), "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [weights])
    outside = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx", **outside)
    assert OnnxGraph.load(tmp_path / "m.onnx").parameter_bytes([0]) == 256
    (tmp_path / "w.data").unlink()
    if content is not None:
        (tmp_path / "w.data").write_bytes(content)
    with pytest.raises(GraphError, match=r"weights of .*m\.onnx in other files cannot be read: .*\bw\b"):
        OnnxGraph.load(tmp_path / "m.onnx")
