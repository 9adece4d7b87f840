"""Change parts of documents. All other bytes of a file stay as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jellybean.documents.schema.reader import MAX_BYTES
from jellybean.folders import write_file
from jellybean_agent import read_regular


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters from `start` to `end` of a file by `text`."""

    start: int
    end: int
    text: str


def read_exactly(file: Path) -> str:
    """The text of a file, with its line ends as they are."""
    return read_regular(file, MAX_BYTES).decode()


def write_edits(file: Path, edits: Iterable[Edit]) -> None:
    """Make edits that do not overlap, atomically.

    OSError if the file cannot be written, InputError if it is a link.
    """
    text = read_exactly(file)
    for edit in sorted(edits, key=lambda one: one.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    write_file(file, text)
