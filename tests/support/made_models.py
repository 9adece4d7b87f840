"""ONNX files from a seeded generator: each kind of model and file that exporters and people give a tool.

Each has the requests for it, and whether it can be served: then its answers must be those of onnxruntime alone.
What can be served must be, so that refusing everything is no way to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jellybean_agent import WIRE_DTYPES
from tests.support.exported_models import sklearn_classifier

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Requests = Sequence[Mapping[str, Array]]
_FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class MadeModel:
    """`requests`: by model input; the answers are those of onnxruntime alone. `refusal`: words of the reason.

    `constants`: what `init` guesses for inputs that are single numbers. `states`: input -> output of a recurrent
    model, whose requests are the chunks of one stream. `is_random`: two runs differ, so only shapes are compared.
    `has_data`: the first request is given to `init`, as the model does not take random numbers.
    """

    what: str
    path: Path
    requests: Requests = ()
    refusal: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    is_random: bool = False
    has_data: bool = False


def made_models(folder: Path, seed: int, count: int) -> Iterator[MadeModel]:
    """`count` models in a folder, of each kind in turn."""
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        place = folder / f"{number}"
        place.mkdir()
        yield KINDS[number % len(KINDS)](place / "m.onnx", generator)


def _value(name: str, shape: Sequence[int | str | None] | None, kind: int = _FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir: int = 10,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def _saved(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def _floats(generator: Generator, *shape: int) -> Array:
    return generator.normal(size=shape).astype(np.float32)


def _opset(path: Path, generator: Generator) -> MadeModel:
    """Any opset and IR version, of which the installed onnxruntime takes some."""
    opset, ir = int(generator.integers(7, onnx.defs.onnx_opset_version() + 2)), int(generator.integers(3, 16))
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "w"], ["y"])]
    inputs = [_value("x", ["n", 3])] + ([_value("w", [3])] if ir < 4 else [])
    model = _model(nodes, inputs, [_value("y", ["n", 3])], {"w": _floats(generator, 3)}, opset=opset, ir=ir)
    _saved(path, model)
    refusal = "" if _loads(path) else "older opset or IR version"
    return MadeModel(f"opset {opset}, IR {ir}", path, [{"x": _floats(generator, 1, 3)}], refusal)


def _loads(path: Path) -> bool:
    """True if onnxruntime by itself takes the file."""
    import onnxruntime as ort

    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  (it raises classes of its own)
        return False
    return True


def _dtype(path: Path, generator: Generator) -> MadeModel:
    """Input and output of each type of tensor that ONNX has."""
    kinds = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED})
    kind = int(kinds[generator.integers(len(kinds))])
    name = TensorProto.DataType.Name(kind)
    _saved(
        path,
        _model(
            [helper.make_node("Identity", ["x"], ["y"])],
            [_value("x", ["n", 3], kind)],
            [_value("y", ["n", 3], kind)],
            opset=21,
        ),
    )
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype.name not in WIRE_DTYPES:
        return MadeModel(f"type {name}", path, (), "not served")
    data = generator.bytes(3 * dtype.itemsize)
    values = np.frombuffer(data, np.uint8) & 1 if dtype == np.bool_ else np.frombuffer(data, dtype)
    return MadeModel(f"type {name}", path, [{"x": values.astype(dtype).reshape(1, 3)}])


def _cast_output(path: Path, generator: Generator) -> MadeModel:
    """A first output of a type that may be served or not, and a second one of numbers."""
    kinds = ["DOUBLE", "BFLOAT16", "STRING", "FLOAT8E4M3FN", "INT4", "UINT64", "FLOAT16", "BOOL"]
    kind = TensorProto.DataType.Value(str(generator.choice(kinds)))
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=kind), helper.make_node("Relu", ["x"], ["z"])]
    is_alone = bool(generator.integers(2))
    outputs = [_value("c", ["n", 3], kind)] + ([] if is_alone else [_value("z", ["n", 3])])
    _saved(path, _model(nodes, [_value("x", ["n", 3])], outputs, opset=21))
    is_served = helper.tensor_dtype_to_np_dtype(kind).name in WIRE_DTYPES
    refusal = "" if is_served or not is_alone else "not served"
    what = f"cast to {TensorProto.DataType.Name(kind)}, {len(outputs)} outputs"
    return MadeModel(what, path, [{"x": _floats(generator, 1, 3)}], refusal)


def _scalars(path: Path, generator: Generator) -> MadeModel:
    """Inputs that are single numbers, which become constants, and outputs that are, which nobody can be sent."""
    form = int(generator.integers(4))
    rate = str(generator.choice(["sr", "scale", "sampling_rate", "file"]))
    kind = TensorProto.INT64 if "sr" in rate or "rate" in rate else _FLOAT
    inputs, nodes = [_value("x", ["n", 3]), _value(rate, [], kind)], []
    if form == 3:  # a batch, and nothing else
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        _saved(path, _model(nodes, [_value("x", ["n"])], [_value("y", ["n"])]))
        return MadeModel("vector", path, [{"x": _floats(generator, 1)}])
    nodes = [helper.make_node("Cast", [rate], ["f"], to=_FLOAT), helper.make_node("Mul", ["x", "f"], ["y"])]
    output = _value("y", ["n", 3])
    refusal = ""
    if form == 1:
        nodes, output = [*nodes, helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0)], _value("s", [])
        refusal = "a single number"
    if form == 2:
        nodes, output = [helper.make_node("Cast", [rate], ["y"], to=_FLOAT)], _value("y", [])
        inputs, refusal = inputs[1:], "single number"
    _saved(path, _model(nodes, inputs, [output]))
    constant = 16000 if kind == TensorProto.INT64 else 1.0
    return MadeModel(
        f"scalars {form} {rate}", path, [{"x": _floats(generator, 1, 3)}], refusal, constants={rate: constant}
    )


def _sizes(path: Path, generator: Generator) -> MadeModel:
    """Dimensions of 0, with names alike and unlike, without a name, and rows that are none of the request's."""
    shapes: list[tuple[list[int | str | None], list[int]]] = [
        ([1, 0, 3], [1, 0, 3]),
        (["n", 0], [1, 0]),
        (["n", "m"], [1, 0]),
        ([None, None, 2], [1, 4, 2]),
        (["batch", "batch"], [1, 1]),
        (["?", "-1"], [1, 5]),
        ([1, "sequence length", 3], [1, 7, 3]),
        ([5, "n", 3], []),
        ([2, 3], []),
        ([0, 3], []),
    ]
    shape, sent = shapes[generator.integers(len(shapes))]
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    _saved(path, _model(nodes, [_value("x", shape)], [_value("y", shape)]))
    requests = [{"x": _floats(generator, *sent)}] if sent else ()
    return MadeModel(f"sizes {shape}", path, requests, "" if sent else "rows expected")


