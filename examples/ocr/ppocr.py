"""Takes the PP-OCR models from the wheels that carry them, and makes the variants of the workflow from them.

Each model file is checked by its sha256. To the graphs is added what a service needs: bytes in, pixels scaled to the
size of the variant and normalised; and out of 18,000 scores for each position of a line the best one and its character.
Int8 variants have their convolutions quantised statically by onnxruntime, on pictures that are not held out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

SIZES = (480, 640, 960)  # pixels: longest side of a picture as the detector sees it
SOURCES = {  # model -> (package, file in it, sha256)
    "detect-v4": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "detect-v6": (
        "rapidocr",
        "models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    ),
    "classify": (
        "rapidocr",
        "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "recognise-v4": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "recognise-v6": (
        "rapidocr",
        "models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    ),
}
PER_CHANNEL_OPSET = 13  # the first with a scale for each channel of a convolution
Feeds = Iterable[Mapping[str, np.ndarray]]


class ModelSourceError(Exception):
    """A model that is not where its wheel has it, or is another one."""


def take(name: str) -> onnx.ModelProto:
    """A model from the installed wheel. ModelSourceError if it is missing or its sha256 differs."""
    package, file, sha256 = SOURCES[name]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModelSourceError(f"the package {package.replace('_', '-')} is not installed")
    path = Path(found.submodule_search_locations[0]) / file
    if not path.is_file():
        raise ModelSourceError(f"{package.replace('_', '-')} has no file {file}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ModelSourceError(f"{path} is not the model of this example: its sha256 is not {sha256}")
    return onnx.load_model_from_string(data)


def detector(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    """Pixels [1, height, width, 3] in; 255 times the probability of text out, [1, height, width] of the scaled picture.

    The longest side is scaled down to `size`, both to multiples of 32, as the network halves them five times.
    """
    graph = _Graph(model, "pixels", [1, "height", "width", 3])
    sides = graph.node("Slice", graph.node("Shape", "pixels"), graph.ints(1), graph.ints(3))
    sides = graph.node("Cast", sides, to=TensorProto.FLOAT)
    longest = graph.node("ReduceMax", sides, keepdims=1)
    scale = graph.node("Min", graph.node("Div", graph.floats(size), longest), graph.floats(1.0))
    blocks = graph.node("Round", graph.node("Div", graph.node("Mul", sides, scale), graph.floats(32.0)))
    sides = graph.node("Mul", graph.node("Max", blocks, graph.floats(1.0)), graph.floats(32.0))
    shape = graph.node("Concat", graph.ints(1, 3), graph.node("Cast", sides, to=TensorProto.INT64), axis=0)
    floats = graph.channels_first("pixels")
    scaled = graph.node("Resize", floats, graph.floats(), graph.floats(), shape, mode="linear")
    graph.feed(graph.normalised(scaled))
    share = graph.node("ReduceMax", graph.output, axes=[1], keepdims=0)
    text = graph.node("Cast", graph.node("Mul", share, graph.floats(255.0)), to=TensorProto.UINT8)
    return graph.finished(text, "text", TensorProto.UINT8, [1, "rows", "columns"])


def classifier(model: onnx.ModelProto) -> onnx.ModelProto:
    """Lines [n, 48, 192, 3] in; the probabilities that each stands upright and upside down out, [n, 2]."""
    graph = _Graph(model, "line", ["n", 48, 192, 3])
    graph.feed(graph.normalised(graph.channels_first("line")))
    return graph.finished(graph.output, "upside_down", TensorProto.FLOAT, ["n", 2])


def recogniser(model: onnx.ModelProto) -> onnx.ModelProto:
    """Lines [n, 48, width, 3] in; the likeliest character's code point (0: none) and probability out, [n, t, 2]."""
    characters = {entry.key: entry.value for entry in model.metadata_props}["character"].splitlines()
    codes = np.zeros(2 + len(characters), np.float32)  # the blank first, a space last
    codes[1:] = [ord(character[0]) if character else ord(" ") for character in [*characters, " "]]
    graph = _Graph(model, "line", ["n", 48, "width", 3])
    graph.feed(graph.normalised(graph.channels_first("line")))
    best = graph.node("ArgMax", graph.output, axis=2, keepdims=1)
    code = graph.node("Gather", graph.constant(codes), best)
    share = graph.node("ReduceMax", graph.output, axes=[2], keepdims=1)
    found = graph.node("Concat", code, share, axis=2)
    return graph.finished(found, "characters", TensorProto.FLOAT, ["n", "positions", 2])


def normalised(pixels: np.ndarray) -> np.ndarray:
    """What the graphs make of bytes [n, height, width, 3]: floats from -1 to 1, [n, 3, height, width]."""
    return (pixels.transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)


def quantised(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """The model with int8 convolutions, ranges taken from `feeds`."""
    with tempfile.TemporaryDirectory() as folder:
        given, folded, made = (Path(folder) / f"{name}.onnx" for name in ("float", "folded", "int8"))
        onnx.save(onnx.version_converter.convert_version(model, PER_CHANNEL_OPSET), str(given))
        # Weights that are constant nodes become initializers, which alone are quantised.
        quant_pre_process(str(given), str(folded), skip_symbolic_shape=True)
        quantize_static(
            str(folded),
            str(made),
            _Reader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
        return onnx.load(str(made))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._feeds, None)


class _Graph:
    """A model whose graph gets nodes before its input and after its output. Takes bytes, as pictures are."""

    def __init__(self, model: onnx.ModelProto, name: str, shape: list[int | str]) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        graph = self.model.graph
        weights = {weight.name for weight in graph.initializer}
        (self._input,) = (value.name for value in graph.input if value.name not in weights)
        (self.output,) = (value.name for value in graph.output)
        self._before, self._after = [], []
        self._fed = False
        del graph.input[:]
        del graph.output[:]
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.UINT8, shape))

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node; returns the name of its output."""
        nodes = self._after if self._fed else self._before
        name = f"service_{len(self._before) + len(self._after)}"
        nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        """Add an initializer; returns its name."""
        name = f"service_value_{len(self.model.graph.initializer)}"
        self.model.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def ints(self, *values: int) -> str:
        """An initializer [n] of int64."""
        return self.constant(np.array(values, np.int64))

    def floats(self, *values: float) -> str:
        """An initializer [n] of float32."""
        return self.constant(np.array(values, np.float32))

    def channels_first(self, pixels: str) -> str:
        """Bytes [n, height, width, 3] as floats [n, 3, height, width]."""
        return self.node("Transpose", self.node("Cast", pixels, to=TensorProto.FLOAT), perm=[0, 3, 1, 2])

    def normalised(self, pixels: str) -> str:
        """0..255 as -1..1."""
        return self.node("Sub", self.node("Div", pixels, self.floats(127.5)), self.floats(1.0))

    def feed(self, value: str) -> None:
        """Let the model read this value; nodes are added after it from now on."""
        self._before.append(helper.make_node("Identity", [value], [self._input], "service_feed"))
        self._fed = True

    def finished(self, value: str, name: str, kind: int, shape: list[int | str]) -> onnx.ModelProto:
        """The model whose output is `value`, under this name."""
        graph = self.model.graph
        nodes = [*self._before, *graph.node, *self._after, helper.make_node("Identity", [value], [name], "service_end")]
        del graph.node[:]
        graph.node.extend(nodes)
        del graph.value_info[:]
        graph.output.append(helper.make_tensor_value_info(name, kind, shape))
        onnx.checker.check_model(self.model)
        return self.model
