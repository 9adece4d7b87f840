"""Change parts of documents. All other bytes of a file stay as they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters from `start` to `end` of a file by `text`."""

    start: int
    end: int
    text: str


def read_exactly(file: Path) -> str:
    """The text of a file, with its line ends as they are."""
    return file.read_bytes().decode()


def write_edits(file: Path, edits: Iterable[Edit]) -> None:
    """Make edits that do not overlap, atomically. OSError if the file cannot be written."""
    path = file.resolve()  # a symbolic link stays, and its file is replaced
    text = read_exactly(path)
    for edit in sorted(edits, key=lambda one: one.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(text.encode())
        shutil.copymode(path, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