def _several_inputs(path: Path, generator: Generator) -> MadeModel:
    """Two inputs whose first dimensions are named alike or not, fixed in one, both or none of them; or many inputs."""
    if generator.random() < 0.3:
        names = [
            f"{generator.choice(['x', 'input.', 'onnx::Add_'])}{number}" for number in range(generator.integers(2, 40))
        ]
        node = helper.make_node("Sum", names, ["y"])
        _saved(path, _model([node], [_value(name, ["n", 3]) for name in names], [_value("y", ["n", 3])]))
        return MadeModel(f"{len(names)} inputs", path, [{name: _floats(generator, 1, 3) for name in names}])
    axes: list[tuple[int | str, int | str]] = [("n", "n"), ("n", "m"), (1, "n"), (1, 1), ("n", 2), (3, "n")]
    first, second = axes[generator.integers(len(axes))]
    names = [
        str(name) for name in generator.choice(["a", "b", "input", "file", "constants", "batch"], 2, replace=False)
    ]
    nodes = [helper.make_node("Concat", names, ["y"], axis=1)]
    rows = "k" if first != second else first
    inputs = [_value(names[0], [first, 2]), _value(names[1], [second, 3])]
    _saved(path, _model(nodes, inputs, [_value("y", [rows, 5])]))
    is_fixed = first == 3 or second == 2
    request = {names[0]: _floats(generator, 1, 2), names[1]: _floats(generator, 1, 3)}
    return MadeModel(f"inputs {first}, {second} {names}", path, [request], "rows expected" if is_fixed else "")


