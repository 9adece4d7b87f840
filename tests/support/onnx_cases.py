"""The test cases that the onnx package brings for each of its operators, as models of requests.

Their tensors have no dimension for a batch, so that one is put around each: inputs [1, ...] lose it before the case's
own nodes, and outputs get it back.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from jellybean_agent import WIRE_DTYPES
from jellybean_agent.execution.onnx_scan import OPERATOR_DOMAINS
from tests.support.made_model import Array, MadeModel

_AXES = "axes_of_the_batch"
_RANDOM = ("dropout", "bernoulli", "random", "multinomial")  # in the names of cases whose answers differ by chance


def onnx_cases(folder: Path, seed: int, count: int) -> Iterator[MadeModel]:
    """`count` of the cases in a folder, of those whose inputs are tensors, and that onnxruntime runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of casts that go beyond a type, which some cases are about
        cases = sorted(collect_testcases(None), key=lambda case: case.name)
    random.Random(seed).shuffle(cases)
    found = (made for case in cases if (made := _case(folder, case)) is not None)
    for _ in range(count):
        yield next(found)


def _case(folder: Path, case: Any) -> MadeModel | None:
    given = [_array(value) for value in case.data_sets[0][0]]
    if any(array is None for array in given) or not _has_tensors_only(case.model):
        return None
    path = folder / f"{case.name}.onnx"
    path.write_bytes(batch_first(case.model).SerializeToString())
    names = [f"in_{number}" for number in range(len(given))]
    request = {name: array[np.newaxis] for name, array in zip(names, given, strict=True) if array is not None}
    is_random = any(word in case.name for word in _RANDOM)
    refusal = _refusal(path, request)
    if refusal is None:
        return None
    return MadeModel(case.name, path, [request], refusal, is_random=is_random, has_data=not refusal)


def _array(value: Any) -> Array | None:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, np.ndarray) else np.asarray(value) if np.isscalar(value) else None


def _has_tensors_only(model: onnx.ModelProto) -> bool:
    ports = [*model.graph.input, *model.graph.output]
    return bool(model.graph.input) and all(port.type.WhichOneof("value") == "tensor_type" for port in ports)


def batch_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a dimension of 1 around each input and output, called in_0, out_0 and so on."""
    wrapped = onnx.ModelProto()
    wrapped.CopyFrom(model)
    graph = wrapped.graph
    versions = [opset.version for opset in wrapped.opset_import if opset.domain in ("", "ai.onnx")]
    if not versions:
        wrapped.opset_import.append(helper.make_opsetid("", 13))
    opset = versions[0] if versions else 13
    before = [_squeezed("Squeeze", opset, f"in_{number}", port.name) for number, port in enumerate(graph.input)]
    after = [_squeezed("Unsqueeze", opset, port.name, f"out_{number}") for number, port in enumerate(graph.output)]
    for kind, ports in (("in", graph.input), ("out", graph.output)):
        for number, port in enumerate(ports):
            port.name = f"{kind}_{number}"
            _add_dimension(port.type.tensor_type)
    if opset >= 13:
        graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), _AXES))
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return wrapped


def _squeezed(kind: str, opset: int, given: str, made: str) -> onnx.NodeProto:
    if opset >= 13:
        return helper.make_node(kind, [given, _AXES], [made])
    return helper.make_node(kind, [given], [made], axes=[0])


def _add_dimension(tensor: Any) -> None:
    if tensor.HasField("shape"):
        sizes = onnx.TensorShapeProto()
        sizes.dim.add().dim_value = 1
        sizes.dim.extend(tensor.shape.dim)
        tensor.shape.CopyFrom(sizes)


def _refusal(path: Path, request: dict[str, Array]) -> str | None:
    """Words of the reason why a model cannot be served; empty if it can, as onnxruntime by itself shows.

    None if onnxruntime does not take these values: it may take others.
    """
    model = onnx.load(path)
    if any(array.dtype.name not in WIRE_DTYPES for array in request.values()):
        return "not served"
    if not any(_dtype(port) in WIRE_DTYPES for port in model.graph.output):
        return "not served"
    if any(node.domain not in OPERATOR_DOMAINS for node in model.graph.node):
        return "others are not run"  # of onnxruntime's previews
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  (it raises classes of its own)
        return "onnxruntime"
    served = [port.name for port in model.graph.output if _dtype(port) in WIRE_DTYPES]
    try:
        session.run(served, request)
    except Exception:  # noqa: BLE001
        return None
    return ""


def _dtype(port: onnx.ValueInfoProto) -> str:
    return helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type).name


def case_folders() -> Sequence[Path]:
    """Folders of the models that the package brings as files: exported by torch, one operator or a few each."""
    data = Path(onnx.__file__).parent / "backend/test/data"
    return sorted(
        path.parent for kind in ("pytorch-operator", "pytorch-converted") for path in data.glob(f"{kind}/*/model.onnx")
    )


def case_of_files(folder: Path, case: Path) -> MadeModel:
    """The case of such a folder."""
    given = [numpy_helper.to_array(onnx.load_tensor(file)) for file in sorted(case.glob("test_data_set_0/input_*.pb"))]
    model = onnx.load(case / "model.onnx")
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [port for port in model.graph.input if port.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # from which on weights need not be inputs, too
    path = folder / f"{case.name}.onnx"
    path.write_bytes(batch_first(model).SerializeToString())
    request = {f"in_{number}": array[np.newaxis] for number, array in enumerate(given)}
    refusal = _refusal(path, request)
    assert refusal is not None, case
    return MadeModel(case.name, path, [request], refusal, has_data=not refusal)
