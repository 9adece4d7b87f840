"""A copy of the repository in a temporary folder: faults are put there, and never into the repository."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Folders that hold the packages, as an editable install names them.
_PACKAGES = ("", "edge_agent", "k8s", "protos", "solver")


@dataclass(frozen=True, slots=True)
class Tree:
    """The copied repository at `root`."""

    root: Path

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """Variables with which each Python process imports the copy, in place of what is installed."""
        path = os.pathsep.join(str(self.root / package) for package in _PACKAGES)
        return {**os.environ, "PYTHONPATH": path, **(more or {})}

    def end_processes(self) -> None:
        """Kill what tests have left running with the copy: a fault may keep a test from ending what it served."""
        path = f"PYTHONPATH={self.root}".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if path in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)

    @contextmanager
    def with_text(self, file: str, text: str) -> Iterator[None]:
        """Replace a file's text within the context, and delete its bytecode.

        Python recognises stale bytecode by time and size alone.
        """
        path = self.root / file
        before = path.read_text(encoding="utf-8")
        try:
            path.write_text(text, encoding="utf-8")
            _drop_bytecode(path)
            yield
        finally:
            path.write_text(before, encoding="utf-8")
            _drop_bytecode(path)


@contextmanager
def copied(root: Path) -> Iterator[Tree]:
    """Copy what git tracks, and new files that it does not ignore; the copy is removed at the end."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder).resolve() / "tree"
        for name in filter(None, names):
            if (root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name)
        yield Tree(copy)


def _drop_bytecode(path: Path) -> None:
    for bytecode in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        bytecode.unlink(missing_ok=True)
