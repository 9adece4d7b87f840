"""Reads arrays that people hand over as .npy and .npz files, whatever those files really hold."""

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
    """The array of a .npy file, of at least one dimension. JellyBeanError when it does not hold one."""
    with _explained(path), path.open("rb") as stream:  # numpy leaves a file of its own open when it is damaged
        found = np.load(stream, allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            with found:
                raise JellyBeanError(f"{path} is an archive of arrays; name one: {path}#{_first(found.files)}")
        return _with_rows(path, found)


def read_npz(path: Path, array: str) -> Array:
    """The array `array` of a .npz file: whole ("images"), or one row with its leading 1 kept ("images[3]").

    The result has at least one dimension. JellyBeanError when the file, the array or the row is not there.
    """
    name, row = _name_and_row(path, array)
    with _explained(path), path.open("rb") as stream:
        found = np.load(stream, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise JellyBeanError(f"{path} holds one array without a name; save it with numpy.savez(file, {name}=...)")
        with found:
            if not found.files:
                raise JellyBeanError(f"{path} is an empty archive: it holds no arrays")
            if name not in found.files:
                raise JellyBeanError(f"{path} holds {', '.join(found.files)}, not {name!r}")
            values = _with_rows(f"{path}#{name}", found[name])
    if row is None:
        return values
    if row >= len(values):
        raise JellyBeanError(f"{path}#{name} has {len(values)} rows, counted from 0: there is no row {row}")
    return values[row : row + 1]


def _name_and_row(path: Path, array: str) -> tuple[str, int | None]:
    name, bracket, index = array.partition("[")
    if not name:
        raise JellyBeanError(f"name an array of {path}: {path}#name, or {path}#name[row]")
    if not bracket:
        return name, None
    digits = index.removesuffix("]")
    if not (index.endswith("]") and digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise JellyBeanError(f"{array!r} is no array of {path}; write name, or name[row] with a row from 0")
    return name, int(digits)


def _first(names: list[str]) -> str:
    return names[0] if names else "name"


def _with_rows(what: object, values: Any) -> Array:
    if not isinstance(values, np.ndarray):
        raise JellyBeanError(f"{what} holds no array")
    if values.ndim == 0:
        raise JellyBeanError(f"{what} is a single value, not an array; its first dimension counts requests")
    return values


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise JellyBeanError(f"{path}: there is no such file") from error
    except (*_DAMAGED, MemoryError) as error:
        raise JellyBeanError(f"{path} cannot be read as arrays: {describe_error(error)}") from error