def _recurrent(path: Path, generator: Generator) -> MadeModel:
    """LSTM, GRU and RNN as torch's exporters have them, states behind the number of layers, or of their own batch."""
    kind = str(generator.choice(["LSTM", "GRU", "RNN"]))
    gates, hidden, width = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 4, 3
    rows: int | str = [1, "n"][generator.integers(2)]
    before, after = [("h0", "hn"), ("h_in", "h_out"), ("hidden", "hiddenN"), ("state.1", "state_n")][
        generator.integers(4)
    ]
    states = {before: after} | ({"c0": "cn"} if kind == "LSTM" else {})
    if before == "state.1":
        states = {"state": "stateN"} | ({"cell_in": "cell_out"} if kind == "LSTM" else {})
    weights = {
        "W": _floats(generator, 1, gates * hidden, width),
        "R": _floats(generator, 1, gates * hidden, hidden),
        "two": np.array([2], np.int64),
    }
    ends = list(states.values())
    nodes = [
        helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]),
        helper.make_node(kind, ["xt", "W", "R", "", "", *states], ["Y", *ends], hidden_size=hidden),
        helper.make_node("Transpose", ["Y"], ["yt"], perm=[2, 0, 1, 3]),
        helper.make_node("Squeeze", ["yt", "two"], ["y"]),
    ]
    shape = [1, rows, hidden]
    inputs = [_value("x", [rows, "t", width]), *(_value(name, shape) for name in states)]
    outputs = [_value("y", [rows, "t", hidden]), *(_value(name, shape) for name in ends)]
    nodes[-1] = helper.make_node("Reshape", ["yt", "to"], ["y"])
    weights["to"] = np.array([0, -1, hidden], np.int64)
    del weights["two"]
    _saved(path, _model(nodes, inputs, outputs, weights, opset=int(generator.integers(8, 22))))
    chunks = [{"x": _floats(generator, 1, 5, width)} for _ in range(3)]
    return MadeModel(f"{kind} {states} rows {rows}", path, chunks, states=states)


