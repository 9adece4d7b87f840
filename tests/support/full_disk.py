"""A file system without a free byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.skips import Absent


@contextmanager
def small_disk(mount: Path) -> Iterator[Path]:
    """A file system of 200 KiB at a new folder; the test is skipped where it cannot be mounted."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip(Absent.MOUNT)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def fill(mount: Path) -> None:
    """Write until nothing more fits."""
    with (mount / "fill").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
