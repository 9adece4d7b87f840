"""Held-out data that a model refuses is named: operator, variant, source, row and value."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from jellybean.cli.failures import status_of
from jellybean.profiler import flow
from jellybean.profiler.accuracy import all_selections
from jellybean.profiler.cache import Cache
from jellybean.profiler.errors import MisfittingEdgeError, ProfileError, RefusedRowError
from jellybean.profiler.flow import Flow, load
from jellybean.profiler.latency import LatencyMeter, Point
from jellybean.profiler.refusals import refusal, refused_value
from jellybean.profiler.survey import Survey, survey
from jellybean.profiler.workload import Array, Inputs, Model, Step, Workload
from jellybean_agent import AgentError, PythonStep
from jellybean_solver import Edge, EdgeKind, OutOfTimeError, limited_work
from tests.support.silent_process import silent_process
from tests.support.tiny_models import scale

STEP = """
from jellybean_agent.steps import step


@step(inputs={"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1, 4))})
def root(inputs):
    if not (inputs["x"] >= 0).all():
        raise ValueError("below zero")
    return {"y": inputs["x"] ** 0.5}
"""


@pytest.fixture
def tag(tmp_path: Path) -> Model:
    """A model that looks ids up in a table of 4,000 rows, next to a mask."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Mul", ["rows", "mask"], ["y"]),
    ]
    ports = {
        name: helper.make_tensor_value_info(name, kind, ["n", 6])
        for name, kind in (("ids", TensorProto.INT64), ("mask", TensorProto.FLOAT))
    }
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])
    table = helper.make_tensor("table", TensorProto.FLOAT, [4000], np.ones(4000))
    graph = helper.make_graph(nodes, "tag", [*ports.values()], [output], [table])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    (tmp_path / "tag.onnx").write_bytes(content)
    return Model("tag", "small", tmp_path / "tag.onnx", hashlib.sha256(content).hexdigest())


def workload(model: Model, bad: Array) -> Workload:
    edges = (Edge("ids", "tag"), Edge("mask", "tag"))
    requests = {"mask": np.ones((20, 6), np.float32), "ids": bad}
    references = {"ids": "data/heldout.npz#ids"}
    return Workload((Step("tag", edges, (model,)),), requests, None, "top1", {}, references=references)


def ids(*bad: int) -> Array:
    found = np.random.default_rng(0).integers(-4000, 4000, (20, 6))
    found[17, 3] = bad[0] if bad else found[17, 3]
    return found


@pytest.mark.parametrize("value", [4000, 5003, -4001])
def test_an_id_outside_the_table_is_named(tag: Model, value: int) -> None:
    work = workload(tag, ids(value))
    with pytest.raises(RefusedRowError) as error:
        survey(work, Flow(work))
    expected = (
        f"operator tag, variant small refuses row 17 (counted from 0) of ids (data/heldout.npz#ids), value {value}"
    )
    assert str(error.value).startswith(f"{expected} at [3]: Gather: ")
    assert "mask" not in str(error.value)
    assert status_of(error.value) == 2


def test_a_variant_that_was_surveyed_with_fewer_rows_names_the_row_too(tag: Model, tmp_path: Path) -> None:
    """Latency is measured on inputs that another variant accepted, in batches too."""
    work = workload(tag, ids(5003))
    inputs: list[Inputs] = [(work.requests["ids"][row : row + 1], np.ones((1, 6), np.float32)) for row in range(20)]
    meter = LatencyMeter(work, Survey({"tag": inputs}, {}, {}, {}, {"tag": list(range(20))}), Cache.open(tmp_path), 4.0)
    for batch in (1, 4):
        with pytest.raises(RefusedRowError, match=r"refuses row 17 \(counted from 0\) of ids .*value 5003 at \[3\]"):
            meter.measure(Point(tag, 1.0, batch), 0)


def test_the_value_is_one_without_which_the_run_succeeds(tag: Model) -> None:
    executor = load(workload(tag, ids()), tag)
    mask = np.ones((1, 6), np.float32)
    assert refused_value(executor, (np.array([[7, 9000, 3, -9000, 8, 9001]]), mask)) is not None
    none = refused_value(executor, (np.array([[7, 0, 3, 1, 8, 2]]), np.ones((1, 5), np.float32)))
    assert none is None  # a wrong shape is due to no value