def _no_tensor(path: Path, generator: Generator) -> MadeModel:
    """Inputs and outputs that are sequences, optional, maps, text; as skl2onnx's classifiers have them."""
    form = int(generator.integers(6))
    floats = helper.make_tensor_type_proto(_FLOAT, ["n", 3])
    x, y = _value("x", ["n", 3]), _value("y", ["n", 3])
    request = [{"x": _floats(generator, 1, 3)}]
    if form == 0:
        sequence = helper.make_value_info("s", helper.make_sequence_type_proto(floats))
        model = _model([helper.make_node("SequenceConstruct", ["x"], ["s"])], [x], [sequence])
        return MadeModel("sequence out", _saved(path, model), request, "not served")
    if form == 1:
        sequence = helper.make_value_info("s", helper.make_sequence_type_proto(floats))
        at = {"at": np.array(0, np.int64)}
        model = _model([helper.make_node("SequenceAt", ["s", "at"], ["y"])], [sequence], [y], at)
        return MadeModel("sequence in", _saved(path, model), (), "not served")
    if form == 2:
        optional = helper.make_value_info("o", helper.make_optional_type_proto(floats))
        model = _model([helper.make_node("OptionalGetElement", ["o"], ["y"])], [optional], [y], opset=18)
        return MadeModel("optional in", _saved(path, model), (), "not served")
    if form == 3:
        optional = helper.make_value_info("o", helper.make_optional_type_proto(floats))
        nodes = [helper.make_node("Optional", ["x"], ["o"]), helper.make_node("Relu", ["x"], ["y"])]
        model = _model(nodes, [x], [optional, y], opset=18)
        return MadeModel("optional out, then numbers", _saved(path, model), request)
    if form == 4:
        model = _model(
            [
                helper.make_node(
                    "LabelEncoder", ["t"], ["y"], keys_strings=["a"], values_floats=[1.0], domain="ai.onnx.ml"
                )
            ],
            [_value("t", ["n", 1], TensorProto.STRING)],
            [_value("y", ["n", 1])],
            domains={"ai.onnx.ml": 2},
        )
        return MadeModel("text in", _saved(path, model), (), "text")
    sklearn_classifier(path, zipmap=bool(generator.integers(2)), labels=["", "abc"][generator.integers(2)])
    zipped = "map" in str(onnx.load(path).graph.output[1].type)
    text = onnx.load(path).graph.output[0].type.tensor_type.elem_type == TensorProto.STRING
    refusal = "ZipMap" if zipped and text else ""
    return MadeModel(f"classifier {zipped} {text}", path, [{"X": _floats(generator, 1, 4)}], refusal)


def _weights(path: Path, generator: Generator) -> MadeModel:
    """Weights that are inputs too, sparse, unused, of 4 and 8 bits, of a constant node, or shared by name."""
    form = int(generator.integers(6))
    x, y = _value("x", ["n", 4]), _value("y", ["n", 4])
    add = helper.make_node("Add", ["x", "w"], ["y"])
    weight = _floats(generator, 4)
    request = [{"x": _floats(generator, 1, 4)}]
    if form == 0:
        model = _model([add], [_value("w", [4]), x], [y], {"w": weight}, ir=3)
    elif form == 1:
        model = _model([add], [x, _value("w", [4])], [y], {"w": weight}, ir=8)
    elif form == 2:
        values = numpy_helper.from_array(np.float32([1.5, -2]), "w")
        at = numpy_helper.from_array(np.array([0, 3], np.int64), "w_indices")
        model = _model([add], [x], [y])
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [4]))
    elif form == 3:
        node = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight))
        model = _model([node, add], [x], [y], {"unused": weight})
    elif form == 4:
        kind = [TensorProto.INT4, TensorProto.UINT4][generator.integers(2)]
        four = helper.make_tensor("q", kind, [4], generator.integers(0, 8, 4).tolist())
        node = helper.make_node("DequantizeLinear", ["q", "scale"], ["w"])
        model = _model([node, add], [x], [y], {"scale": np.float32(0.5)}, opset=21)
        model.graph.initializer.append(four)
    else:
        eight = helper.make_tensor("q", TensorProto.FLOAT8E4M3FN, [4], [1.0, 2.0, -0.5, 0.25])
        node = helper.make_node("DequantizeLinear", ["q", "scale"], ["w"])
        model = _model([node, add], [x], [y], {"scale": np.float32(0.5)}, opset=19)
        model.graph.initializer.append(eight)
    return MadeModel(f"weights {form}", _saved(path, model), request)


_PLACES = (
    *("m.onnx.data", "model.onnx_data", "weights with spaces.bin", "w#1[0]%.bin", "gewichte_ü.bin", "sub/w.bin"),
    *("./w.bin", "sub/./w.bin", "sub//w.bin", ".hidden", "-w", "CON", "a'b\"c.bin", "w\n.bin"),
)
_OUTSIDE = ("../w.bin", "/etc/hostname", "sub/../../w.bin", "..", ".", "")


