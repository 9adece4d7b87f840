"""Tensors of requests from the command line: images, .npy and .npz files, rows of them, and literals."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from jellybean.cli.console import warn
from jellybean.errors import InputError
from jellybean.pictures import conversion_code, read_picture
from jellybean.quantities import did_you_mean, quoted
from jellybean.serving.gateway.plans.input_advice import ONE_ROW, InputAdvice, read_advice
from jellybean.serving.http.number_lists import decode_json, read_list
from jellybean.tensor_files import Array, name_and_row, read_npy, read_npz
from jellybean_agent import WIRE_DTYPES, InvalidInputError, checked_shape, describe_error

MAX_INPUT_BYTES = 64 * 2**20
_NPY = re.compile(r"(?P<file>.*\.npy)(?P<row>\[[^/]*)?", re.IGNORECASE | re.DOTALL)
_FILE_BYTES = "bytes:"  # before a file's name: its bytes as they are, for models that decode files themselves


def parse_inputs(texts: Sequence[str]) -> dict[str, Array]:
    """Source -> tensor of options `SOURCE=VALUE`. InputError if a source is given twice or a value is unusable."""
    tensors: dict[str, Array] = {}
    for text in texts:
        source, separator, value = text.partition("=")
        if not separator or not source:
            raise InputError(f"--input {text!r}: write SOURCE=FILE, e.g. --input image=x.png, or SOURCE=[1.5, 2]")
        if source in tensors:
            raise InputError(f"--input is given twice for source {source}")
        tensors[source] = load_tensor(value)
    return tensors


def requests_by_row(tensors: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """One request per row; a tensor of one row goes into each. InputError if the numbers of rows differ."""
    counts = {source: len(tensor) for source, tensor in tensors.items() if len(tensor) != 1}
    if len(set(counts.values())) > 1:
        rows = ", ".join(f"{source} {count}" for source, count in counts.items())
        raise InputError(f"--rows: the inputs have different numbers of rows ({rows})")
    for row in range(next(iter(counts.values()), 1)):
        yield {source: tensor[row : row + 1] if source in counts else tensor for source, tensor in tensors.items()}


def input_values(texts: Sequence[str]) -> dict[str, str]:
    """Source -> the value of options `SOURCE=VALUE`, as it is written."""
    return {source: value for source, _, value in (text.partition("=") for text in texts)}


def refusal_on_the_command_line(refusal: str, values: Mapping[str, str], *, rows: bool) -> str:
    """A gateway's refusal of a tensor, with what to do about the file or literal in place of a NumPy expression.

    `values`: as of `input_values`. `rows`: each row of the values was a request.
    """
    advice = read_advice(refusal)
    value = None if advice is None else values.get(advice.source)
    if advice is None or value is None:
        return refusal
    if (text := _fitting_literal(value, advice)) is not None:
        return f"{advice.problem}; write {_option(advice.source, text)}"
    if advice.reshape == ONE_ROW:
        one = _option(advice.source, f"{value}[0]")
        return f"{advice.problem}; give one row, {one}, or send each row as a request: --rows"
    expression, made = advice.expression.replace("'", '"'), f"{advice.source}-request.npy"  # the shell's are single
    if rows and advice.shape is not None and advice.shape[0] == 1:
        expression = expression.replace(".reshape(1", ".reshape(len(array)", 1)
    code = f"import numpy as np; {_loading(value)}; np.save({json.dumps(made)}, {expression})"
    option = _option(advice.source, made)
    return f"{advice.problem}; make a file that fits: python -c {shlex.quote(code)}, and give {option}"


def _option(source: str, value: str) -> str:
    return f"--input {shlex.quote(f'{source}={value}')}"


def _fitting_literal(value: str, advice: InputAdvice) -> str | None:
    """A literal converted, reshaped or transposed as the advice says; None for a value that is no literal."""
    tensor = _literal(value)
    if tensor is None:
        return None
    dtype, numbers = _typed(value)
    if advice.dtype and np.dtype(advice.dtype).kind != "f":
        numbers = json.dumps(tensor[0].astype(advice.dtype).tolist())
    if advice.shape is not None:
        numbers = json.dumps(np.asarray(json.loads(numbers)).reshape(advice.shape)[0].tolist())
    elif advice.axes is not None:
        numbers = json.dumps(np.asarray(json.loads(numbers))[np.newaxis].transpose(advice.axes)[0].tolist())
    dtype = advice.dtype or dtype
    return f"{dtype}:{numbers}" if dtype else numbers


def _loading(value: str) -> str:
    """Python code that loads a file as `load_tensor` does, as `array`."""
    file = _InputFile.of(value)
    name = json.dumps(str(file.path))
    if file.kind is _FileKind.BYTES:
        return f'array = np.frombuffer(open({name}, "rb").read(), np.uint8)[None]'
    if file.kind is _FileKind.PICTURE:
        return (
            f"import io; from PIL import Image, ImageOps; array = {conversion_code(file.path, MAX_INPUT_BYTES)}[None]"
        )
    array, row = (None, file.row) if file.kind is _FileKind.NPY else name_and_row(file.array)
    loaded = f"np.load({name})" if array is None else f"np.load({name})[{json.dumps(array)}]"
    return f"array = {loaded}" if row is None else f"array = {loaded}[{row}:{row + 1}]"


class _FileKind(Enum):
    BYTES = "bytes"
    NPY = ".npy"
    NPZ = ".npz"
    PICTURE = "picture"


@dataclass(frozen=True)
class _InputFile:
    """A file as an option names it. `array`: of an archive, with its row. `row`: of a .npy file."""

    kind: _FileKind
    path: Path
    array: str = ""
    row: int | None = None

    @staticmethod
    def of(reference: str) -> _InputFile:
        """Read `bytes:FILE`, `FILE.npy[row]`, `FILE.npz#array[row]` or the name of a picture.

        A `#` or `[` in the names of folders and files is a part of them. InputError for what is no row.
        """
        if reference.startswith(_FILE_BYTES):
            return _InputFile(_FileKind.BYTES, Path(reference.removeprefix(_FILE_BYTES)))
        archive, mark, array = _archive_and_array(reference)
        if mark and Path(archive).is_file():
            return _InputFile(_FileKind.NPZ, Path(archive), array)
        if (match := _NPY.fullmatch(reference)) is not None:
            _, row = name_and_row(f"array{match['row'] or ''}")
            return _InputFile(_FileKind.NPY, Path(match["file"]), row=row)
        if mark or reference.lower().endswith(".npz"):
            return _InputFile(_FileKind.NPZ, Path(archive), array)
        return _InputFile(_FileKind.PICTURE, Path(reference))


def _archive_and_array(reference: str) -> tuple[str, str, str]:
    """`FILE.npz#array` as (file, "#", array); ("FILE", "", "") without an array."""
    at = reference.lower().rfind(".npz#")
    end = at + len(".npz") if at >= 0 else len(reference)
    return reference[:end], reference[end : end + 1], reference[end + 1 :]


def load_tensor(reference: str) -> Array:
    """The tensor of a picture (uint8, [1, H, W] grey or [1, H, W, 3]; more bits of grey as their type), FILE.npy,
    FILE.npz#array, bytes:FILE (uint8, [1, bytes of the file]), or a literal.

    `[3]` at the end of a file or array takes one row. A literal is JSON, with the element type before it if need be:
    `[1.5, 2]`, `uint8:[1, 2]`; it is the value of one request, so it gets a leading dimension of 1.
    """
    literal = _literal(reference)
    if literal is not None:
        return literal
    file = _InputFile.of(reference)
    try:
        path = _small(file.path)
        if file.kind is _FileKind.BYTES:
            return np.frombuffer(path.read_bytes(), np.uint8)[np.newaxis]
        if file.kind is _FileKind.NPY:
            return read_npy(path, file.row)
        if file.kind is _FileKind.NPZ:
            return read_npz(path, file.array)
        picture = read_picture(path, MAX_INPUT_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or file.path}: there is no such file") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{file.path}: cannot be read as an input: {describe_error(error)}") from error
    if picture.note:
        warn(f"{file.path}: {picture.note}")
    return picture.pixels[np.newaxis]


def _small(path: Path) -> Path:
    if (size := path.stat().st_size) > MAX_INPUT_BYTES:
        raise InputError(f"{path}: {size:,} bytes are more than an input may have ({MAX_INPUT_BYTES:,})")
    return path


def _typed(text: str) -> tuple[str, str]:
    """The element type of a literal, empty if none is written, and its numbers as JSON."""
    dtype, colon, numbers = text.partition(":")
    typed = bool(colon) and dtype.isidentifier() and numbers.lstrip()[:1] in "[-0123456789tfNI"
    return (dtype, numbers) if typed else ("", text)


def _literal(text: str) -> Array | None:
    """The tensor of a literal; None if the text is none."""
    dtype, numbers = _typed(text)
    try:
        value: Any = decode_json(numbers.strip())
    except (ValueError, RecursionError, InvalidInputError):
        if text.startswith("[") or (dtype in WIRE_DTYPES and numbers.lstrip()[:1] == "["):
            raise InputError(
                f"{quoted(text)} is not a literal: write a list as JSON does, [[1.5, 2], [3, 4]]"
            ) from None
        return None
    shape, elements = _shape_and_elements(value)
    target = dtype or _usual_dtype(elements)
    if target not in WIRE_DTYPES:
        known = sorted(WIRE_DTYPES)
        hint = did_you_mean(target, known) or f"known: {', '.join(known)}"
        raise InputError(f"{quoted(text)}: there is no element type {target!r}; {hint}")
    try:
        checked_shape(shape)
        found = read_list(value if isinstance(value, list) else [value], target, shape, "element ")
    except InvalidInputError as error:
        raise InputError(f"{quoted(text)}: {error}") from error
    return found.reshape((1, *shape))


def _shape_and_elements(value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, by the first of each, and their elements."""
    shape: list[int] = []
    row = value
    while isinstance(row, list):
        shape.append(len(row))
        row = row[0] if row else None
    elements = value if isinstance(value, list) else [value]
    while any(isinstance(element, list) for element in elements):
        elements = [item for element in elements for item in (element if isinstance(element, list) else [element])]
    return tuple(shape), elements


def _usual_dtype(elements: Sequence[Any]) -> str:
    """The element type of a literal that names none: what most models take for such numbers."""
    if not elements or any(type(element) is float for element in elements):
        return "float32"
    return "bool" if all(type(element) is bool for element in elements) else "int64"
