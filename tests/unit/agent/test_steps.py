"""The agent's own steps: right numbers, and exactly what they declare."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jellybean_agent import BUILTIN_STEPS_MODULE, Executor, PermanentError, PythonStep, find_module_source


def run(name: str, array: np.ndarray, **arguments: Any) -> dict[str, np.ndarray]:
    step = PythonStep(f"{BUILTIN_STEPS_MODULE}:{name}", json.dumps(arguments))
    return dict(Executor(step, find_module_source(BUILTIN_STEPS_MODULE).sha256, ("data",)).run((array,)).outputs)


def test_normalise_as_torchvision_does() -> None:
    pictures = np.random.default_rng(1).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    found = run("normalise", pictures, mean=mean, std=std)["data"]
    assert np.allclose(found, (pictures / 255.0 - mean) / std, atol=1e-5)
    plain = run("normalise", np.float32([[1, 2]]), mean=1, divisor=1, dtype="float32", shape=2)["data"]
    assert plain.tolist() == [[0, 1]]


@pytest.mark.parametrize(("height", "width"), [(7, 5), (14, 10), (3, 20), (1, 1)])
def test_resize(height: int, width: int) -> None:
    pictures = np.random.default_rng(2).integers(0, 256, (2, 7, 5, 3), dtype=np.uint8)
    nearest = run("resize", pictures, height=height, width=width, method="nearest")["picture"]
    for one, wanted in zip(nearest, pictures, strict=True):
        assert np.array_equal(
            one, np.asarray(Image.fromarray(wanted).resize((width, height), Image.Resampling.NEAREST))
        )
    if height >= 7 and width >= 5:  # where it makes smaller, Pillow blurs first
        smooth = run("resize", pictures, height=height, width=width)["picture"].astype(int)
        for one, wanted in zip(smooth, pictures, strict=True):
            image = np.asarray(Image.fromarray(wanted).resize((width, height), Image.Resampling.BILINEAR)).astype(int)
            assert np.abs(one - image).max() <= 1
    grey = run("resize", pictures[..., 0], height=height, width=width, channels=[])["picture"]
    assert np.array_equal(grey, run("resize", pictures, height=height, width=width)["picture"][..., 0])


def test_channels_first_and_back() -> None:
    pictures = np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)
    first = run("channels_first", pictures)["picture"]
    assert np.array_equal(first, pictures.transpose(0, 3, 1, 2))
    assert np.array_equal(run("channels_last", first)["picture"], pictures)


def test_flatten_and_reshape_keep_rows_and_order() -> None:
    data = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    flat = run("flatten", data, dtype="int64", shape=[3, 4])["data"]
    assert flat.tolist() == data.reshape(2, 12).tolist()
    pairs = run("reshape", flat, to=[-1, 2], dtype="int64")["data"]
    assert pairs.tolist() == data.reshape(2, 6, 2).tolist()
    empty = np.zeros((0, 12), np.int64)
    assert run("reshape", empty, to=[-1, 2], dtype="int64")["data"].shape == (0, 6, 2)
    assert run("flatten", np.zeros((0, 3, 4), np.float32))["data"].shape == (0, 12)
    with pytest.raises(PermanentError, match="cannot reshape"):
        run("reshape", flat, to=[5], dtype="int64")


def test_select_takes_one_entry_of_each_row() -> None:
    scores = np.float32([[0.1, 0.9], [0.7, 0.3]])
    assert run("select", scores, index=1)["data"].tolist() == scores[:, 1].tolist()
    tokens = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    assert run("select", tokens, index=0, dtype="float16", shape=4)["data"].tolist() == tokens[:, 0].tolist()
    with pytest.raises(PermanentError, match="out of bounds"):
        run("select", scores, index=2)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_scores_of_other_precisions(dtype: str) -> None:
    scores = np.array([[1, 3, 2]], dtype)
    probabilities = run("softmax", scores, dtype=dtype)["scores"]
    assert probabilities.dtype == dtype
    assert np.allclose(probabilities, np.exp([1, 3, 2]) / np.exp([1, 3, 2]).sum(), atol=1e-3)
    assert run("argmax", scores, dtype=dtype)["label"].tolist() == [1]
    assert run("top_k", scores, k=2, dtype=dtype)["scores"].dtype == dtype


def test_cast_keeps_within_the_range() -> None:
    data = np.float32([[-1e10, -1.9, 0, 1.9, 254.5, 1e10, np.nan]])
    assert run("cast", data, to="uint8", dtype="float32", shape=7)["data"].tolist() == [[0, 0, 0, 1, 254, 255, 0]]
    whole = np.int64([[-(2**63), -1, 2**63 - 1]])
    assert run("cast", whole, to="int32", dtype="int64", shape=3)["data"].tolist() == [[-(2**31), -1, 2**31 - 1]]
    assert run("cast", whole, to="float32", dtype="int64", shape=3)["data"].dtype == np.float32


@settings(max_examples=10)
@given(st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), min_size=1, max_size=5))
def test_scores(rows: list[list[float]]) -> None:
    scores = np.float32(rows)
    shares = run("softmax", scores)["scores"]
    assert np.allclose(shares.sum(axis=1), 1, atol=1e-5)
    exact = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    assert np.allclose(shares, exact / exact.sum(axis=1, keepdims=True), atol=1e-5)
    assert run("argmax", scores)["label"].tolist() == [row.index(max(row)) for row in scores.tolist()]
    top = run("top_k", scores, k=2, classes=4)
    for row, labels, best in zip(scores.tolist(), top["labels"].tolist(), top["scores"].tolist(), strict=True):
        ranked = sorted(range(4), key=lambda place: (-row[place], place))[:2]
        assert labels == ranked and best == [row[place] for place in ranked]


def test_keep_above() -> None:
    found = np.float32([[[1, 0.9], [2, 0.5], [3, 0.6]]])
    assert run("keep_above", found, threshold=0.5, column=1, columns=2)["found"][:, 0].tolist() == [1, 3]
    assert run("keep_above", found, threshold=1, column=1, columns=2)["found"].shape == (0, 2)


def test_matrix_products_take_one_thread() -> None:
    lines = [line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines() if "openblas" in line]
    libraries = [ctypes.CDLL(path) for path in {line.split(maxsplit=5)[5] for line in lines}]
    names = [f"{first}openblas_{{}}_num_threads{last}" for first in ("", "scipy_") for last in ("", "64_", "_64")]
    found = [(library, name) for library in libraries for name in names if hasattr(library, name.format("get"))]
    if not found:
        pytest.skip("this numpy has no OpenBLAS")
    for library, name in found:
        getattr(library, name.format("set"))(2)
    run("softmax", np.float32([[1, 2]]))
    assert [getattr(library, name.format("get"))() for library, name in found] == [1] * len(found)


def run_named(name: str, arrays: dict[str, np.ndarray], **arguments: Any) -> dict[str, np.ndarray]:
    step = PythonStep(f"{BUILTIN_STEPS_MODULE}:{name}", json.dumps(arguments))
    sha256 = find_module_source(BUILTIN_STEPS_MODULE).sha256
    return dict(Executor(step, sha256, tuple(arrays)).run(tuple(arrays.values())).outputs)


@settings(max_examples=10)
@given(
    st.lists(
        st.lists(st.one_of(st.floats(-40, 40, width=32), st.just(float("nan"))), min_size=3, max_size=3), max_size=6
    ),
    st.floats(0.05, 1.0),
)
def test_unsure_passes_on_what_is_not_surely_known(rows: list[list[float]], below: float) -> None:
    scores, data = np.float32(rows).reshape(-1, 3), np.arange(2 * len(rows), dtype=np.uint8).reshape(-1, 2)
    for softmax in (False, True):
        arguments = {"below": below, "softmax": softmax, "classes": 3, "dtype": "uint8", "shape": 2}
        found = run_named("unsure", {"scores": scores, "data": data}, **arguments)
        with np.errstate(invalid="ignore"):
            shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) if softmax else scores
        highest = [row.max() for row in shares]
        near = any(abs(one - below) < 1e-5 for one in highest)
        if not near:
            assert found["rows"].tolist() == [int(not one >= below) for one in highest]
        assert np.array_equal(found["data"], data[found["rows"] == 1])


def test_unsure_of_one_value_per_request() -> None:
    """A confidence of shape [n], and data without further dimensions."""
    arrays = {"scores": np.float32([0.9, 0.2, 0.5]), "data": np.int64([1, 2, 3])}
    found = run_named("unsure", arrays, below=0.5, classes=[], dtype="int64", shape=[])
    assert found["data"].tolist() == [2]
    assert found["rows"].tolist() == [0, 1, 0]


def test_the_later_answer_is_the_second_where_there_is_one() -> None:
    first, second, none = np.float32([[1, 2]]), np.float32([[3, 4]]), np.zeros((0, 2), np.float32)
    assert run_named("later_answer", {"first": first, "then": second}, shape=2)["answer"].tolist() == [[3, 4]]
    assert run_named("later_answer", {"first": first, "then": none}, shape=2)["answer"].tolist() == [[1, 2]]
