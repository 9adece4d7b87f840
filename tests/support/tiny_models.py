"""Tiny ONNX models and hand-made plans for the serving tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jellybean.documents import model_ref
from jellybean_solver import (
    Arrivals,
    Certificate,
    Cost,
    Deliver,
    Edge,
    EdgeKind,
    Link,
    ModelRef,
    Plan,
    PlannedWorker,
    Route,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    to_document,
)
from jellybean_solver.model.plan_document import Document
from tests.planned import planned_operator

FLOAT = TensorProto.FLOAT


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, list],
    output: tuple[str, list],
    more: Mapping[str, list] | None = None,
    **constants,
):
    """Write a model of one output and `more`; its sha256."""
    graph = helper.make_graph(
        list(nodes),
        path.stem,
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (output, *(more or {}).items())],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def scale(path: Path, factor: float, size: int | str = 4) -> str:
    """y = factor * x, [1, size] to [1, size]."""
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    return save(path, [node], {"x": ["n", size]}, ("y", ["n", size]), factor=np.float32(factor))


def recurrent(path: Path, decay: float = 0.9) -> str:
    """y = tanh(decay * state + x), [n, 4] each; the next state is y. Every answer depends on all chunks before."""
    nodes = [
        helper.make_node("Mul", ["state", "decay"], ["kept"]),
        helper.make_node("Add", ["kept", "x"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["y"]),
        helper.make_node("Identity", ["y"], ["state_next"]),
    ]
    inputs = {"x": ["n", 4], "state": ["n", 4]}
    return save(path, nodes, inputs, ("y", ["n", 4]), more={"state_next": ["n", 4]}, decay=np.float32(decay))


def positives(path: Path) -> str:
    """The positive values of [1, m] as [n, 1]: a fan-out whose n may be 0."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["v"]),
        helper.make_node("Greater", ["v", "zero"], ["keep"]),
        helper.make_node("Compress", ["v", "keep"], ["kept"], axis=0),
        helper.make_node("Reshape", ["kept", "column"], ["y"]),
    ]
    constants = {"flat": np.array([-1], np.int64), "column": np.array([-1, 1], np.int64), "zero": np.float32(0)}
    return save(path, nodes, {"x": [1, "m"]}, ("y", ["n", 1]), **constants)