def _external(path: Path, generator: Generator) -> MadeModel:
    """Weights in other files: one or several, of any name, in folders, missing, short, or outside the folder."""
    form = str(
        generator.choice(["one", "several", "outside", "missing", "short", "far", "negative"], p=[0.3, 0.2, *[0.1] * 5])
    )
    names = [str(name) for name in generator.choice(_PLACES, 2, replace=False)]
    if form != "several":
        names = names[:1] * 2
    if form == "outside":
        names = [str(generator.choice(_OUTSIDE))] * 2
    weights = {name: _floats(generator, 4) for name in ("a", "b")}
    nodes = [helper.make_node("Add", ["x", "a"], ["s"]), helper.make_node("Mul", ["s", "b"], ["y"])]
    model = _model(nodes, [_value("x", ["n", 4])], [_value("y", ["n", 4])], weights)
    content: dict[str, bytes] = {}
    for tensor, name in zip(model.graph.initializer, names, strict=True):
        place = len(content.get(name, b""))
        content[name] = content.get(name, b"") + tensor.raw_data
        fields = {"location": name, "offset": place, "length": len(tensor.raw_data)}
        if form == "far":
            fields["offset"] = place + 2**40
        if form == "negative":
            fields["offset"] = -16
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in fields.items():
            tensor.external_data.add(key=key, value=str(value))
    if form not in ("outside", "missing"):
        for name, data in content.items():
            file = path.parent / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data[:-5] if form == "short" else data)
    reasons = {"one": "", "several": "", "negative": "out of bounds"}
    refusal = reasons.get(form, "keeps weights in")
    return MadeModel(f"external {form} {names}", _saved(path, model), [{"x": _floats(generator, 1, 4)}], refusal)


def _control(path: Path, generator: Generator) -> MadeModel:
    """If, Loop, Scan, and functions of the model's own, one in another, with operators of a strange domain or not."""
    form = str(generator.choice(["If", "Loop", "Scan", "function", "nested", "strange"]))
    x, y = _value("x", ["n", 3]), _value("y", ["n", 3])
    request = [{"x": _floats(generator, 1, 3)}]
    if form == "If":
        branches = {
            f"{name}_branch": helper.make_graph(
                [helper.make_node(kind, ["x"], [name])], name, [], [_value(name, ["n", 3])]
            )
            for name, kind in (("then", "Neg"), ("else", "Relu"))
        }
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "zero"], ["on"]),
            helper.make_node("If", ["on"], ["y"], **branches),
        ]
        model = _model(nodes, [x], [y], {"zero": np.float32(0)})
    elif form == "Loop":
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["before", "x"], ["after"])],
            "body",
            [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL), _value("before", ["n", 3])],
            [_value("on", [], TensorProto.BOOL), _value("after", ["n", 3])],
        )
        node = helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)
        model = _model([node], [x], [y], {"times": np.array(4, np.int64)})
    elif form == "Scan":
        body = helper.make_graph(
            [helper.make_node("Add", ["before", "row"], ["after"]), helper.make_node("Identity", ["after"], ["each"])],
            "body",
            [_value("before", [3]), _value("row", [3])],
            [_value("after", [3]), _value("each", [3])],
        )
        node = helper.make_node("Scan", ["start", "x"], ["end", "y"], body=body, num_scan_inputs=1)
        model = _model([node], [x], [y], {"start": np.zeros(3, np.float32)})
    else:
        domain = str(generator.choice(["my.own", "com.acme", "pkg.torch", "this"]))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        inner = helper.make_function(
            domain, "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets
        )
        body_node = helper.make_node("Twice", ["a"], ["b"], domain=domain)
        if form == "strange":
            body_node = helper.make_node("Twice", ["a"], ["b"], domain="com.strange")
            opsets.append(helper.make_opsetid("com.strange", 1))
        outer = helper.make_function(domain, "Outer", ["a"], ["b"], [body_node], opsets)
        called = "Twice" if form == "function" else "Outer"
        nodes = [helper.make_node(called, ["x"], ["y"], domain=domain)]
        model = _model(nodes, [x], [y], domains={domain: 1} | ({"com.strange": 1} if form == "strange" else {}))
        model.functions.extend([inner, outer])
    refusal = "com.strange" if form == "strange" else ""
    return MadeModel(f"control {form}", _saved(path, model), request, refusal)


