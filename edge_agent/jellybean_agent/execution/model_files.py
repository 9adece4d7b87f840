"""The files of a model: the ONNX file, and the data files beside it in which exporters keep large weights.

A model is identified by one sha256. For a single file it is that of the file. For a model with data files it is that of
a text with the sha256 of the ONNX file, then a line "SHA256  NAME" for each data file, as `sha256sum` prints, by name;
NAME is the path that the ONNX file states.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from jellybean_agent.errors import ModelError, describe_error
from jellybean_agent.execution.onnx_scan import OPERATOR_DOMAINS, scan_model
from jellybean_agent.system.memory import process_memory_bytes
from jellybean_agent.system.private_files import stays_inside_folder
from jellybean_agent.system.regular_files import open_regular

MAX_MODEL_BYTES = 2**31  # size limit of a protobuf message
MAX_DATA_BYTES = 2**36  # of one data file that is downloaded; what is loaded is limited by the process's memory
_ONE_PROCESSOR = "com.microsoft.nchwc."  # operators whose weights are laid out for the registers of a processor
_SETTLED_NS = 2 * 10**9  # age above which two contents of a file have two times: above the clock tick of file systems


@dataclass(frozen=True, slots=True)
class ModelContent:
    """The bytes of a model. `data`: name in the ONNX file -> content of the data file."""

    onnx: bytes
    data: Mapping[str, bytes]

    @property
    def sha256(self) -> str:
        """The model's identity."""
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in self.data.items()}
        return combined_sha256(hashlib.sha256(self.onnx).hexdigest(), hashes)


@dataclass(frozen=True, slots=True)
class FileHash:
    """One file of a model. `name`: relative to the model's folder; empty for the ONNX file."""

    name: str
    sha256: str
    size_bytes: int


def combined_sha256(onnx: str, data: Mapping[str, str]) -> str:
    """A model's sha256. `onnx`: of the ONNX file; `data`: name -> of each data file."""
    if not data:
        return onnx
    lines = [onnx, *(f"{sha256}  {name}" for name, sha256 in sorted(data.items()))]
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_model(path: Path) -> tuple[str, tuple[FileHash, ...]]:
    """(sha256 of a model, its files: first the ONNX file). ModelError for a missing, short or outside data file.

    A file that is not ONNX has no data files; it is refused when it is read as a model. OSError if it cannot be read.
    """
    onnx = path.read_bytes()
    files = [FileHash("", hashlib.sha256(onnx).hexdigest(), len(onnx))]
    names = _data_names(path, onnx, lenient=True)
    needed_bytes = scan_model(onnx).data_bytes if names else {}
    for name in names:
        data = data_path(path, name)
        try:
            files.append(FileHash(name, _data_sha256(data), data.stat().st_size))
        except OSError as error:
            raise ModelError(_unreadable(path, name, error)) from error
        is_inside = data.resolve().is_relative_to(path.parent.resolve())  # the size of a file elsewhere is not told
        if is_inside and files[-1].size_bytes < needed_bytes.get(name, 0):
            raise ModelError(
                f"model {path.name} keeps weights in {name}: it has {files[-1].size_bytes} bytes, the model reads "
                f"{needed_bytes[name]}; copy the file {name} that was exported together with this {path.name}"
            )
    return combined_sha256(files[0].sha256, {file.name: file.sha256 for file in files[1:]}), tuple(files)


def _data_sha256(path: Path) -> str:
    """sha256 of a data file, computed once per process while the file's status is the same, as it may have GiBs."""
    now = path.stat()
    if time.time_ns() - now.st_ctime_ns < _SETTLED_NS:
        return file_sha256(path)  # a write within the same tick would not be noticed
    return _sha256_of_status(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))


@lru_cache(maxsize=1024)
def _sha256_of_status(path: Path, _status: tuple[int, ...]) -> str:
    return file_sha256(path)


def data_names(path: Path) -> tuple[str, ...]:
    """Names of the data files in which a model keeps weights, without reading them. OSError if it cannot be read.

    ModelError if one is not named.
    """
    return _data_names(path, path.read_bytes(), lenient=True)


def data_path(model: Path, name: str) -> Path:
    """Path of a model's data file. ModelError if it lies outside the model's folder."""
    if not name or "\\" in name or "\0" in name or not stays_inside_folder(name) or PurePosixPath(name).name == "":
        raise ModelError(f"model {model} keeps weights in {name[:60]!r}, outside its folder: export it again")
    return model.parent / name


def read_model(path: Path, sha256: str) -> ModelContent:
    """The content of a model's files, verified. Each file is read once, so the bytes hashed are the bytes loaded.

    ModelError if its sha256 differs from the plan's, its files are larger than this process's memory, or the agent
    refuses such models (`onnx_scan`).
    """
    onnx = _read(path, MAX_MODEL_BYTES)
    names = _data_names(path, onnx, lenient=hashlib.sha256(onnx).hexdigest() != sha256)
    content = ModelContent(onnx, _read_data(path, names, process_memory_bytes() - len(onnx)))
    if (found := content.sha256) != sha256:
        with_data = f", with {', '.join(names)}," if names else ""
        raise ModelError(
            f"model {path}{with_data} has sha256 {found[:12]}..., the plan says {sha256[:12]}...: it was altered"
        )
    scan = scan_model(onnx)
    if scan.unknown_operator:
        known = ", ".join(name or "ai.onnx" for name in OPERATOR_DOMAINS)
        advice = "others are not run"
        if scan.unknown_operator.startswith(_ONE_PROCESSOR):
            advice = (
                "it is of one kind of processor, for which onnxruntime optimised the model: give the model before that"
            )
        raise ModelError(f"model {path}: operator {scan.unknown_operator} is not of {known}: {advice}")
    return content


def _read_data(path: Path, names: Sequence[str], memory_bytes: int) -> Mapping[str, bytes]:
    """Name -> content of a model's data files. ModelError if they are larger than `memory_bytes` together."""
    contents: dict[str, bytes] = {}
    for name in names:
        contents[name] = _read(data_path(path, name), memory_bytes, path)
        memory_bytes -= len(contents[name])
    return contents


def _data_names(path: Path, onnx: bytes, *, lenient: bool) -> tuple[str, ...]:
    """Names of the data files. `lenient`: none for a file that is not ONNX, as its sha256 is compared first."""
    try:
        names = scan_model(onnx).data_files
    except ModelError:
        if lenient:
            return ()
        raise
    if "" in names:
        raise ModelError(f"model {path} keeps weights in another file without naming it: export it again")
    return names


def _read(path: Path, max_bytes: int, model: Path | None = None) -> bytes:
    """A file's content. ModelError if it is not a file of at most `max_bytes`. `model`: the model whose data it has."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > max_bytes and model is not None:
                size_mib, left_mib = status.st_size / 2**20, max(0, max_bytes) / 2**20
                raise ModelError(
                    f"model {model.name}: {path.name} has {size_mib:,.0f} MiB; {left_mib:,.0f} MiB of this process's "
                    "memory are left for it (--model-memory-mib)"
                )
            if status.st_size > max_bytes:
                raise ModelError(f"model {path}: {status.st_size} bytes; a model has at most {max_bytes}")
            return file.read()
    except OSError as error:
        raise ModelError(
            f"model {path}: {describe_error(error)}" if model is None else _unreadable(model, path.name, error)
        ) from error


def _unreadable(model: Path, name: str, error: OSError) -> str:
    return f"model {model.name} keeps weights in {name}: {describe_error(error)}; copy that file beside the model"