def segment_sums(path: Path, counts: int = TensorProto.INT64) -> str:
    """The sum of each request's rows of [n, 1] as [b, 1]; `counts` [b] says how many rows each request has."""
    nodes = [
        helper.make_node("Cast", ["counts"], ["lengths"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["lengths", "first_axis"], ["ends"]),
        helper.make_node("Sub", ["ends", "lengths"], ["begins"]),
        helper.make_node("CumSum", ["y", "first_axis"], ["sums"]),
        helper.make_node("Concat", ["none", "sums"], ["sums_before"], axis=0),
        helper.make_node("Gather", ["sums_before", "ends"], ["at_end"], axis=0),
        helper.make_node("Gather", ["sums_before", "begins"], ["at_begin"], axis=0),
        helper.make_node("Sub", ["at_end", "at_begin"], ["total"]),
    ]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [
            helper.make_tensor_value_info("y", FLOAT, ["n", 1]),
            helper.make_tensor_value_info("counts", counts, ["b"]),
        ],
        [helper.make_tensor_value_info("total", FLOAT, ["b", 1])],
        [
            numpy_helper.from_array(np.array(0, np.int64), "first_axis"),
            numpy_helper.from_array(np.zeros((1, 1), np.float32), "none"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def counted_positives(path: Path) -> str:
    """The positive values of each row of [b, m] as [n, 1], and their number in each row as int64 [b]."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["keep"]),
        helper.make_node("Cast", ["keep"], ["kept"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["kept", "axes"], ["counts"], keepdims=0),
        helper.make_node("Reshape", ["x", "flat"], ["v"]),
        helper.make_node("Reshape", ["keep", "flat"], ["flags"]),
        helper.make_node("Compress", ["v", "flags"], ["values"], axis=0),
        helper.make_node("Reshape", ["values", "column"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", FLOAT, ["b", 4])],
        [
            helper.make_tensor_value_info("y", FLOAT, ["n", 1]),
            helper.make_tensor_value_info("counts", TensorProto.INT64, ["b"]),
        ],
        [
            numpy_helper.from_array(np.float32(0), "zero"),
            numpy_helper.from_array(np.array([1], np.int64), "axes"),
            numpy_helper.from_array(np.array([-1], np.int64), "flat"),
            numpy_helper.from_array(np.array([-1, 1], np.int64), "column"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def total(path: Path) -> str:
    """The sum over all children: [n, 1] to [1, 1]; n = 0 gives 0."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    return save(path, [node], {"x": ["n", 1]}, ("y", [1, 1]), axes=np.array([0], np.int64))


def spin(path: Path, least: float = 0.0) -> str:
    """Adds as often as its input says, and `least` times more."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "one"], ["more"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 1]),
        ],
        [numpy_helper.from_array(np.ones((1, 1), np.float32), "one")],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Add", ["most", "least"], ["all"]),
        helper.make_node("Cast", ["all"], ["times"], to=TensorProto.INT64),
        helper.make_node("Loop", ["times", "", "start"], ["y"], body=body),
    ]
    return save(path, nodes, {"x": [1, 4]}, ("y", [1, 1]), start=np.zeros((1, 1), np.float32), least=np.float32(least))


def difference(path: Path, left: str, right: str) -> str:
    """left - right, by the names of the inputs: shows that a join is wired by name, whatever the order."""
    node = helper.make_node("Sub", [left, right], ["y"])
    return save(path, [node], {right: [1, 4], left: [1, 4]}, ("y", [1, 4]))


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of a test's plan. `slow_s`: service time of operators on emulated devices; None: not emulated."""

    links: Sequence[Link] = ()
    slow_s: float | None = None
    rate_per_s: float = 20.0
    arrivals: Arrivals = Arrivals.PERIODIC
    batch: int = 1
    batch_delay_s: float = 0.0
    sites: Mapping[str, int] = field(default_factory=dict)
    deliver: Deliver = Deliver.IN_TIME
    slo: Slo = field(default_factory=Slo)
    states: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # by operator


def make_plan(
    root: Path,
    operators: Mapping[str, tuple[Sequence[Edge | str], str]],
    routes: Sequence[tuple[float, Mapping[str, str]]],
    *,
    sources: Mapping[str, str],
    **settings: Any,
) -> Document:
    """A plan document; `settings` are those of `PlanSettings`.

    Operators: name -> (inputs, sha256 of models/NAME.onnx). Workers are called POOL-i; the pool is also the tier.
    """
    given = PlanSettings(**settings)
    slow_s, rate_per_s = given.slow_s, given.rate_per_s
    planned = []
    for name, (inputs, sha256) in operators.items():
        edges = tuple(item if isinstance(item, Edge) else Edge(item, name) for item in inputs)
        service = {tier: ServiceTime(slow_s or 1e-4, slow_s or 1e-4) for tier in ("edge", "cloud")}
        sizes = dict.fromkeys(operators, 16.0)
        written = model_ref(root, f"models/{name}.onnx", sha256)
        model = ModelRef(f"models/{name}.onnx", sha256, files=written.files if written is not None else ())
        operator = planned_operator(name, edges, "only", rate_per_s, service, sizes, batch=given.batch)
        planned.append(
            replace(operator, model=model, batch_delay_s=given.batch_delay_s, state=given.states.get(name, ()))
        )
    names = dict.fromkeys(worker for _, route in routes for worker in route.values())
    workers = []
    for worker in names:
        tier = worker.partition("-")[0]
        rates = {op: rate_per_s for _, route in routes for op, w in route.items() if w == worker}
        workers.append(
            PlannedWorker(worker, tier, tier, 0.1, Sharing.SHARED, rates, 0.1, None, 1.0 if slow_s is None else 0.5)
        )
    plan = Plan(
        name="tiny",
        tiers=("edge", "cloud"),
        sources=tuple(
            Source(name, tier, rate_per_s, 16.0, given.arrivals, given.deliver) for name, tier in sources.items()
        ),
        operators=tuple(planned),
        workers=tuple(workers),
        routes=tuple(Route(weight, workers_) for weight, workers_ in routes),
        links=tuple(given.links),
        slo=given.slo,
        utilisation=0.8,
        hop_s=0.001,
        cost=Cost(0.1 * len(workers), 0.0),
        accuracy=None,
        certificate=Certificate(1.0, 1.0, 0.0, "optimal"),
        sites=given.sites,
    )
    return to_document(plan)


def chain(root: Path, *, workers: Sequence[str] = ("edge-1", "cloud-1"), **more: object) -> Document:
    """double then triple, over two tiers."""
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(root / "models/triple.onnx", 3.0)),
    }
    route = {"double": workers[0], "triple": workers[1]}
    return make_plan(root, operators, [(1.0, route)], sources={"x": "edge"}, **more)


def fan_out(upstream: str, downstream: str) -> Edge:
    return Edge(upstream, downstream, EdgeKind.FAN_OUT, 2.0)


def gather(upstream: str, downstream: str) -> Edge:
    return Edge(upstream, downstream, EdgeKind.GATHER, 0.5)
