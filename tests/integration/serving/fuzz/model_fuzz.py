"""Mutated model files and what becomes of them: run by itself, because it starts processes as an agent does.

`python -m tests.integration.serving.fuzz.model_fuzz COUNT SEED FOLDER` loads and runs COUNT models in model processes
and prints the outcomes as JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from jellybean_agent import Executor, ModelError, PermanentError
from jellybean_agent.errors import CrashError
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from tests.support.paths import EXAMPLES
from tests.support.tiny_models import difference, positives, scale, total

LIMIT_S = 5.0
MEMORY_BYTES = 512 * 2**20
_OPS = ("Add", "Conv", "Loop", "If", "Reshape", "Gather", "ConstantOfShape", "MatMul", "Cast", "Resize", "TopK", "LSTM")
_MOST_BYTES = 2**20  # larger ones would be hashed and parsed more than they are mutated


def originals(folder: Path) -> list[bytes]:
    """Models to begin with: the tests' own and those of the examples."""
    makers = {"scale": lambda p: scale(p, 2.0), "positives": positives, "total": total}
    for name, make in (makers | {"difference": lambda p: difference(p, "a", "b")}).items():
        make(folder / f"{name}.onnx")
    files = [*sorted(folder.glob("*.onnx")), *sorted(EXAMPLES.rglob("*.onnx"))]
    return [data for data in (file.read_bytes() for file in files) if len(data) < _MOST_BYTES]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A bit or a byte changed, bytes taken, put in and moved, or fields of the parsed model exchanged."""
    kind = chance.randrange(3)
    if kind == 0 and data:
        where = chance.randrange(len(data))
        return data[:where] + bytes([data[where] ^ 1 << chance.randrange(8)]) + data[where + 1 :]
    if kind == 1:
        for _ in range(chance.randint(1, 4)):
            where = chance.randrange(len(data) or 1)
            other = chance.randrange(len(data) or 1)
            data = chance.choice(
                (
                    data[:where] + bytes([chance.randrange(256)]) + data[where + 1 :],
                    data[:where] + bytes([data[where] ^ 1 << chance.randrange(8)]) + data[where + 1 :]
                    if data
                    else data,
                    data[:where] + chance.randbytes(chance.randint(1, 16)) + data[where:],
                    data[:where],
                    data[:where] + data[min(where, other) : max(where, other)] + data[where:],
                )
            )
        return data
    model = ModelProto.FromString(data)
    for _ in range(chance.randint(1, 2)):
        _change(model, chance)
    return model.SerializeToString()


def _change(model: ModelProto, chance: random.Random) -> None:  # noqa: C901  (one case a kind of change)
    graph = model.graph
    number = chance.choice((0, 1, -1, 2, 7, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)))
    node: NodeProto = chance.choice(graph.node) if graph.node else graph.node.add()
    tensor: TensorProto = chance.choice(graph.initializer) if graph.initializer else graph.initializer.add()
    match chance.randrange(12):
        case 0:
            node.op_type = chance.choice(_OPS)
        case 1 if node.attribute:
            attribute: AttributeProto = chance.choice(node.attribute)
            attribute.i, attribute.f = number, float(number)
            if attribute.ints:
                attribute.ints[chance.randrange(len(attribute.ints))] = number
        case 2 if tensor.dims:
            tensor.dims[chance.randrange(len(tensor.dims))] = number
        case 3:
            tensor.data_type = chance.randrange(25)
        case 4:
            tensor.raw_data = chance.randbytes(chance.choice((0, 1, 3, 8, len(tensor.raw_data))))
        case 5 if node.input:
            node.input[chance.randrange(len(node.input))] = chance.choice([*node.output, "", "nowhere"])
        case 6:
            graph.node.append(node)
        case 7:
            graph.node.remove(node)
        case 8:
            model.opset_import[0].version = abs(number) % 40
        case 9:
            model.ir_version = abs(number) % 20
        case 10 if graph.input:
            port = graph.input[0].type.tensor_type
            port.elem_type = chance.randrange(20)
            port.shape.dim.add().dim_value = number
        case 11 if graph.output:
            graph.output[0].name = chance.choice(("x", "", *(name for one in graph.node for name in one.output)))


def main(count: int, seed: int, folder: Path) -> dict[str, object]:
    """What became of so many mutated models; what took longest; whether an unchanged one ran after every one."""
    chance = random.Random(seed)
    began: list[float] = []
    told: Counter[str] = Counter()
    with ModelProcessPool(MEMORY_BYTES) as pool:
        models = originals(folder)
        path, good = folder / "mutated", folder / "scale.onnx"
        sha256 = hashlib.sha256(good.read_bytes()).hexdigest()
        process = ModelProcess(pool, load_limit_s=4 * LIMIT_S, run_limit_s=LIMIT_S)
        sound = Executor(good, sha256, ("x",), open_session=process.open)
        for number in range(count):
            began.append(time.monotonic())
            data = models[0]
            while data in models:
                data = mutated(chance.choice(models), chance)
            path.write_bytes(data)
            matching = hashlib.sha256(data).hexdigest()
            try:
                Executor(path, sha256, ("x",), open_session=process.open)
                raise AssertionError("a model of another sha256 was loaded")
            except ModelError as error:
                assert "altered" in str(error), error
            upstreams = ("a", "b") if b"left" in data or number % 7 == 0 else ("x",)
            told[_outcome(path, matching, upstreams, process)] += 1
            ran = sound.run((np.float32([[1, 2, 3, 4]]),)).outputs["y"].tolist()
            assert ran == [[2, 4, 6, 8]], ran
        hosts = process.generation
        process.close()
    spans = [after - before for before, after in zip(began, [*began[1:], time.monotonic()], strict=True)]
    return {"told": told, "longest_s": max(spans, default=0.0), "hosts": hosts, "seconds": sum(spans)}


def _outcome(path: Path, sha256: str, upstreams: tuple[str, ...], process: ModelProcess) -> str:
    try:
        executor = Executor(path, sha256, upstreams, open_session=process.open)
    except ModelError as error:
        if "-v" in sys.argv:
            print(str(error)[:200], file=sys.stderr)
        return "crashed while loaded" if "crash" in str(error) else "refused"
    shapes = [[max(size, 1) for size in port.shape] for port in executor.inputs]
    if any(math.prod(shape) > _MOST_BYTES for shape in shapes):
        return "failed"
    inputs = tuple(np.ones(shape, port.dtype) for shape, port in zip(shapes, executor.inputs, strict=True))
    try:
        executor.run(inputs)
    except CrashError as error:
        return "took too long" if "took longer" in str(error) else "crashed while run"
    except (PermanentError, ModelError):
        return "failed"
    return "ran"


if __name__ == "__main__":
    onnx.ModelProto()  # its own import is part of no measurement
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
