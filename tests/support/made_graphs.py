"""Made ONNX files that differ in what is in them: weights, operators, control flow; and files that are no models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.made_model import FLOAT, Generator, MadeModel, floats, model_of, port, saved


def weights(path: Path, generator: Generator) -> MadeModel:
    """Weights that are inputs too, sparse, unused, of 4 and 8 bits, of a constant node, or shared by name."""
    form = int(generator.integers(6))
    x, y = port("x", ["n", 4]), port("y", ["n", 4])
    add = helper.make_node("Add", ["x", "w"], ["y"])
    weight = floats(generator, 4)
    request = [{"x": floats(generator, 1, 4)}]
    if form == 0:
        model = model_of([add], [port("w", [4]), x], [y], {"w": weight}, ir=3)
    elif form == 1:
        model = model_of([add], [x, port("w", [4])], [y], {"w": weight}, ir=8)
    elif form == 2:
        values = numpy_helper.from_array(np.float32([1.5, -2]), "w")
        at = numpy_helper.from_array(np.array([0, 3], np.int64), "w_indices")
        model = model_of([add], [x], [y])
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [4]))
    elif form == 3:
        node = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight))
        model = model_of([node, add], [x], [y], {"unused": weight})
    elif form == 4:
        kind = [TensorProto.INT4, TensorProto.UINT4][generator.integers(2)]
        four = helper.make_tensor("q", kind, [4], generator.integers(0, 8, 4).tolist())
        node = helper.make_node("DequantizeLinear", ["q", "scale"], ["w"])
        model = model_of([node, add], [x], [y], {"scale": np.float32(0.5)}, opset=21)
        model.graph.initializer.append(four)
    else:
        eight = helper.make_tensor("q", TensorProto.FLOAT8E4M3FN, [4], [1.0, 2.0, -0.5, 0.25])
        node = helper.make_node("DequantizeLinear", ["q", "scale"], ["w"])
        model = model_of([node, add], [x], [y], {"scale": np.float32(0.5)}, opset=19)
        model.graph.initializer.append(eight)
    return MadeModel(f"weights {form}", saved(path, model), request)


_PLACES = (
    *("m.onnx.data", "model.onnx_data", "weights with spaces.bin", "w#1[0]%.bin", "gewichte_ü.bin", "sub/w.bin"),
    *("./w.bin", "sub/./w.bin", "sub//w.bin", ".hidden", "-w", "CON", "a'b\"c.bin", "w\n.bin"),
)


_OUTSIDE = ("../w.bin", "/etc/hostname", "sub/../../w.bin", "..", ".", "")


def external(path: Path, generator: Generator) -> MadeModel:
    """Weights in other files: one or several, of any name, in folders, missing, short, or outside the folder."""
    form = str(
        generator.choice(["one", "several", "outside", "missing", "short", "far", "negative"], p=[0.3, 0.2, *[0.1] * 5])
    )
    names = [str(name) for name in generator.choice(_PLACES, 2, replace=False)]
    if form != "several":
        names = names[:1] * 2
    if form == "outside":
        names = [str(generator.choice(_OUTSIDE))] * 2
    weights = {name: floats(generator, 4) for name in ("a", "b")}
    nodes = [helper.make_node("Add", ["x", "a"], ["s"]), helper.make_node("Mul", ["s", "b"], ["y"])]
    model = model_of(nodes, [port("x", ["n", 4])], [port("y", ["n", 4])], weights)
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
    return MadeModel(f"external {form} {names}", saved(path, model), [{"x": floats(generator, 1, 4)}], refusal)


def control(path: Path, generator: Generator) -> MadeModel:
    """If, Loop, Scan, and functions of the model's own, one in another, with operators of a strange domain or not."""
    form = str(generator.choice(["If", "Loop", "Scan", "function", "nested", "strange"]))
    x, y = port("x", ["n", 3]), port("y", ["n", 3])
    request = [{"x": floats(generator, 1, 3)}]
    if form == "If":
        branches = {
            f"{name}_branch": helper.make_graph(
                [helper.make_node(kind, ["x"], [name])], name, [], [port(name, ["n", 3])]
            )
            for name, kind in (("then", "Neg"), ("else", "Relu"))
        }
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "zero"], ["on"]),
            helper.make_node("If", ["on"], ["y"], **branches),
        ]
        model = model_of(nodes, [x], [y], {"zero": np.float32(0)})
    elif form == "Loop":
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["before", "x"], ["after"])],
            "body",
            [port("i", [], TensorProto.INT64), port("go", [], TensorProto.BOOL), port("before", ["n", 3])],
            [port("on", [], TensorProto.BOOL), port("after", ["n", 3])],
        )
        node = helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)
        model = model_of([node], [x], [y], {"times": np.array(4, np.int64)})
    elif form == "Scan":
        body = helper.make_graph(
            [helper.make_node("Add", ["before", "row"], ["after"]), helper.make_node("Identity", ["after"], ["each"])],
            "body",
            [port("before", [3]), port("row", [3])],
            [port("after", [3]), port("each", [3])],
        )
        node = helper.make_node("Scan", ["start", "x"], ["end", "y"], body=body, num_scan_inputs=1)
        model = model_of([node], [x], [y], {"start": np.zeros(3, np.float32)})
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
        model = model_of(nodes, [x], [y], domains={domain: 1} | ({"com.strange": 1} if form == "strange" else {}))
        model.functions.extend([inner, outer])
    refusal = "com.strange" if form == "strange" else ""
    return MadeModel(f"control {form}", saved(path, model), request, refusal)


