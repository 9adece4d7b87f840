"""Activations that autograd saves for a backward pass, kept in a temporary file instead of memory.

Rank 0 runs the whole model once to check it, and later, as every process, its own stages only: the activations of the
check would decide its largest memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedRandom

import torch

from jellybean.errors import JellyBeanError
from jellybean_agent import describe_error

_SMALL_BYTES = 2**16  # a smaller tensor stays in memory: a model saves some thousands of them at most


class TemporaryFileError(JellyBeanError):
    """Activations cannot be written: the folder of temporary files is full or limited. The model is not to blame."""


@contextmanager
def activations_in_file(weights: Iterable[torch.Tensor]) -> Iterator[None]:
    """Keep activations of 64 KiB and more in a file while this is entered. `weights` and their views stay in memory.

    Backward passes must end before the context does. TemporaryFileError if the file cannot be written.
    """
    kept = {value.untyped_storage().data_ptr() for value in weights if value.layout is torch.strided}
    with _temporary_file() as file:

        def pack(tensor: torch.Tensor) -> torch.Tensor | _InFile:
            return tensor if _stays(tensor, kept) else _write(tensor, file)

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpacked):
            yield


@contextmanager
def _temporary_file() -> Iterator[BufferedRandom]:
    try:
        file = tempfile.TemporaryFile(prefix="jellybean-activations-")  # noqa: SIM115  # closed below
    except OSError as error:
        raise _cannot_write(error) from error
    try:
        yield file
    finally:
        with suppress(OSError):  # what could not be written is tried again, and was reported
            file.close()


def _cannot_write(error: OSError) -> TemporaryFileError:
    return TemporaryFileError(
        f"activations cannot be written to {tempfile.tempdir or 'a temporary file'}: {describe_error(error)}; free "
        "space there, raise a limit on the size of files (ulimit -f), or set TMPDIR to another folder"
    )


@dataclass(frozen=True)
class _InFile:
    """Where a tensor's elements are in the file, row by row, and the strides that it had."""

    file: BufferedRandom
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _stays(tensor: torch.Tensor, kept: set[int]) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return True
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_complex():
        return True
    storage = tensor.untyped_storage()
    return storage.nbytes() < _SMALL_BYTES or storage.nbytes() < tensor.nbytes or storage.data_ptr() in kept


def _write(tensor: torch.Tensor, file: BufferedRandom) -> _InFile:
    values = _bytes(tensor.detach().resolve_neg().contiguous())
    try:
        offset = file.seek(0, 2)
        file.write(values)
        file.flush()
    except OSError as error:
        raise _cannot_write(error) from error
    dense = torch.empty_like(tensor, device="meta")  # its strides are without gaps
    return _InFile(file, offset, tensor.shape, dense.stride(), tensor.dtype)


def _unpacked(saved: torch.Tensor | _InFile) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    values = torch.empty(saved.shape, dtype=saved.dtype)
    saved.file.seek(saved.offset)
    saved.file.readinto(_bytes(values))
    if values.stride() == saved.stride:
        return values
    return torch.empty_strided(saved.shape, saved.stride, dtype=saved.dtype).copy_(values)


def _bytes(contiguous: torch.Tensor) -> memoryview:
    return memoryview(contiguous.reshape(-1).view(torch.uint8).numpy())
