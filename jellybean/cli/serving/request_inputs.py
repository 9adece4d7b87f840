"""Tensors of requests from the command line: images, .npy and .npz files, rows of them, and literals."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from jellybean.errors import InputError
from jellybean.quantities import did_you_mean, quoted
from jellybean.serving.gateway.plans.input_advice import ONE_ROW, InputAdvice, read_advice
from jellybean.tensor_files import Array, name_and_row, read_npy, read_npz
from jellybean_agent import TEXT_NOT_SERVED, WIRE_DTYPES, describe_error

MAX_INPUT_BYTES = 64 * 2**20
_FILE_BYTES = "bytes:"  # before a file's name: its bytes as they are, for models that decode files themselves
_GREY_DIMENSIONS = 3  # of a grey picture's tensor; one in colour has four
_LITERAL_DTYPES = {"b": "bool", "i": "int64", "f": "float32"}  # by NumPy's kind: what most models take


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
    if _literal(value) is None:
        return None
    dtype, numbers = _typed(value)
    if advice.shape is not None:
        numbers = json.dumps(np.asarray(json.loads(numbers)).reshape(advice.shape)[0].tolist())
    elif advice.axes is not None:
        numbers = json.dumps(np.asarray(json.loads(numbers))[np.newaxis].transpose(advice.axes)[0].tolist())
    dtype = advice.dtype or dtype
    return f"{dtype}:{numbers}" if dtype else numbers


def _loading(value: str) -> str:
    """Python code that loads a file as `load_tensor` does, as `array`."""
    name, _, array = value.partition("#")
    if value.startswith(_FILE_BYTES):
        name = value.removeprefix(_FILE_BYTES)
        return f'array = np.frombuffer(open({json.dumps(name)}, "rb").read(), np.uint8)[None]'
    if ".npy" in name.lower():
        file, row = name_and_row(name)
        loaded = f"np.load({json.dumps(file)})"
    elif Path(name).suffix.lower() == ".npz":
        key, row = name_and_row(array)
        loaded = f"np.load({json.dumps(name)})[{json.dumps(key)}]"
    else:
        mode = "L" if load_tensor(value).ndim == _GREY_DIMENSIONS else "RGB"
        picture = f"Image.open({json.dumps(name)}).convert({json.dumps(mode)})"
        return f"from PIL import Image; array = np.asarray({picture})[None]"
    return f"array = {loaded}" if row is None else f"array = {loaded}[{row}:{row + 1}]"


def load_tensor(reference: str) -> Array:
    """The tensor of an image (uint8, [1, H, W] grey or [1, H, W, 3]), FILE.npy, FILE.npz#array, bytes:FILE (uint8,
    [1, bytes of the file]), or a literal.

    `[3]` at the end of a file or array takes one row. A literal is JSON, with the element type before it if need be:
    `[1.5, 2]`, `uint8:[1, 2]`; it is the value of one request, so it gets a leading dimension of 1.
    """
    literal = _literal(reference)
    if literal is not None:
        return literal
    name, _, array = reference.partition("#")
    try:
        if name.startswith(_FILE_BYTES):
            name = reference.removeprefix(_FILE_BYTES)
            return np.frombuffer(_small(Path(name)).read_bytes(), np.uint8)[np.newaxis]
        if ".npy" in name.lower():
            file, row = name_and_row(name)
            return read_npy(_small(Path(file)), row)
        path = _small(Path(name))
        if path.suffix.lower() == ".npz":
            return read_npz(path, array)
        with Image.open(path) as image:
            grey = image.mode in {"1", "L", "LA", "I;16"}
            return np.asarray(image.convert("L" if grey else "RGB"))[np.newaxis]
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or name}: there is no such file") from error
    except (UnidentifiedImageError, Image.DecompressionBombError, ValueError, OSError) as error:
        raise InputError(f"{name}: cannot be read as an input: {describe_error(error)}") from error


def _small(path: Path) -> Path:
    if (size := path.stat().st_size) > MAX_INPUT_BYTES:
        raise InputError(f"{path}: {size:,} bytes are more than an input may have ({MAX_INPUT_BYTES:,})")
    return path


def _typed(text: str) -> tuple[str, str]:
    """The element type of a literal, empty if none is written, and its numbers as JSON."""
    dtype, colon, numbers = text.partition(":")
    typed = bool(colon) and dtype.isidentifier() and numbers.lstrip()[:1] in "[-0123456789tf"
    return (dtype, numbers) if typed else ("", text)


def _literal(text: str) -> Array | None:
    """The tensor of a literal; None if the text is none."""
    dtype, numbers = _typed(text)
    try:
        value: Any = json.loads(numbers)
    except ValueError:
        if text.startswith("["):
            raise InputError(
                f"{quoted(text)} is not a literal: write a list as JSON does, [[1.5, 2], [3, 4]]"
            ) from None
        return None
    try:
        found = np.asarray(value)
    except ValueError:
        raise InputError(f"{quoted(text)}: the lists of a literal must have equal lengths") from None
    if found.dtype.kind in "US":
        raise InputError(f"{quoted(text)}: {TEXT_NOT_SERVED}")
    if found.dtype.kind not in _LITERAL_DTYPES:
        raise InputError(f"{quoted(text)} is not a tensor of numbers")
    target = dtype or _LITERAL_DTYPES[found.dtype.kind]
    if target not in WIRE_DTYPES:
        known = sorted(WIRE_DTYPES)
        hint = did_you_mean(target, known) or f"known: {', '.join(known)}"
        raise InputError(f"{quoted(text)}: there is no element type {target!r}; {hint}")
    cast = found.astype(target)
    if found.dtype.kind == "f" and cast.dtype.kind != "f" and not np.array_equal(cast, found):
        raise InputError(f"{quoted(text)}: {target} would lose the fractions")
    if cast.dtype.kind in "iu" and not np.array_equal(cast.astype(found.dtype), found):
        raise InputError(f"{quoted(text)}: a number is outside the range of {target}")
    return cast[np.newaxis]