def chance(path: Path, generator: Generator) -> MadeModel:
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
    saved(path, model_of(nodes, [port("x", ["n", 3])], [port("y", ["n", 3])], weights))
    return MadeModel(f"chance {form}", path, [{"x": floats(generator, 1, 3)}], is_random=True)


def graphs(path: Path, generator: Generator) -> MadeModel:
    """No inputs, outputs or nodes; an input that is the answer; names that come twice; answers that are weights."""
    x, y = port("x", ["n", 3]), port("y", ["n", 3])
    relu = helper.make_node("Relu", ["x"], ["y"])
    forms: dict[str, tuple[onnx.ModelProto, str]] = {
        "no outputs": (model_of([relu], [x], []), "no outputs"),
        "no inputs": (model_of([relu], [], [y], {"x": floats(generator, 1, 3)}), "no inputs"),
        "no nodes": (model_of([], [x], [x]), ""),
        "empty": (model_of([], [], []), "not an ONNX model"),
        "input twice": (model_of([relu], [x, x], [y]), "x"),
        "output twice": (model_of([relu], [x], [y, y]), "y"),
        "made twice": (model_of([relu, relu], [x], [y]), "y"),
        "not made": (model_of([relu], [x], [port("z", ["n", 3])]), "z"),
        "weight answers": (model_of([relu], [x], [y, port("w", [1, 2])], {"w": floats(generator, 1, 2)}), ""),
        "unused input": (model_of([relu], [x, port("u", ["n", 9])], [y]), ""),
        "cycle": (model_of([helper.make_node("Add", ["x", "y"], ["y"])], [x], [y]), "y"),
        "unordered": (
            model_of([helper.make_node("Neg", ["r"], ["y"]), helper.make_node("Relu", ["x"], ["r"])], [x], [y]),
            "",
        ),
        "wrong shape": (model_of([relu], [x], [port("y", ["n", 4])]), ""),
        "wrong type": (model_of([relu], [x], [port("y", ["n", 3], TensorProto.DOUBLE)]), "y"),
        "unknown operator": (model_of([helper.make_node("Frobnicate", ["x"], ["y"])], [x], [y]), "Frobnicate"),
        "custom domain": (
            model_of([helper.make_node("Op", ["x"], ["y"], domain="com.acme")], [x], [y], domains={"com.acme": 1}),
            "com.acme",
        ),
        "no opset": (onnx.ModelProto(ir_version=8, graph=model_of([relu], [x], [y]).graph), "opset"),
        "without shapes": (model_of([relu], [port("x", None)], [port("y", None)]), "shape"),
        "metadata": (_with_metadata(model_of([relu], [x], [y])), ""),
    }
    names = sorted(forms)
    name = names[generator.integers(len(names))]
    model, refusal = forms[name]
    request = {"x": floats(generator, 1, 3), "u": floats(generator, 1, 9)}
    return MadeModel(f"graph: {name}", saved(path, model), [request], refusal)


def _with_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    model.producer_name, model.doc_string, model.model_version = "é\x1b[31m", "TODO: \n# not one", -1
    helper.set_model_props(model, {"names": "{0: 'person'}", "file": "x" * 10_000, "ü": ""})
    model.graph.doc_string = "kind: Workflow"
    return model


def broken(path: Path, generator: Generator) -> MadeModel:
    """Files that are no ONNX: empty, cut off, text, of another format, folders and links to nowhere."""
    whole = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], [port("x", ["n", 64])], [port("y", ["n", 64])],
        {"w": floats(generator, 64)},
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


def quantised(path: Path, generator: Generator) -> MadeModel:
    """QDQ, QOperator and dynamic quantisation, floats of 16 bits inside, and operators of com.microsoft."""
    x, y = port("x", ["n", 4]), port("y", ["n", 2])
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
            helper.make_node("Cast", ["yi"], ["yf"], to=FLOAT),
            helper.make_node("Mul", ["yf", "xs"], ["y"]),
        ]
        weights = {"w": weight}
    elif form == "half":
        nodes = [
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            helper.make_node("MatMul", ["h", "w"], ["m"]),
            helper.make_node("Cast", ["m"], ["y"], to=FLOAT),
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
    saved(path, model_of(nodes, [x], [y], weights, domains=domains))
    return MadeModel(f"quantised {form}", path, [{"x": floats(generator, 1, 4)}])


def heavy(path: Path, generator: Generator) -> MadeModel:
    """Models that never end, or take all memory: in their run, or when onnxruntime folds their constants."""
    form = str(generator.choice(["much at load", "much in a run"]))
    x = port("x", ["n", 3])
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
    model = model_of(nodes, [x], [port("y", ["n", 3])], weights)
    return MadeModel(f"heavy: {form}", saved(path, model), (), "m")
