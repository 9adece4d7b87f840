"""Downloads model files from a gateway, each to a partial file beside the one that a plan may be using.

Files may have gigabytes and the agent may be serving, so hashing and writing run in threads, not in the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from jellybean_agent.enrolment.retries import retried
from jellybean_agent.errors import ModelError, TransientError
from jellybean_agent.execution.model_files import MAX_DATA_BYTES, file_sha256
from jellybean_agent.system.protocol_version import protocol_metadata
from jellybean_protos.enrol.v1 import enrol_pb2

LOG = logging.getLogger("jellybean.agent")
_PART = re.compile(r".\.[0-9a-f]{16}\.part$")
_READ_BYTES = 2**20


async def download(stub: Any, sha256: str, path: Path) -> None:
    """Download the model's file with this sha256 to `path` unless it is complete; continues an interrupted download."""
    if (part := await fetch_beside(stub, sha256, path)) is not None:
        part.replace(path)
        LOG.info("downloaded %s, %d bytes", path.name, path.stat().st_size)


async def fetch_beside(stub: Any, sha256: str, path: Path) -> Path | None:
    """Download a model to a file beside `path`, which a plan may be using; returns it, None if `path` is the model."""
    if path.is_file() and await asyncio.to_thread(file_sha256, path) == sha256:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_file(path, sha256)
    received = await retried(f"downloading {path.name}", lambda: _fetch(stub, sha256, part))
    if received != sha256:
        part.unlink()
        raise ModelError(
            f"model {path.name} came with sha256 {received[:12]}..., the plan says {sha256[:12]}...: not kept"
        )
    return part


def partial_file(path: Path, sha256: str) -> Path:
    """Where a download of the file with this sha256 is kept until it takes the place of `path`."""
    return path.with_name(f"{path.name}.{sha256[:16]}.part")


def remove_partial_files(folder: Path, kept: Collection[Path]) -> None:
    """Remove the partial files of a folder but for `kept`: those of plans that were abandoned would fill the disk."""
    for path in folder.rglob("*.part"):
        if _PART.search(path.name) and path not in kept and path.is_file():
            LOG.info("removing %s, of a plan that is not offered any more", path.name)
            path.unlink(missing_ok=True)


async def _fetch(stub: Any, sha256: str, part: Path) -> str:
    """Append the missing bytes of a model to the partial file `part`; returns the sha256 of its content."""
    digest = hashlib.sha256()
    with part.open("a+b") as file:
        await asyncio.to_thread(_hash_content, file, digest)
        if digest.hexdigest() == sha256:
            return sha256
        size = None
        call = stub.Model(enrol_pb2.ModelRequest(sha256=sha256, offset=file.tell()), metadata=protocol_metadata())
        async for piece in call:
            size = piece.size
            if file.tell() + len(piece.data) > min(size, MAX_DATA_BYTES):
                raise ModelError(f"more than the {size} bytes that were announced came")
            await asyncio.to_thread(_append, file, digest, piece.data)
        await asyncio.to_thread(_write_to_disk, file)
        if size is not None and file.tell() < size:
            raise TransientError(f"the download ended after {file.tell()} of {size} bytes")
    return digest.hexdigest()


def _hash_content(file: IO[bytes], digest: hashlib._Hash) -> None:
    file.seek(0)
    while data := file.read(_READ_BYTES):
        digest.update(data)


def _append(file: IO[bytes], digest: hashlib._Hash, data: bytes) -> None:
    file.write(data)
    digest.update(data)


def _write_to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
