"""Read arrays from untrusted .npy and .npz files (without pickle), and write .npz files.

All arrays that enter a command are read here, so that each has the values of its file: in the machine's byte order.
"""

from __future__ import annotations

import contextlib
import io
import os
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from jellybean.errors import InputError
from jellybean_agent import InvalidInputError, available_memory_bytes, describe_error, plain_array

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_HEADER_BYTES = 10_000  # as numpy's
# What numpy raises, which reads headers as Python literals; RuntimeError includes RecursionError.
_DAMAGED = (
    *(OSError, EOFError, TypeError, ValueError, KeyError, RuntimeError, OverflowError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is stored by columns, and type of the .npy array that begins here. ValueError if it is none.

    numpy reads a header before it looks at its size, which may be GiBs of a small archive.
    """
    version = np.lib.format.read_magic(stream)
    prefix = stream.read(2 if version == (1, 0) else 4)
    size = int.from_bytes(prefix, "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size:,} bytes, of which numpy reads {_MAX_HEADER_BYTES:,}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(io.BytesIO(prefix + stream.read(size)))
    return tuple(shape), bool(by_column), dtype


def read_npy(path: Path, row: int | None = None) -> Array:
    """Read the array of a .npy file, or one row of it with leading dimension 1.

    The result has at least one dimension. InputError if there is no such array or row.
    """
    with _explained(path), path.open("rb") as stream:  # opened here, because numpy does not close a damaged file
        _check_header(stream)
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                raise InputError(f"{path} is an archive of arrays; name one: {path}#{_first(loaded.files)}")
        _check_end(path, stream, os.fstat(stream.fileno()).st_size, loaded)
        return _row_of(path, _with_rows(path, _plain(path, loaded)), row)


def read_npz(path: Path, array: str) -> Array:
    """Read an array of a .npz file ("images"), or one row of it with leading dimension 1 ("images[3]").

    The result has at least one dimension. InputError if the file, the array or the row does not exist.
    """
    with _archive(path, array) as archive:
        if array in archive.files:  # exporters write names such as "x[0]"
            name, row = array, None
        else:
            name, row = name_and_row(array)
        values = _named(path, archive, name)
    return _row_of(f"{path}#{name}", values, row)


def read_archived(path: Path, name: str, most_bytes: int | None = None) -> Array:
    """Read the array `name` of a .npz file, with at least one dimension.

    InputError if it does not exist, or has more than `most_bytes` (default: than there is memory).
    """
    with _archive(path, name) as archive:
        return _named(path, archive, name, most_bytes)


def read_archive(path: Path) -> dict[str, Array]:
    """Read all arrays of a .npz file, single values too. InputError if it is none."""
    with _archive(path, "name") as archive:
        arrays: dict[str, Array] = {}
        for name in archive.files:
            with _explained(f"{path}#{name}"):
                arrays[name] = _member(f"{path}#{name}", archive, name)
        return arrays


def write_archive(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a compressed .npz file.

    Names may be any text: those that are arguments of numpy.savez, such as `file`, are not taken by it.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, values, allow_pickle=False)


def name_and_row(text: str) -> tuple[str, int | None]:
    """`name[3]` as ("name", 3), `name` as ("name", None). InputError if the row is not a number from 0."""
    name, bracket, index = text.rpartition("[")
    if not bracket:
        return text, None
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


def _named(path: Path, archive: Any, name: str, most_bytes: int | None = None) -> Array:
    if not archive.files:
        raise InputError(f"{path} is an archive without arrays")
    if name not in archive.files:
        raise InputError(f"{path} has no array {name!r}; arrays: {', '.join(archive.files)}")
    what = f"{path}#{name}"
    with _explained(what):
        return _with_rows(what, _member(what, archive, name, most_bytes))


def _member(what: object, archive: Any, name: str, most_bytes: int | None = None) -> Array:
    """An array of an archive. InputError if it does not fit into memory: a small file can hold a large one."""
    member = f"{name}.npy" if f"{name}.npy" in archive.zip.namelist() else name
    size, free_bytes = archive.zip.getinfo(member).file_size, available_memory_bytes()
    if size > free_bytes:
        raise InputError(
            f"{what} has {size:,} bytes unpacked, more than the {free_bytes:,} of memory that are free: save fewer rows"
        )
    if most_bytes is not None and size > most_bytes:
        raise InputError(f"{what} has {size:,} bytes unpacked, of which {most_bytes:,} are read here")
    with archive.zip.open(member) as stream:
        _check_header(stream)
    values = _plain(what, archive[name])
    with archive.zip.open(member) as stream:
        _check_end(what, stream, size, values)
    return values


def _check_end(what: object, stream: BinaryIO, size: int, values: Array) -> None:
    """InputError if the bytes of a file go on behind its array: numpy reads the first of several without a word."""
    stream.seek(0)
    read_header(stream)
    if (left := size - stream.tell() - values.nbytes) > 0:
        raise InputError(
            f"{what} has {left:,} bytes behind its first array, which numpy would leave out: save several arrays with "
            "numpy.savez, a name for each"
        )


def _check_header(stream: IO[bytes]) -> None:
    """ValueError for an array whose header is too long; a file of another kind is left to numpy. Goes back to 0."""
    if stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
        stream.seek(0)
        read_header(stream)
    stream.seek(0)


def _plain(what: object, values: Any) -> Array:
    if not isinstance(values, np.ndarray):
        raise InputError(f"{what} is not an array")
    try:
        return plain_array(values)
    except InvalidInputError as error:
        raise InputError(f"{what}: {error}") from error


def _with_rows(what: object, values: Array) -> Array:
    if values.ndim == 0:
        raise InputError(f"{what} is a single value, not an array; its first dimension counts requests")
    return values


@contextlib.contextmanager
def _archive(path: Path, name: str) -> Iterator[Any]:
    """An open .npz file. InputError if it is none, or has a name twice, of which numpy would take one."""
    if not name:
        raise InputError(f"name an array of {path}: {path}#name, or {path}#name[row]")
    with _explained(path), path.open("rb") as stream:
        loaded = np.load(stream, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise InputError(f"{path} has one unnamed array; save it with numpy.savez(file, {name}=...)")
        with loaded:
            twice = [name for name, count in Counter(loaded.files).items() if count > 1]
            if twice:
                raise InputError(f"{path} has the array {twice[0]!r} more than once: save it again with numpy.savez")
            yield loaded


@contextlib.contextmanager
def _explained(path: object) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: file not found") from error
    except InputError:
        raise
    except (*_DAMAGED, MemoryError) as error:
        if "allow_pickle" in str(error):  # numpy's advice, which would run code from the file
            raise InputError(
                f"{path} cannot be read as arrays: it is neither .npy nor .npz, or holds Python objects: save numbers "
                "with numpy"
            ) from error
        raise InputError(f"{path} cannot be read as arrays: {describe_error(error)}") from error
