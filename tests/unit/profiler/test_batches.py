"""Inputs of several requests become one batch, where the model takes one."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from jellybean.profiler import flow
from jellybean.profiler.cache import Cache
from jellybean.profiler.latency import BatchDifference, LatencyMeter, Point
from jellybean.profiler.profiler import batch_note, mixed_note
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Inputs, Model, Step, Workload
from jellybean_agent import InvalidInputError, batched, hash_model
from jellybean_agent.tensors.stacking import GatheredBatch
from jellybean_solver import Edge, OutOfTimeError, limited_work
from tests.support.exported_forms import save_graph
from tests.support.silent_process import silent_process
from tests.support.tiny_models import save


def test_batches_stack_along_the_leading_dimension_and_wrap() -> None:
    sample = [(np.full((1, 2), index), np.full((1,), 10 * index)) for index in range(3)]
    batches = batched(sample, 2)
    assert [first[:, 0].tolist() for first, _ in batches] == [[0, 1], [2, 0], [1, 2]]
    assert [second.tolist() for _, second in batches] == [[0, 10], [20, 0], [10, 20]]


@pytest.mark.parametrize(("size", "batch", "batches"), [(10, 4, 5), (64, 4, 16), (8, 8, 1), (3, 16, 1), (60, 32, 2)])
def test_every_request_is_in_as_many_batches_where_few_passes_do(size: int, batch: int, batches: int) -> None:
    """Ten requests made three batches of four, and the first two requests were timed twice."""
    found = batched([(np.full((1,), index),) for index in range(size)], batch)
    assert len(found) == batches
    times = np.bincount(np.concatenate([rows for (rows,) in found]), minlength=size)
    assert batch // np.gcd(size, batch) > 4 or len(set(times.tolist())) == 1


def test_a_batch_of_one_is_the_sample_itself() -> None:
    sample = [((np.zeros((1, 2)), np.zeros((1, 2))),)]
    assert batched(sample, 1) == sample


def test_inputs_of_a_gather_keep_the_numbers_of_their_rows() -> None:
    one, three = ((np.zeros((1, 2)),),), ((np.zeros((2, 2)), np.zeros((1, 2))),)
    (found,) = batched([one, three], 2)
    (gathered,) = found
    assert isinstance(gathered, GatheredBatch)
    assert (gathered.rows, [child.shape for child in gathered.children]) == ((1, 3), [(1, 2), (2, 2), (1, 2)])
    with pytest.raises(InvalidInputError, match="differ in size or type"):
        batched([one, ((np.zeros((1, 3)),),)], 2)


def meter_of(
    folder: Path, nodes: list[onnx.NodeProto], input_shape: list, sample: list[Inputs], **more
) -> tuple[LatencyMeter, Model]:
    path = folder / "m.onnx"
    sha256 = save(path, nodes, {"x": input_shape}, ("y", [None] * len(input_shape)), **more)
    model = Model("look", "m", path, sha256)
    edge = Edge("x", "look")
    workload = Workload((Step("look", (edge,), (model,)),), {"x": np.zeros((1, 2))}, None, "top1", {"box": 1.0})
    survey = Survey({"look": sample}, {}, {}, {})
    return LatencyMeter(workload, survey, Cache.open(folder, resume=False), 0.01), model


def accepts(folder: Path, node: onnx.NodeProto, input_shape: list, sizes: tuple[int, ...] = (2, 2), **more) -> bool:
    sample: list[Inputs] = [(np.ones((1, size), np.float32),) for size in sizes]
    meter, model = meter_of(folder, [node], input_shape, sample, **more)
    return meter.accepts_batches(model)


def test_outputs_that_depend_on_the_batch_are_found(tmp_path: Path) -> None:
    """`quantize_dynamic` takes one scale over the whole batch; such a model was batched without a word."""
    sample: list[Inputs] = [(np.array([[1.0 + row, 2.0]], np.float32),) for row in range(8)]
    largest = helper.make_node("ReduceMax", ["x"], ["most"], keepdims=1)
    share = helper.make_node("Div", ["x", "most"], ["y"])
    meter, model = meter_of(tmp_path, [largest, share], ["n", 2], sample)
    found = meter.batch_difference(Point(model, 1.0, 4))
    assert found is not None
    assert found.difference == pytest.approx(0.5)  # [1, 2] becomes [0.5, 1] alone, [0.25, 0.5] beside [4, 2]
    note = batch_note(model, found)
    assert note.startswith("look m answers a request differently in a batch: of 4 requests")
    assert "`operators.look.batch: 1`" in note


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        [helper.make_node("CumSum", ["x", "first"], ["y"])],
        [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["y"])],
    ],
)
def test_a_model_that_computes_over_its_rows_gets_no_batches(tmp_path: Path, nodes: list[onnx.NodeProto]) -> None:
    """Its rows are no requests of their own: they may be steps in time."""
    sample: list[Inputs] = [(np.array([[1.0 + row, 2.0 - row]], np.float32),) for row in range(3)]
    meter, model = meter_of(tmp_path, nodes, ["n", 2], sample, first=np.array(0, np.int64))
    assert not meter.accepts_batches(model)
    note = mixed_note(model, meter.mixed[model])
    assert note.startswith("look m is measured, planned and served one request at a time, as it mixes the requests")


SCORES = [helper.make_node("Softmax", ["x"], ["scores"], axis=0)]
IDS = [
    helper.make_node("CumSum", ["x", "first"], ["sums"]),
    helper.make_node("Mul", ["sums", "large"], ["great"]),
    helper.make_node("Cast", ["great"], ["whole"], to=onnx.TensorProto.INT64),
]


WIDE = [  # a little of another request, of a scale of thousands
    helper.make_node("ReduceMax", ["x"], ["most"]),
    helper.make_node("Mul", ["most", "ten"], ["some"]),
    helper.make_node("Mul", ["x", "large"], ["great"]),
    helper.make_node("Add", ["great", "some"], ["wide"]),
]


@pytest.mark.parametrize(("other", "output"), [(IDS, "whole"), (WIDE, "wide")])
@pytest.mark.parametrize("is_first", [True, False])
def test_each_output_that_is_sent_is_judged(
    tmp_path: Path, other: list[onnx.NodeProto], output: str, is_first: bool
) -> None:
    sample: list[Inputs] = [(np.array([[1.0 + row, 2.0 - row]], np.float32),) for row in range(3)]
    path = tmp_path / "m.onnx"
    kind = onnx.TensorProto.INT64 if output == "whole" else onnx.TensorProto.FLOAT
    constants = {"first": np.array(0), "ten": np.float32(10.0), "large": np.float32(1000.0)}
    made = {"scores": (onnx.TensorProto.FLOAT, ["n", 2]), output: (kind, ["n", 2])}
    save_graph(path, [*SCORES, *other], {"x": (onnx.TensorProto.FLOAT, ["n", 2])}, made, constants)
    names = ["scores", output] if is_first else [output, "scores"]
    model = Model("look", "m", path, hash_model(path)[0])
    steps = [Step("look", (Edge("x", "look"),), (model,))]
    steps += [Step(f"next-{name}", (Edge("look", f"next-{name}", output=name),), ()) for name in names]
    workload = Workload(tuple(steps), {"x": np.zeros((1, 2))}, None, "top1", {"box": 1.0})
    meter = LatencyMeter(workload, Survey({"look": sample}, {}, {}, {}), Cache.open(tmp_path, resume=False), 0.01)
    assert not meter.accepts_batches(model)
    assert meter.mixed[model].largest_value < 2.0  # that of the scores


def test_a_little_of_another_request_is_no_reason_against_batches(tmp_path: Path) -> None:
    """As of dynamic quantization; and labels of a class may be others by a little rounding."""
    sample: list[Inputs] = [(np.array([[1.0 + row, 2.0 - row]], np.float32),) for row in range(3)]
    share = [
        helper.make_node("ReduceMax", ["x"], ["most"]),
        helper.make_node("Mul", ["most", "little"], ["some"]),
        helper.make_node("Add", ["x", "some"], ["y"]),
    ]
    meter, model = meter_of(tmp_path, share, ["n", 2], sample, little=np.float32(0.01))
    assert meter.accepts_batches(model)
    assert not BatchDifference(2, 5.0, 9.0, is_float=False).is_mixed
    assert BatchDifference(2, 5.0, 9.0).is_mixed


def test_batches_are_tried_in_the_process_for_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a model may crash, or keep busy until the time limit of the command."""
    sample: list[Inputs] = [(np.array([[1.0 + row, 2.0]], np.float32),) for row in range(3)]
    meter, model = meter_of(tmp_path, [helper.make_node("Softmax", ["x"], ["y"], axis=1)], ["n", 2], sample)
    point, process = Point(model, 1.0, 2), silent_process()
    monkeypatch.setattr(flow, "trial_process", lambda: process)
    for ask in (lambda: meter.accepts_batches(model), lambda: meter.batch_difference(point)):
        with (
            pytest.raises(OutOfTimeError, match="ended the trial of batches of look m"),
            limited_work(0.01, time.monotonic),
        ):
            ask()
        assert not process.is_alive


def test_outputs_of_independent_rows_are_the_same_in_a_batch(tmp_path: Path) -> None:
    sample: list[Inputs] = [(np.array([[1.0 + row, 2.0]], np.float32),) for row in range(8)]
    meter, model = meter_of(tmp_path, [helper.make_node("Softmax", ["x"], ["y"], axis=1)], ["n", 2], sample)
    assert meter.batch_difference(Point(model, 1.0, 4)) is None


def test_which_models_are_measured_in_batches(tmp_path: Path) -> None:
    double = helper.make_node("Add", ["x", "x"], ["y"])
    assert accepts(tmp_path, double, ["n", 2])
    assert not accepts(tmp_path, double, [1, 2])
    assert not accepts(tmp_path, double, ["n", "m"], sizes=(2, 3))  # requests of several sizes
    sums = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    assert accepts(tmp_path, sums, ["n", 2], axes=np.array([1], np.int64))
    assert not accepts(tmp_path, sums, ["n", 2], axes=np.array([0], np.int64))  # mixes its requests
    one_row = helper.make_node("Reshape", ["x", "shape"], ["y"])
    assert not accepts(tmp_path, one_row, ["n", 2], shape=np.array([1, 2], np.int64))  # says any, takes one
