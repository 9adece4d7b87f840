"""Lines and cells of a CSV file, with the column at which each cell starts, for messages about one of them.

A cell cannot contain a line break, so that a message's line number is that of an editor.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from jellybean.errors import DocumentProblem
from jellybean_agent import describe_error
from jellybean_solver import size_text

MAX_BYTES = 64 * 2**20


def read_lines(path: Path, hint: str) -> list[str] | DocumentProblem:
    """The lines of a UTF-8 text file, or the problem of one that cannot be read. `hint`: what belongs into it."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            message = f"the file has {size_text(size)}; at most {size_text(MAX_BYTES)} are read"
            return DocumentProblem(str(path), 1, 1, "", message)
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        return DocumentProblem(str(path), None, None, "", f"cannot be read: {describe_error(error)}", hint)
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: {error.reason} at byte {error.start}"
        return DocumentProblem(str(path), 1, 1, "", message)


def cells_of(line: str) -> list[str]:
    """The cells of one line; the whole line if its quotes are wrong."""
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        return [line]


def cell_columns(line: str, cells: Sequence[str]) -> Sequence[int]:
    """Column at which each cell starts; 1 for all cells of a line with quotes."""
    if '"' in line:
        return [1] * len(cells)
    starts = [1]
    for cell in cells[:-1]:
        starts.append(starts[-1] + len(cell) + 1)
    return starts
