"""Finished measurements on disk, so that an interrupted profile resumes.

A JSON line per measurement, appended and flushed; a line truncated by a crash is skipped. Keys are hashes of everything
a measurement depends on (model content, speed, batch, inputs, settings), so a changed model is measured again.
Measurements of another machine, or of another version of onnxruntime, are not used.
"""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any, Self

from jellybean.folders import STATE_FOLDER, naming, state_folder
from jellybean_agent import Device, this_machine

FOLDER = Path(STATE_FOLDER) / "profile-cache"


def key_of(**settings: Any) -> str:
    """The cache key of a measurement: SHA-256 of the canonical JSON of everything it depends on."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def key_of_device(device: Device) -> dict[str, str]:
    """The settings of `key_of` that a device adds: none for the CPU."""
    return {} if device.is_cpu and not device.options else {"device": str(device)}


class Cache:
    """Key -> measurement (a JSON value). `open` reads the measurements of earlier runs from disk."""

    def __init__(self, path: Path, machine: str = "") -> None:
        """`machine`: the machine of all measurements, part of their keys."""
        self._path, self._machine = path, machine
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()  # held while a line is appended

    @classmethod
    def open(cls, project_folder: Path, *, resume: bool = True) -> Self:
        """The cache of a project on this machine; `resume=False` deletes its contents first."""
        state_folder(project_folder)
        cache = cls(project_folder / FOLDER / "finished.jsonl", repr(this_machine()))
        cache._path.parent.mkdir(exist_ok=True)
        if not resume:
            cache._path.unlink(missing_ok=True)
        elif cache._path.exists():
            for line in cache._path.read_text(encoding="utf-8").splitlines():
                cache._parse(line)
        return cache

    def measured_on(self, machine: str) -> Cache:
        """The same cache for measurements on another machine. Thread-safe, as all of them append to one file."""
        other = Cache(self._path, machine)
        other._known, other._lock = self._known, self._lock
        return other

    def _parse(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._known[entry["key"]] = entry["value"]
        except (ValueError, KeyError, TypeError):
            return

    def _own(self, key: str) -> str:
        return key_of(key=key, machine=self._machine)

    def __contains__(self, key: str) -> bool:
        return self._own(key) in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[self._own(key)]

    def put(self, key: str, value: Any) -> None:
        """Add a measurement; it is on disk when this returns."""
        key = self._own(key)
        with self._lock, naming(self._path), self._path.open("a", encoding="utf-8") as file:
            self._known[key] = value
            file.write("\n" if _is_truncated(self._path) else "")
            file.write(json.dumps({"key": key, "value": value}) + "\n")


def _is_truncated(path: Path) -> bool:
    """True if the file's last line lacks its line break."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"
