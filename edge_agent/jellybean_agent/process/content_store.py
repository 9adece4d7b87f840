"""Files that arrive in parts and are known by their content, kept for as long as a measurement needs them."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.execution.model_files import file_sha256

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = ".part"


class ContentStore:
    """Files by sha256, in a temporary folder of this process.

    What has arrived of a file stays after its sender is gone, so that the next one goes on there.
    """

    def __init__(self) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """The folder of the files; it is made on first use."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="jellybean-measured-")
        return Path(self._temporary.name)

    def path(self, sha256: str) -> Path:
        """Where the file with this content is once it is complete. InvalidInputError if this is no sha256."""
        if not _SHA256.fullmatch(sha256):
            raise InvalidInputError(f"{sha256[:80]!r} is no sha256")
        return self.folder / sha256

    def received_bytes(self, sha256: str) -> int:
        """Number of bytes that have arrived of an incomplete file."""
        part = self._part(sha256)
        return part.stat().st_size if part.exists() else 0

    def free_bytes(self) -> int:
        """Space that is left on the disk."""
        return shutil.disk_usage(self.folder).free

    async def append(self, sha256: str, data: bytes) -> int:
        """Append bytes to an incomplete file; returns its size."""
        return await asyncio.to_thread(self._append, self._part(sha256), data)

    async def complete(self, sha256: str) -> None:
        """Keep a file whose bytes have all arrived. InvalidInputError, and it is gone, if its content is another."""
        part = self._part(sha256)
        part.touch()
        if (found := await asyncio.to_thread(file_sha256, part)) != sha256:
            part.unlink()
            raise InvalidInputError(f"a file came with sha256 {found[:12]}..., it was announced as {sha256[:12]}...")
        part.replace(self.path(sha256))

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove all files but these."""
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in digests:
                path.unlink()

    def close(self) -> None:
        """Remove the folder."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _part(self, sha256: str) -> Path:
        path = self.path(sha256)
        return path.with_name(path.name + _PART)

    @staticmethod
    def _append(part: Path, data: bytes) -> int:
        with part.open("ab") as file:
            file.write(data)
            return file.tell()
