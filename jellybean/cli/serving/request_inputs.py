"""Tensors of requests from the command line: images, .npy and .npz files, rows of them, and literals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from jellybean.errors import InputError
from jellybean.quantities import did_you_mean, quoted
from jellybean.tensor_files import Array, name_and_row, read_npy, read_npz
from jellybean_agent import TEXT_NOT_SERVED, WIRE_DTYPES, describe_error

MAX_INPUT_BYTES = 64 * 2**20
_FILE_BYTES = "bytes:"  # before a file's name: its bytes as they are, for models that decode files themselves
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


def _literal(text: str) -> Array | None:
    """The tensor of a literal; None if the text is none."""
    dtype, colon, rest = text.partition(":")
    typed = bool(colon) and dtype.isidentifier() and rest.lstrip()[:1] in "[-0123456789tf"
    try:
        value: Any = json.loads(rest if typed else text)
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
    target = dtype if typed else _LITERAL_DTYPES[found.dtype.kind]
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