def test_an_exception_of_a_step_names_what_an_upstream_made_of_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root_step.py").write_text(STEP, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sha256 = hashlib.sha256(STEP.encode()).hexdigest()
    code = PythonStep("root_step:root", "{}", frozenset({"root_step:root"}))
    step = Model("root", "python", Path(), sha256, code, sha256)
    first = Model("double", "net", tmp_path / "double.onnx", scale(tmp_path / "double.onnx", 2.0))
    steps = (Step("double", (Edge("x", "double"),), (first,)), Step("root", (Edge("double", "root"),), (step,)))
    rows = np.ones((5, 4), np.float32)
    rows[3, 2] = np.nan
    work = Workload(steps, {"x": rows}, None, "top1", {})
    with pytest.raises(RefusedRowError) as error:
        survey(work, Flow(work))
    assert "operator root, variant python refuses row 3 (counted from 0) of x, value nan at [2] of what double" in str(
        error.value
    )
    assert "ValueError: below zero" in str(error.value)


def test_a_load_that_the_time_limit_ends_is_no_fault_of_the_model(tag: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    process, work = silent_process(), workload(tag, ids())
    monkeypatch.setattr(flow, "trial_process", lambda: process)
    with (
        pytest.raises(OutOfTimeError, match="ended the measurements at row 0 of the held-out inputs"),
        limited_work(0.02, time.monotonic),
    ):
        Flow(work).answer(0, all_selections(work)[0])
    assert (process.generation, process.is_alive) == (1, False)


def test_a_model_that_cannot_run_here_is_not_the_datas_fault(tag: Model) -> None:
    work = workload(tag, ids())
    tag.path.write_bytes(b"")
    with pytest.raises(ProfileError) as error:
        Flow(work).answer(0, all_selections(work)[0])
    assert not isinstance(error.value, RefusedRowError)
    assert status_of(error.value) == 1


def test_a_shape_that_an_operator_gives_is_the_edges_fault(tag: Model, tmp_path: Path) -> None:
    """The model declares no sizes, so that only its run shows that they are not those of the next model."""
    mask = Model("mask", "net", tmp_path / "mask.onnx", scale(tmp_path / "mask.onnx", 2.0))
    steps = (
        Step("mask", (Edge("x", "mask"),), (mask,)),
        Step("tag", (Edge("ids", "tag"), Edge("mask", "tag")), (tag,)),
    )
    work = Workload(steps, {"ids": ids(), "x": np.ones((20, 4), np.float32)}, None, "top1", {})
    with pytest.raises(MisfittingEdgeError) as error:
        survey(work, Flow(work))
    assert str(error.value) == (
        "operator tag, variant small: what mask gives does not fit, as held-out row 0 (counted from 0) shows: expected "
        "float32 [any, 6], got float32 [1, 4]; name another output of mask, put a step between them, or change one of "
        "the models"
    )
    assert status_of(error.value) == 2


def test_inputs_with_different_numbers_of_rows_are_named_with_the_edge_that_gathers(tmp_path: Path) -> None:
    """A model that concatenates the children's rows with the parent's one along the columns."""
    names = ("part", "x")
    node = helper.make_node("Concat", names, ["y"], axis=1)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4]) for name in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 8])
    graph = helper.make_graph([node], "join", ports, [output])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    (tmp_path / "join.onnx").write_bytes(content)
    join = Model("join", "net", tmp_path / "join.onnx", hashlib.sha256(content).hexdigest())
    part = Model("part", "net", tmp_path / "part.onnx", scale(tmp_path / "part.onnx", 2.0))
    edges = (Edge("part", "join", EdgeKind.GATHER), Edge("x", "join"))
    steps = (Step("part", (Edge("pieces", "part", EdgeKind.FAN_OUT),), (part,)), Step("join", edges, (join,)))
    work = Workload(steps, {"pieces": np.ones((3, 4), np.float32), "x": np.ones((3, 4), np.float32)}, None, "top1", {})
    executor = load(work, join)
    inputs = (np.ones((4, 4), np.float32), np.ones((1, 4), np.float32))
    with pytest.raises(AgentError) as failed:
        executor.run(inputs)
    error = refusal(work, executor, join, inputs, 2, failed.value)
    assert isinstance(error, MisfittingEdgeError)
    assert str(error).startswith(
        "operator join, variant net gets inputs with different numbers of rows, as held-out row 2 (counted from 0) "
        "shows: part gives 4 (its edge gathers), x gives 1; change an edge, or one of the models: "
    )
    assert status_of(error) == 2
