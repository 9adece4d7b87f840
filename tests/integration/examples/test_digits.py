"""The digits example is what it says: real scans, split by writer, small hashed models, really quantised."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image

from jellybean.documents import build_problem, load_project
from jellybean_solver import EdgeKind
from tests.support.paths import EXAMPLES
from tests.support.skips import NotInstalled

DIGITS = EXAMPLES / "digits"
MODELS = sorted((DIGITS / "models").glob("*.onnx"))
MIB = 2**20


def run(model: str, **inputs: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(DIGITS / "models" / f"{model}.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def operators_of(model: Path) -> set[str]:
    return {node.op_type for node in onnx.load(model).graph.node}


def strips_module() -> ModuleType:
    pytest.importorskip("sklearn", reason=NotInstalled.SCIKIT_LEARN)
    spec = importlib.util.spec_from_file_location("digits_strips", DIGITS / "strips.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_documents_are_sound_and_plannable_as_committed() -> None:
    problem = build_problem(load_project(DIGITS))
    kinds = {(edge.upstream, edge.downstream): edge.kind for edge in problem.edges}
    assert kinds["find", "shape"] is EdgeKind.FAN_OUT
    assert kinds["read", "number"] is EdgeKind.GATHER
    assert len(problem.operator_by_name["read"].inputs) == 2
    assert len(problem.operator_by_name["shape"].variants) >= 4
    assert len(problem.operator_by_name["strokes"].variants) >= 3


def test_every_model_file_is_named_with_its_hash() -> None:
    workflow = load_project(DIGITS, profiles=False).workflow
    named = {v.model: v.sha256 for spec in workflow.operators.values() for v in spec.variants.values()}
    assert {f"models/{path.name}" for path in MODELS} == set(named)
    for path in MODELS:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == named[f"models/{path.name}"]


def test_files_are_small_and_self_contained() -> None:
    assert sum(path.stat().st_size for path in MODELS) < 3 * MIB
    assert (DIGITS / "data/heldout.npz").stat().st_size < MIB
    for path in MODELS:
        model = onnx.load(path, load_external_data=False)
        assert not any(tensor.HasField("data_location") and tensor.data_location for tensor in model.graph.initializer)
        assert max(opset.version for opset in model.opset_import if opset.domain == "") <= 20


@pytest.mark.parametrize("name", ["shape-cnn-large", "strokes-cnn"])
def test_int8_variants_are_really_quantised(name: str) -> None:
    full, small = DIGITS / f"models/{name}.onnx", DIGITS / f"models/{name}-int8.onnx"
    assert "QuantizeLinear" in operators_of(small)
    assert "QuantizeLinear" not in operators_of(full)
    weights = [tensor for tensor in onnx.load(small).graph.initializer if len(tensor.dims) == 4]
    eight_bit = [tensor for tensor in weights if tensor.data_type == onnx.TensorProto.INT8]
    assert len(eight_bit) == len(weights) >= 5
    assert small.stat().st_size < full.stat().st_size / 2.5


@pytest.mark.parametrize(("digits", "number"), [([], -1), ([0], 0), ([0, 7], 7), ([9, 0, 9, 0, 9, 0], 909090)])
def test_number_reads_digits_left_to_right(digits: list[int], number: int) -> None:
    logp = np.log(np.eye(10, dtype=np.float32)[digits].reshape(-1, 10) + 1e-6)
    found = run("number", read=logp)
    assert found.dtype == np.int64
    assert found.tolist() == [number]


def test_find_gives_the_crops_of_full_slots_in_order() -> None:
    data = np.load(DIGITS / "data/heldout.npz")
    counts = []
    for strip, held in zip(data["strips"], data["held"], strict=True):
        slots = strip.reshape(16, 6, 16).transpose(1, 0, 2)
        crops = run_find(strip[None])
        counts.append(len(crops))
        if len(crops) == held.sum():
            assert np.array_equal(crops, slots[held])
    right = np.mean(np.array(counts) == data["held"].sum(1))
    assert right > 0.97
    assert 0 in counts, "a strip without digits makes no children"


def run_find(strip: np.ndarray) -> np.ndarray:
    if not hasattr(run_find, "session"):
        run_find.session = ort.InferenceSession(DIGITS / "models/find.onnx", providers=["CPUExecutionProvider"])
    return run_find.session.run(None, {"strip": strip})[0]


def test_the_sample_picture_is_a_held_out_strip() -> None:
    picture = np.asarray(Image.open(DIGITS / "samples/strip.png"))
    data = np.load(DIGITS / "data/heldout.npz")
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, data["strips"][0])


def test_held_out_data_come_from_the_script_and_share_no_scan_with_training() -> None:
    strips = strips_module()
    data = np.load(DIGITS / "data/heldout.npz")
    scans = strips.load_scans("heldout")
    made, numbers, held = strips.strips(scans, len(data["strips"]), np.random.default_rng(7))
    assert np.array_equal(numbers, data["labels"])
    assert np.array_equal(held, data["held"])
    assert np.mean(np.abs(made.astype(int) - data["strips"]) <= 1) > 0.999  # rounding may differ between machines
    ranges = sorted(strips.SPLITS.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    seen = {scan.tobytes() for split in ("train", "tune") for scan in strips.load_scans(split).ink}
    assert not any(scan.tobytes() in seen for scan in scans.ink)
