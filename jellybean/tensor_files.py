"""Read arrays from untrusted .npy and .npz files (without pickle)."""

from __future__ import annotations

import contextlib
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jellybean.errors import InputError
from jellybean_agent import describe_error

Array = np.ndarray[Any, np.dtype[Any]]

# What numpy raises, which reads headers as Python literals; RuntimeError includes RecursionError.
_DAMAGED = (
    *(OSError, EOFError, TypeError, ValueError, KeyError, RuntimeError, OverflowError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def read_npy(path: Path, row: int | None = None) -> Array:
    """Read the array of a .npy file, or one row of it with leading dimension 1.

    The result has at least one dimension. InputError if there is no such array or row.
    """
    with _explained(path), path.open("rb") as stream:  # opened here, because numpy does not close a damaged file
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                raise InputError(f"{path} is an archive of arrays; name one: {path}#{_first(loaded.files)}")
        return _row_of(path, _with_rows(path, loaded), row)


def read_npz(path: Path, array: str) -> Array:
    """Read an array of a .npz file ("images"), or one row of it with leading dimension 1 ("images[3]").

    The result has at least one dimension. InputError if the file, the array or the row does not exist.
    """
    name, row = name_and_row(array)
    if not name:
        raise InputError(f"name an array of {path}: {path}#name, or {path}#name[row]")
    with _explained(path), path.open("rb") as stream:
        loaded = np.load(stream, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise InputError(f"{path} has one unnamed array; save it with numpy.savez(file, {name}=...)")
        with loaded:
            if not loaded.files:
                raise InputError(f"{path} is an archive without arrays")
            if name not in loaded.files:
                raise InputError(f"{path} has no array {name!r}; arrays: {', '.join(loaded.files)}")
            values = _with_rows(f"{path}#{name}", loaded[name])
    return _row_of(f"{path}#{name}", values, row)


def name_and_row(text: str) -> tuple[str, int | None]:
    """`name[3]` as ("name", 3), `name` as ("name", None). InputError if the row is not a number from 0."""
    name, bracket, index = text.partition("[")
    if not bracket:
        return name, None
    digits = index.removesuffix("]")
    if not (index.endswith("]") and digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise InputError(f"{text!r}: write {name or 'name'}, or {name or 'name'}[row] with a row number from 0")
    return name, int(digits)


def _row_of(what: object, values: Array, row: int | None) -> Array:
    if row is not None and row >= len(values):
        raise InputError(f"{what} has no row {row}: its {len(values)} rows are numbered from 0")
    return values if row is None else values[row : row + 1]


def _first(names: list[str]) -> str:
    return names[0] if names else "name"


def _with_rows(what: object, values: Any) -> Array:
    if not isinstance(values, np.ndarray):
        raise InputError(f"{what} is not an array")
    if values.ndim == 0:
        raise InputError(f"{what} is a single value, not an array; its first dimension counts requests")
    return values


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: file not found") from error
    except (*_DAMAGED, MemoryError) as error:
        raise InputError(f"{path} cannot be read as arrays: {describe_error(error)}") from error
