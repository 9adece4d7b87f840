"""Requests from the command line: files, rows, literals, and what is said of unusable ones."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jellybean.cli.failures import failure, status_of
from jellybean.cli.serving.request_inputs import (
    input_values,
    load_tensor,
    parse_inputs,
    refusal_on_the_command_line,
    requests_by_row,
)
from jellybean.errors import InputError
from jellybean.serving.gateway.plans.source_messages import check_inputs
from jellybean_agent import InvalidInputError, encode_tensor
from jellybean_protos.agent.v1 import agent_pb2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.savez(tmp_path / "held.npz", meta=np.arange(8, dtype=np.int64).reshape(4, 2))
    Image.fromarray(np.full((2, 3), 7, dtype=np.uint8)).save(tmp_path / "grey.png")
    return tmp_path


def test_files_and_their_rows(folder: Path) -> None:
    assert load_tensor(f"{folder}/x.npy").shape == (3, 2)
    assert load_tensor(f"{folder}/x.npy[2]").tolist() == [[4, 5]]
    assert load_tensor(f"{folder}/held.npz#meta[3]").tolist() == [[6, 7]]
    assert load_tensor(f"{folder}/grey.png").tolist() == [[[7, 7, 7], [7, 7, 7]]]


def test_the_bytes_of_a_file_as_they_are(folder: Path) -> None:
    file = folder / "scan#2.npy.jpg"
    file.write_bytes(b"\xff\xd8\x00")
    found = load_tensor(f"bytes:{file}")
    assert (found.dtype, found.tolist()) == (np.uint8, [[255, 216, 0]])
    with pytest.raises(InputError, match="there is no such file"):
        load_tensor(f"bytes:{folder}/none.jpg")


@pytest.mark.parametrize(
    ("text", "dtype", "values"),
    [
        ("[1.5, 2]", "float32", [[1.5, 2.0]]),
        ("[[1, 2], [3, 4]]", "int64", [[[1, 2], [3, 4]]]),
        ("3", "int64", [3]),
        ("-0.5", "float32", [-0.5]),
        ("true", "bool", [True]),
        ("uint8:[1, 255]", "uint8", [[1, 255]]),
        ("float64:3", "float64", [3.0]),
    ],
)
def test_literals_are_one_requests_value(text: str, dtype: str, values: list[object]) -> None:
    tensor = load_tensor(text)
    assert (tensor.dtype.name, tensor.tolist()) == (dtype, values)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("none.npy", "none.npy: there is no such file"),
        ("none.npz#x", "none.npz: there is no such file"),
        ("none.png", "none.png: there is no such file"),
        ("{folder}/x.npy[3]", "has no row 3: its 3 rows are numbered from 0"),
        ("{folder}/x.npy[-1]", "row number from 0"),
        ("{folder}/held.npz", "name an array"),
        ("{folder}/held.npz#mta", "arrays: meta"),
        ("[1, ]", "is not a literal"),
        ("[[1], [2, 3]]", "neither flat nor those of shape [2, 1]"),
        ('["a"]', "text (BYTES) is not served"),
        ("uint9:[1]", "did you mean 'uint8'"),
        ("uint8:[300]", "300 is no uint8"),
        ("int32:[1.5]", "is a fraction, not int32"),
    ],
)
def test_unusable_inputs_are_bad_input(folder: Path, text: str, part: str) -> None:
    with pytest.raises(InputError) as raised:
        load_tensor(text.format(folder=folder))
    assert part in str(raised.value)
    assert status_of(raised.value) == 2
    assert failure(raised.value)["error"]["kind"] == "input"


def test_each_row_is_a_request_and_a_single_row_goes_into_each() -> None:
    requests = list(requests_by_row({"a": np.array([[1], [2], [3]]), "b": np.array([[9]])}))
    assert [(request["a"].tolist(), request["b"].tolist()) for request in requests] == [
        ([[1]], [[9]]),
        ([[2]], [[9]]),
        ([[3]], [[9]]),
    ]
    with pytest.raises(InputError, match=r"different numbers of rows \(a 3, b 2\)"):
        list(requests_by_row({"a": np.zeros((3, 1)), "b": np.zeros((2, 1))}))


def test_a_source_is_given_once_and_by_name() -> None:
    with pytest.raises(InputError, match="twice for source a"):
        parse_inputs(["a=1", "a=2"])
    for text in ("a", "=1"):
        with pytest.raises(InputError, match="write SOURCE=FILE"):
            parse_inputs([text])


def refusal(value: str, dtype: str, shape: tuple[int, ...], *, rows: bool = False) -> str:
    """What `infer` says of a value that a model does not take; empty if it takes it."""
    view: Any = SimpleNamespace(source_outputs={"x": [("decide", "each")]})
    spec = agent_pb2.TensorSpec(dtype=dtype, shape=shape)
    signature: Any = SimpleNamespace(inputs={"x": spec})
    tensors = {"x": load_tensor(value)}
    try:
        for request in requests_by_row(tensors) if rows else [tensors]:
            check_inputs(view, lambda operator: signature, {"x": encode_tensor(request["x"])})
    except InvalidInputError as error:
        return refusal_on_the_command_line(str(error), input_values([f"x={value}"]), rows=rows)
    return ""


@pytest.mark.parametrize(
    ("value", "shape", "written"),
    [
        ("[1, 2, 3, 4]", (-1, 4), "'x=float32:[1, 2, 3, 4]'"),
        ("int64:[1, 2]", (-1, 2), "'x=float32:[1, 2]'"),
        ("[[1.5, 2], [3, 4]]", (-1, 4), "'x=[1.5, 2.0, 3.0, 4.0]'"),
        ("uint8:[[1, 2], [3, 4]]", (1, 4), "'x=float32:[1, 2, 3, 4]'"),
        ("[[1.5, 2], [3, 4], [5, 6]]", (-1, 2, 3), "'x=[[1.5, 3.0, 5.0], [2.0, 4.0, 6.0]]'"),
    ],
)
def test_a_literal_that_does_not_fit_is_answered_with_one_that_does(
    value: str, shape: tuple[int, ...], written: str
) -> None:
    said = refusal(value, "float32", shape)
    assert said.endswith(f"; write --input {written}")
    (option,) = shlex.split(written)
    assert refusal(option.partition("=")[2], "float32", shape) == ""


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "rows"),
    [
        ("x.npy[0]", "float64", (-1, 2), False),
        ("x.npy[1]", "float32", (-1, 2, 1), False),
        ("x.npy", "float32", (-1, 3, 2), False),
        ("x.npy", "float64", (-1, 2), True),
        ("x.npy", "float32", (-1, 2, 1), True),
        ("held.npz#meta[3]", "float32", (-1, 2), False),
        ("grey.png", "float32", (-1, 2, 3), False),
        ("grey.png", "uint8", (-1, 6), False),
        ("colour.png", "uint8", (1, 18), False),
        ("bytes:it's.bin", "int32", (-1, -1), False),
        ("table.npy[1]", "float64", (-1, 4, 3), False),
        ("table.npy", "float64", (-1, 4, 3), True),
    ],
)
def test_a_file_that_does_not_fit_is_answered_with_the_command_that_makes_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str, dtype: str, shape: tuple[int, ...], rows: bool
) -> None:
    monkeypatch.chdir(folder)
    Image.fromarray(np.full((2, 3, 3), 7, dtype=np.uint8)).save("colour.png")
    Path("it's.bin").write_bytes(b"abc")
    np.save("table.npy", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    said = refusal(value, dtype, shape, rows=rows)
    command, _, option = said.partition("make a file that fits: ")[2].partition(", and give ")
    assert option == "--input x=x-request.npy"
    program, *arguments = shlex.split(command)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True, timeout=60)
    assert refusal("x-request.npy", dtype, shape, rows=rows) == ""


def test_a_file_with_permuted_axes_is_transposed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    table = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.save("table.npy", table)
    command = refusal("table.npy", "float32", (-1, 4, 3), rows=True).partition("a file that fits: ")[2]
    _, *arguments = shlex.split(command.partition(", and give ")[0])
    subprocess.run([sys.executable, *arguments], check=True, timeout=60)
    assert np.array_equal(load_tensor("x-request.npy"), table.transpose(0, 2, 1))


def test_several_rows_are_answered_with_one_row_or_a_request_each(folder: Path) -> None:
    said = refusal(f"{folder}/x.npy", "float32", (-1, 2))
    assert said.endswith(f"; give one row, --input 'x={folder}/x.npy[0]', or send each row as a request: --rows")
    assert refusal(f"{folder}/x.npy[0]", "float32", (-1, 2)) == ""
    assert refusal(f"{folder}/x.npy", "float32", (-1, 2), rows=True) == ""


def test_a_refusal_without_certain_advice_stays_as_it_is() -> None:
    assert refusal("[1.5, 2]", "float32", (-1, 3)).endswith("got float32 [1, 2] (for decide)")
    forged = "source x: no; send array.astype('float32'); import os"
    assert refusal_on_the_command_line(forged, {"x": "x.npy"}, rows=False) == forged


@pytest.mark.parametrize("name", ["a#b", "a[1]", "a [x", "100%", "a.npz#x"])
def test_files_in_folders_whose_names_have_marks_of_references(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(3.0))
    np.savez(folder / "x.npz", **{"y": np.arange(3), "z[0]": np.arange(2)})
    assert load_tensor(f"{folder}/x.npy[1]").tolist() == [1.0]
    assert load_tensor(f"{folder}/x.npz#y[2]").tolist() == [2]
    assert load_tensor(f"{folder}/x.npz#z[0]").tolist() == [0, 1]
    assert load_tensor(f"bytes:{folder}/x.npy").shape[0] == 1


def test_values_that_a_cast_would_change_are_not_advised_to_be_cast(folder: Path) -> None:
    Image.fromarray(np.array([[0, 65535]], np.uint16)).save(folder / "wide.png")
    said = refusal(f"{folder}/wide.png", "uint8", (-1, -1, -1))
    assert said.endswith(
        "got uint16 [1, 1, 2] (for decide); its values, 0 to 65535, are not all uint8: scale or round them first"
    )
    assert refusal("[1.5, 2]", "int64", (-1, 2)).endswith("are not all int64: scale or round them first")
    assert refusal("float64:[1e39, 2]", "float32", (-1, 2)).endswith("are not all float32: scale or round them first")
    assert refusal("[1.0, 2.0]", "int64", (-1, 2)).endswith("write --input 'x=int64:[1, 2]'")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1e400]", "inf is too large for float32"),
        ("float16:[70000]", "70000 is too large for float16"),
        ("uint64:[-1]", "-1 is no uint64"),
        ("uint64:[18446744073709551616, 1]", "18446744073709551616 is no uint64"),
        ("bool:[2]", "is a whole number, not bool"),
        ("[1, true]", "is true or false, not int64"),
        ("int8:[300]", "300 is no int8"),
    ],
)
def test_numbers_beyond_their_type_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        load_tensor(text)


def test_large_unsigned_numbers_beside_small_ones_stay() -> None:
    numbers = [2**64 - 1, 2**63, 1, 2**53 + 1]
    assert load_tensor(f"uint64:{numbers}").tolist() == [numbers]
