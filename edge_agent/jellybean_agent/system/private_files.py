"""Files that only this user can read, and paths that stay inside a folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file atomically; it is never readable by other users."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def stays_inside_folder(path: str) -> bool:
    """True if a relative path, appended to a folder, stays inside that folder (no `..` out of it)."""
    found = PurePosixPath(path)
    return not found.is_absolute() and ".." not in found.parts


def is_in_private_folder(path: Path) -> bool:
    """True if some parent folder of a path is inaccessible to other users."""
    for folder in path.absolute().parents:
        try:
            status = folder.stat()
        except OSError:
            continue
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return True
    return False
