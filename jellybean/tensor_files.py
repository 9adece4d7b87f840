"""Read arrays from untrusted .npy and .npz files (without pickle)."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jellybean_agent import describe_error
from jellybean_solver import JellyBeanError

Array = np.ndarray[Any, np.dtype[Any]]

_DAMAGED = (OSError, EOFError, TypeError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_npy(path: Path) -> Array:
    """Read the array of a .npy file. The result has at least one dimension. JellyBeanError if there is no array."""
    with _explained(path), path.open("rb") as stream:  # opened here, because numpy does not close a damaged file
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                raise JellyBeanError(f"{path} is an archive of arrays; name one: {path}#{_first(loaded.files)}")
        return _with_rows(path, loaded)


def read_npz(path: Path, array: str) -> Array:
    """Read an array of a .npz file ("images"), or one row of it with leading dimension 1 ("images[3]").

    The result has at least one dimension. JellyBeanError if the file, the array or the row does not exist.
    """
    name, row = _name_and_row(path, array)
    with _explained(path), path.open("rb") as stream:
        loaded = np.load(stream, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise JellyBeanError(f"{path} has one unnamed array; save it with numpy.savez(file, {name}=...)")
        with loaded:
            if not loaded.files:
                raise JellyBeanError(f"{path} is an archive without arrays")
            if name not in loaded.files:
                raise JellyBeanError(f"{path} has no array {name!r}; arrays: {', '.join(loaded.files)}")
            values = _with_rows(f"{path}#{name}", loaded[name])
    if row is None:
        return values
    if row >= len(values):
        raise JellyBeanError(f"{path}#{name} has no row {row}: its {len(values)} rows are numbered from 0")
    return values[row : row + 1]


def _name_and_row(path: Path, array: str) -> tuple[str, int | None]:
    name, bracket, index = array.partition("[")
    if not name:
        raise JellyBeanError(f"name an array of {path}: {path}#name, or {path}#name[row]")
    if not bracket:
        return name, None
    digits = index.removesuffix("]")
    if not (index.endswith("]") and digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise JellyBeanError(
            f"{array!r} does not name an array of {path}; write name, or name[row] with a row number from 0"
        )
    return name, int(digits)


def _first(names: list[str]) -> str:
    return names[0] if names else "name"


def _with_rows(what: object, values: Any) -> Array:
    if not isinstance(values, np.ndarray):
        raise JellyBeanError(f"{what} is not an array")
    if values.ndim == 0:
        raise JellyBeanError(f"{what} is a single value, not an array; its first dimension counts requests")
    return values


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise JellyBeanError(f"{path}: file not found") from error
    except (*_DAMAGED, MemoryError) as error:
        raise JellyBeanError(f"{path} cannot be read as arrays: {describe_error(error)}") from error