def _chance(path: Path, generator: Generator) -> MadeModel:
    """Operators whose answers differ from run to run."""
    form = int(generator.integers(3))
    if form == 0:
        nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    elif form == 1:
        nodes = [
            helper.make_node("Sigmoid", ["x"], ["p"]),
            helper.make_node("Bernoulli", ["p"], ["y"], seed=1.0),
        ]
    else:
        nodes = [helper.make_node("Dropout", ["x", "half", "on"], ["y"])]
    weights = {"half": np.float32(0.5), "on": np.array(True)} if form == 2 else {}
    _saved(path, _model(nodes, [_value("x", ["n", 3])], [_value("y", ["n", 3])], weights))
    return MadeModel(f"chance {form}", path, [{"x": _floats(generator, 1, 3)}], is_random=True)


NAMES = (
    *(
        "file",
        "input",
        "constants",
        "batch",
        "labels",
        "streams",
        "state",
        "from",
        "name",
        "TODO",
        "null",
        "true",
        "yes",
    ),
    *(
        "1",
        "1e3",
        "0x10",
        "onnx::Add_0",
        "input.1",
        "a/b/c",
        "a:b",
        "a b",
        " a",
        "a ",
        "a,b",
        "[a]",
        "{a}",
        "#a",
        "a#b",
    ),
    *(
        "é",
        "输入",
        "🐈",
        "a'b",
        'a"b',
        "a\\b",
        "a=b",
        "a[0]",
        "-",
        "--help",
        "*",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a`",
        "a\tb",
    ),
    *("a\nb", "x" * 300, "serving_default_input:0", "StatefulPartitionedCall:0", "self", "é", "a\u0000b", "\u202ea"),
    *("~", "?", "|", ">", "a: b", "- a", "constant x = 1", "rows of x", "state x from y", "__proto__", "None", "."),
)


def _names(path: Path, generator: Generator) -> MadeModel:
    """Names of inputs, outputs and nodes that are words of the tool or of YAML, or any text."""
    first, second, output = (str(name) for name in generator.choice(NAMES, 3, replace=False))
    count = int(generator.integers(1, 3))
    nodes = [helper.make_node("Concat", [first, second][:count], [output], name="//: n", axis=1)]
    inputs = [_value(first, ["n", 2]), _value(second, ["n", 3])][:count]
    _saved(path, _model(nodes, inputs, [_value(output, ["n", 2 + 3 * (count - 1)])]))
    request = {first: _floats(generator, 1, 2), second: _floats(generator, 1, 3)}
    return MadeModel(f"names {[first, second][:count]} {output!r}"[:200], path, [request])


def _graphs(path: Path, generator: Generator) -> MadeModel:
    """No inputs, outputs or nodes; an input that is the answer; names that come twice; answers that are weights."""
    x, y = _value("x", ["n", 3]), _value("y", ["n", 3])
    relu = helper.make_node("Relu", ["x"], ["y"])
    forms: dict[str, tuple[onnx.ModelProto, str]] = {
        "no outputs": (_model([relu], [x], []), "no outputs"),
        "no inputs": (_model([relu], [], [y], {"x": _floats(generator, 1, 3)}), "no inputs"),
        "no nodes": (_model([], [x], [x]), ""),
        "empty": (_model([], [], []), "not an ONNX model"),
        "input twice": (_model([relu], [x, x], [y]), "x"),
        "output twice": (_model([relu], [x], [y, y]), "y"),
        "made twice": (_model([relu, relu], [x], [y]), "y"),
        "not made": (_model([relu], [x], [_value("z", ["n", 3])]), "z"),
        "weight answers": (_model([relu], [x], [y, _value("w", [1, 2])], {"w": _floats(generator, 1, 2)}), ""),
        "unused input": (_model([relu], [x, _value("u", ["n", 9])], [y]), ""),
        "cycle": (_model([helper.make_node("Add", ["x", "y"], ["y"])], [x], [y]), "y"),
        "unordered": (
            _model([helper.make_node("Neg", ["r"], ["y"]), helper.make_node("Relu", ["x"], ["r"])], [x], [y]),
            "",
        ),
        "wrong shape": (_model([relu], [x], [_value("y", ["n", 4])]), ""),
        "wrong type": (_model([relu], [x], [_value("y", ["n", 3], TensorProto.DOUBLE)]), "y"),
        "unknown operator": (_model([helper.make_node("Frobnicate", ["x"], ["y"])], [x], [y]), "Frobnicate"),
        "custom domain": (
            _model([helper.make_node("Op", ["x"], ["y"], domain="com.acme")], [x], [y], domains={"com.acme": 1}),
            "com.acme",
        ),
        "no opset": (onnx.ModelProto(ir_version=8, graph=_model([relu], [x], [y]).graph), "opset"),
        "without shapes": (_model([relu], [_value("x", None)], [_value("y", None)]), "shape"),
        "metadata": (_with_metadata(_model([relu], [x], [y])), ""),
    }
    names = sorted(forms)
    name = names[generator.integers(len(names))]
    model, refusal = forms[name]
    request = {"x": _floats(generator, 1, 3), "u": _floats(generator, 1, 9)}
    return MadeModel(f"graph: {name}", _saved(path, model), [request], refusal)


def _with_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    model.producer_name, model.doc_string, model.model_version = "é\x1b[31m", "TODO: \n# not one", -1
    helper.set_model_props(model, {"names": "{0: 'person'}", "file": "x" * 10_000, "ü": ""})
    model.graph.doc_string = "kind: Workflow"
    return model


def _broken(path: Path, generator: Generator) -> MadeModel:
    """Files that are no ONNX: empty, cut off, text, of another format, folders and links to nowhere."""
    whole = _model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [_value("x", ["n", 64])], [_value("y", ["n", 64])],
        {"w": _floats(generator, 64)},
    ).SerializeToString()  # fmt: skip
    other = onnx.TensorProto(dims=[2], data_type=1, float_data=[1.0, 2.0]).SerializeToString()
    forms: dict[str, tuple[bytes, str]] = {  # content, and words of the reason
        "empty": (b"", "it is empty: copy or export it again"),
        "cut off": (whole[: int(generator.integers(1, len(whole)))], "not an ONNX model"),
        "text": (b"this is no model\n", "it is text"),
        "JSON": (b'{"graph": {}}', "it is text"),
        "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "download the file itself"),
        "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "run git lfs pull"),
        "zip": (b"PK\x03\x04" + bytes(60), "as torch.save writes: export the model with torch.onnx.export"),
        "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05torch\x94.", "a pickle: export the model"),
        "tensor": (other, "not an ONNX model"),
        "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(40), "convert it with tf2onnx"),
        "ort": (b"\x1c\x00\x00\x00ORTM" + bytes(40), "give the ONNX file that it was made from"),
        "hdf": (b"\x89HDF\r\n\x1a\n" + bytes(40), "convert the model with tf2onnx"),
        "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(40), "export the model that it was made from"),
        "safetensors": (
            b"\x38" + bytes(7) + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  ' + bytes(4),
            "no model",
        ),
        "gzip": (b"\x1f\x8b\x08\x00" + bytes(20), "compressed with gzip: unpack it"),
        "zeros": (bytes(1000), "damaged"),
        "more behind": (whole + b"garbage behind the model", "damaged or cut off: copy or export it again"),
    }
    names = sorted(forms)
    name = names[generator.integers(len(names))]
    content, refusal = forms[name]
    path = path.with_suffix(str(generator.choice([".onnx", ".onnx", ".json", ".onnxtxt", ".textproto"])))
    path.write_bytes(content)
    return MadeModel(f"broken: {name} {path.suffix}", path, (), refusal)


def _quantised(path: Path, generator: Generator) -> MadeModel:
    """QDQ, QOperator and dynamic quantisation, floats of 16 bits inside, and operators of com.microsoft."""
    x, y = _value("x", ["n", 4]), _value("y", ["n", 2])
    scale = {"s": np.float32(0.05), "z": np.uint8(128), "ws": np.float32(0.02), "wz": np.int8(0)}
    weight = generator.integers(-127, 127, (4, 2)).astype(np.int8)
    form = str(generator.choice(["QDQ", "QOperator", "dynamic", "half", "Gelu", "FusedMatMul"]))
    domains: dict[str, int] = {}
    if form == "QDQ":
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
            helper.make_node("MatMul", ["xd", "wd"], ["y"]),
        ]
        weights: dict[str, Any] = scale | {"w": weight}
    elif form == "QOperator":
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            helper.make_node("QLinearMatMul", ["xq", "s", "z", "w", "ws", "wz", "s", "z"], ["yq"]),
            helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
        ]
        weights = scale | {"w": weight}
    elif form == "dynamic":
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
            helper.make_node("MatMulInteger", ["xq", "w", "xz"], ["yi"]),
            helper.make_node("Cast", ["yi"], ["yf"], to=_FLOAT),
            helper.make_node("Mul", ["yf", "xs"], ["y"]),
        ]
        weights = {"w": weight}
    elif form == "half":
        nodes = [
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            helper.make_node("MatMul", ["h", "w"], ["m"]),
            helper.make_node("Cast", ["m"], ["y"], to=_FLOAT),
        ]
        weights = {"w": weight.astype(np.float16)}
    elif form == "Gelu":
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Gelu", ["m"], ["y"], domain="com.microsoft"),
        ]
        weights, domains = {"w": weight.astype(np.float32)}, {"com.microsoft": 1}
    else:
        nodes = [helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", alpha=0.5)]
        weights, domains = {"w": weight.astype(np.float32)}, {"com.microsoft": 1}
    _saved(path, _model(nodes, [x], [y], weights, domains=domains))
    return MadeModel(f"quantised {form}", path, [{"x": _floats(generator, 1, 4)}])


def _heavy(path: Path, generator: Generator) -> MadeModel:
    """Models that never end, or take all memory: in their run, or when onnxruntime folds their constants."""
    form = str(generator.choice(["much at load", "much in a run"]))
    x = _value("x", ["n", 3])
    size = np.array([1, 2**40], np.int64)
    fill = helper.make_node("ConstantOfShape", ["size"], ["f"])
    nodes = [fill, helper.make_node("ReduceSum", ["f", "axes"], ["s"]), helper.make_node("Add", ["x", "s"], ["y"])]
    weights = {"size": size, "axes": np.array([1], np.int64)}
    if form == "much in a run":
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Cast", ["most"], ["i"], to=TensorProto.INT64),
            helper.make_node("Mul", ["i", "none"], ["no"]),
            helper.make_node("Add", ["no", "size"], ["size2"]),
            helper.make_node("ConstantOfShape", ["size2"], ["f"]),
            *nodes[1:],
        ]
        weights |= {"none": np.array(0, np.int64)}
    model = _model(nodes, [x], [_value("y", ["n", 3])], weights)
    return MadeModel(f"heavy: {form}", _saved(path, model), (), "m")


KINDS: tuple[Callable[[Path, Generator], MadeModel], ...] = (
    _opset, _dtype, _cast_output, _scalars, _sizes, _several_inputs, _recurrent, _no_tensor, _weights,
    _external, _control, _chance, _names, _graphs, _broken, _quantised, _heavy,
)  # fmt: skip
