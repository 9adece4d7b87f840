"""Made ONNX files that differ in what they take and give: versions, types, shapes, names, states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from jellybean_agent import WIRE_DTYPES
from tests.support.exported_models import sklearn_classifier
from tests.support.made_model import FLOAT, Generator, MadeModel, floats, model_of, port, saved


def opset(path: Path, generator: Generator) -> MadeModel:
    """Any opset and IR version, of which the installed onnxruntime takes some."""
    opset, ir = int(generator.integers(7, onnx.defs.onnx_opset_version() + 2)), int(generator.integers(3, 16))
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "w"], ["y"])]
    inputs = [port("x", ["n", 3])] + ([port("w", [3])] if ir < 4 else [])
    model = model_of(nodes, inputs, [port("y", ["n", 3])], {"w": floats(generator, 3)}, opset=opset, ir=ir)
    saved(path, model)
    refusal = "" if _loads(path) else "older opset or IR version"
    return MadeModel(f"opset {opset}, IR {ir}", path, [{"x": floats(generator, 1, 3)}], refusal)


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


def dtype(path: Path, generator: Generator) -> MadeModel:
    """Input and output of each type of tensor that ONNX has."""
    kinds = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED})
    kind = int(kinds[generator.integers(len(kinds))])
    name = TensorProto.DataType.Name(kind)
    saved(
        path,
        model_of(
            [helper.make_node("Identity", ["x"], ["y"])],
            [port("x", ["n", 3], kind)],
            [port("y", ["n", 3], kind)],
            opset=21,
        ),
    )
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype.name not in WIRE_DTYPES:
        return MadeModel(f"type {name}", path, (), "not served")
    data = generator.bytes(3 * dtype.itemsize)
    values = np.frombuffer(data, np.uint8) & 1 if dtype == np.bool_ else np.frombuffer(data, dtype)
    return MadeModel(f"type {name}", path, [{"x": values.astype(dtype).reshape(1, 3)}])


def cast_output(path: Path, generator: Generator) -> MadeModel:
    """A first output of a type that may be served or not, and a second one of numbers."""
    kinds = ["DOUBLE", "BFLOAT16", "STRING", "FLOAT8E4M3FN", "INT4", "UINT64", "FLOAT16", "BOOL"]
    kind = TensorProto.DataType.Value(str(generator.choice(kinds)))
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=kind), helper.make_node("Relu", ["x"], ["z"])]
    is_alone = bool(generator.integers(2))
    outputs = [port("c", ["n", 3], kind)] + ([] if is_alone else [port("z", ["n", 3])])
    saved(path, model_of(nodes, [port("x", ["n", 3])], outputs, opset=21))
    is_served = helper.tensor_dtype_to_np_dtype(kind).name in WIRE_DTYPES
    refusal = "" if is_served or not is_alone else "not served"
    what = f"cast to {TensorProto.DataType.Name(kind)}, {len(outputs)} outputs"
    return MadeModel(what, path, [{"x": floats(generator, 1, 3)}], refusal)


def scalars(path: Path, generator: Generator) -> MadeModel:
    """Inputs that are single numbers, which become constants, and outputs that are, which nobody can be sent."""
    form = int(generator.integers(4))
    rate = str(generator.choice(["sr", "scale", "sampling_rate", "file"]))
    kind = TensorProto.INT64 if "sr" in rate or "rate" in rate else FLOAT
    inputs, nodes = [port("x", ["n", 3]), port(rate, [], kind)], []
    if form == 3:  # a batch, and nothing else
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        saved(path, model_of(nodes, [port("x", ["n"])], [port("y", ["n"])]))
        return MadeModel("vector", path, [{"x": floats(generator, 1)}])
    nodes = [helper.make_node("Cast", [rate], ["f"], to=FLOAT), helper.make_node("Mul", ["x", "f"], ["y"])]
    output = port("y", ["n", 3])
    refusal = ""
    if form == 1:
        nodes, output = [*nodes, helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0)], port("s", [])
        refusal = "a single number"
    if form == 2:
        nodes, output = [helper.make_node("Cast", [rate], ["y"], to=FLOAT)], port("y", [])
        inputs, refusal = inputs[1:], "single number"
    saved(path, model_of(nodes, inputs, [output]))
    constant = 16000 if kind == TensorProto.INT64 else 1.0
    return MadeModel(
        f"scalars {form} {rate}", path, [{"x": floats(generator, 1, 3)}], refusal, constants={rate: constant}
    )


def sizes(path: Path, generator: Generator) -> MadeModel:
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
    saved(path, model_of(nodes, [port("x", shape)], [port("y", shape)]))
    requests = [{"x": floats(generator, *sent)}] if sent else ()
    return MadeModel(f"sizes {shape}", path, requests, "" if sent else "rows expected")


def several_inputs(path: Path, generator: Generator) -> MadeModel:
    """Two inputs whose first dimensions are named alike or not, fixed in one, both or none of them; or many inputs."""
    if generator.random() < 0.3:
        names = [
            f"{generator.choice(['x', 'input.', 'onnx::Add_'])}{number}" for number in range(generator.integers(2, 40))
        ]
        node = helper.make_node("Sum", names, ["y"])
        saved(path, model_of([node], [port(name, ["n", 3]) for name in names], [port("y", ["n", 3])]))
        return MadeModel(f"{len(names)} inputs", path, [{name: floats(generator, 1, 3) for name in names}])
    axes: list[tuple[int | str, int | str]] = [("n", "n"), ("n", "m"), (1, "n"), (1, 1), ("n", 2), (3, "n")]
    first, second = axes[generator.integers(len(axes))]
    names = [
        str(name) for name in generator.choice(["a", "b", "input", "file", "constants", "batch"], 2, replace=False)
    ]
    nodes = [helper.make_node("Concat", names, ["y"], axis=1)]
    rows = "k" if first != second else first
    inputs = [port(names[0], [first, 2]), port(names[1], [second, 3])]
    saved(path, model_of(nodes, inputs, [port("y", [rows, 5])]))
    is_fixed = first == 3 or second == 2
    request = {names[0]: floats(generator, 1, 2), names[1]: floats(generator, 1, 3)}
    return MadeModel(f"inputs {first}, {second} {names}", path, [request], "rows expected" if is_fixed else "")


def recurrent(path: Path, generator: Generator) -> MadeModel:
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
        "W": floats(generator, 1, gates * hidden, width),
        "R": floats(generator, 1, gates * hidden, hidden),
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
    inputs = [port("x", [rows, "t", width]), *(port(name, shape) for name in states)]
    outputs = [port("y", [rows, "t", hidden]), *(port(name, shape) for name in ends)]
    nodes[-1] = helper.make_node("Reshape", ["yt", "to"], ["y"])
    weights["to"] = np.array([0, -1, hidden], np.int64)
    del weights["two"]
    saved(path, model_of(nodes, inputs, outputs, weights, opset=int(generator.integers(8, 22))))
    chunks = [{"x": floats(generator, 1, 5, width)} for _ in range(3)]
    return MadeModel(f"{kind} {states} rows {rows}", path, chunks, states=states)


def no_tensor(path: Path, generator: Generator) -> MadeModel:
    """Inputs and outputs that are sequences, optional, maps, text; as skl2onnx's classifiers have them."""
    form = int(generator.integers(6))
    tensors = helper.make_tensor_type_proto(FLOAT, ["n", 3])
    x, y = port("x", ["n", 3]), port("y", ["n", 3])
    request = [{"x": floats(generator, 1, 3)}]
    if form == 0:
        sequence = helper.make_value_info("s", helper.make_sequence_type_proto(tensors))
        model = model_of([helper.make_node("SequenceConstruct", ["x"], ["s"])], [x], [sequence])
        return MadeModel("sequence out", saved(path, model), request, "not served")
    if form == 1:
        sequence = helper.make_value_info("s", helper.make_sequence_type_proto(tensors))
        at = {"at": np.array(0, np.int64)}
        model = model_of([helper.make_node("SequenceAt", ["s", "at"], ["y"])], [sequence], [y], at)
        return MadeModel("sequence in", saved(path, model), (), "not served")
    if form == 2:
        optional = helper.make_value_info("o", helper.make_optional_type_proto(tensors))
        model = model_of([helper.make_node("OptionalGetElement", ["o"], ["y"])], [optional], [y], opset=18)
        return MadeModel("optional in", saved(path, model), (), "not served")
    if form == 3:
        optional = helper.make_value_info("o", helper.make_optional_type_proto(tensors))
        nodes = [helper.make_node("Optional", ["x"], ["o"]), helper.make_node("Relu", ["x"], ["y"])]
        model = model_of(nodes, [x], [optional, y], opset=18)
        return MadeModel("optional out, then numbers", saved(path, model), request)
    if form == 4:
        model = model_of(
            [
                helper.make_node(
                    "LabelEncoder", ["t"], ["y"], keys_strings=["a"], values_floats=[1.0], domain="ai.onnx.ml"
                )
            ],
            [port("t", ["n", 1], TensorProto.STRING)],
            [port("y", ["n", 1])],
            domains={"ai.onnx.ml": 2},
        )
        return MadeModel("text in", saved(path, model), (), "text")
    sklearn_classifier(path, zipmap=bool(generator.integers(2)), labels=["", "abc"][generator.integers(2)])
    zipped = "map" in str(onnx.load(path).graph.output[1].type)
    text = onnx.load(path).graph.output[0].type.tensor_type.elem_type == TensorProto.STRING
    refusal = "ZipMap" if zipped and text else ""
    return MadeModel(f"classifier {zipped} {text}", path, [{"X": floats(generator, 1, 4)}], refusal)


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


def names(path: Path, generator: Generator) -> MadeModel:
    """Names of inputs, outputs and nodes that are words of the tool or of YAML, or any text."""
    first, second, output = (str(name) for name in generator.choice(NAMES, 3, replace=False))
    count = int(generator.integers(1, 3))
    nodes = [helper.make_node("Concat", [first, second][:count], [output], name="//: n", axis=1)]
    inputs = [port(first, ["n", 2]), port(second, ["n", 3])][:count]
    saved(path, model_of(nodes, inputs, [port(output, ["n", 2 + 3 * (count - 1)])]))
    request = {first: floats(generator, 1, 2), second: floats(generator, 1, 3)}
    used = [first, second][:count]
    refusal = "has a NUL" if any("\0" in name for name in (*used, output)) else ""
    return MadeModel(f"names {used} {output!r}"[:200], path, [request], refusal=refusal)
