"""Finished measurements on disk, so that an interrupted profile goes on where it stopped.

One JSON line per finished piece, appended and flushed; a line torn by a crash is skipped. Keys are hashes of all that
a measurement depends on (model content, speed, batch, inputs, settings), so a changed model is measured again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from jellybean.folders import STATE_FOLDER, state_folder

FOLDER = Path(STATE_FOLDER) / "profile-cache"


def key_of(**settings: Any) -> str:
    """A name for a measurement: sha256 over the canonical JSON of its settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


class Cache:
    """Key -> JSON value. With `resume=False` what was there is dropped."""

    def __init__(self, project_folder: Path, *, resume: bool = True) -> None:
        self._path = project_folder / FOLDER / "finished.jsonl"
        state_folder(project_folder)
        self._path.parent.mkdir(exist_ok=True)
        self._known: dict[str, Any] = {}
        if not resume:
            self._path.unlink(missing_ok=True)
        elif self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._known[entry["key"]] = entry["value"]
        except (ValueError, KeyError, TypeError):
            return

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def put(self, key: str, value: Any) -> None:
        """Keep a finished measurement, on disk before this returns to the caller."""
        self._known[key] = value
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" if _is_torn(self._path) else "")
            file.write(json.dumps({"key": key, "value": value}) + "\n")


def _is_torn(path: Path) -> bool:
    """Whether the last line was cut off."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"
