"""The files of a run that its processes need to start again: kept in memory, and put in their places again.

They are removed by hand, or by a cleaner of old files; the processes that have read them go on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from jellybean.serving.run_folder import PROJECT_FILE, hold, is_private
from jellybean.serving.run_state import ADDRESS_FILE, RunState

_PLAN_FILES = ("plan.json", "peers.json")
_NOT_SAFE = "others can write in the run's folder, or made it where that was: remove it, and it is made again"


class RunFiles:
    """The small files of a run's folder. Holds the folder, so that others know that the run lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[Path, bytes] = {}
        for path in (folder / PROJECT_FILE, folder / ADDRESS_FILE, *folder.glob("*/*.json")):
            self._read(path)
        self._lock = -1
        self._hold()  # last: the launcher waits for it

    def restore(self, state: RunState) -> list[Path]:
        """Write what is missing of the run's files; returns which those were.

        Reads those that are new, such as the plan of an `apply`. OSError if they cannot be written.
        """
        if not os.path.lexists(self._folder):
            self._folder.mkdir(mode=0o700, parents=True)
            self._hold()
        self.require_safe()
        folders = [Path(text) for text in (state.plan_folder, state.arriving_folder) if text]
        wanted = [self._folder / PROJECT_FILE, self._folder / ADDRESS_FILE]
        wanted += [folder / name for folder in folders for name in _PLAN_FILES]
        self._contents = {path: content for path, content in self._contents.items() if path in wanted}
        for path in wanted:
            if path not in self._contents:
                self._read(path)
        missing = [path for path in self._contents if not path.exists()]
        Path(state.plan_folder).mkdir(mode=0o700, parents=True, exist_ok=True)  # the sockets' too
        for path in missing:
            _write(path, self._contents[path])
        return missing

    def require_safe(self) -> None:
        """PermissionError if others may write in the run's folder: no process must start from it.

        Anybody can make a folder of that name where a cleaner of temporary files has removed it.
        """
        if not is_private(self._folder, forbidden=stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EACCES, _NOT_SAFE, str(self._folder))

    def _read(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._contents[path] = path.read_bytes()

    def _hold(self) -> None:
        with contextlib.suppress(OSError):
            lock = hold(self._folder)
            if self._lock >= 0:
                os.close(self._lock)
            self._lock = lock


def _write(path: Path, content: bytes) -> None:
    """Write a file that a process may read at any time; a part of it is never there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
