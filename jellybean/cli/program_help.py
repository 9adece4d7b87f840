"""The help and the version of the program itself, from the table of commands: nothing that takes time is imported.

The help has the form that Typer gives the help of a command; a test compares the two.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jellybean.cli.command_table import PANELS, PROGRAM

DESCRIPTION = "Plan, serve and measure ML workflows over edge and cloud."
FIRST_STEP = "Start here: jellybean init digits my-digits; it prints the next commands."
VERSION_HELP = "Print the version."
_USAGE = f"Usage: {PROGRAM} [OPTIONS] COMMAND [ARGS]..."
_OPTIONS = (  # long form, short form, help; the middle two are Typer's
    ("--version", "", VERSION_HELP),
    ("--install-completion", "", "Install completion for the current shell."),
    (
        "--show-completion",
        "",
        "Show completion for the current shell, to copy it or customize the installation.",
    ),
    ("--help", "-h", "Show this message and exit."),
)
_DEFAULT_WIDTH, _LEAST_WIDTH = 80, 50
_RESET, _DIM, _BOLD, _BOLD_CYAN, _BOLD_GREEN = "\x1b[0m", "\x1b[2m", "\x1b[1m", "\x1b[1;36m", "\x1b[1;32m"


class _Cell(NamedTuple):
    """The text of a column and its colour."""

    text: str
    style: str = ""


_Rows = Sequence[Sequence[_Cell]]


def program_version() -> str:
    """The program and its version."""
    import jellybean

    try:
        return f"{PROGRAM} {jellybean.__version__}"
    except AttributeError as error:
        raise SystemExit(f"{PROGRAM}: {error}") from None


def program_help() -> str:
    """The help of the program for stdout: as wide as the terminal, in colours if it is one."""
    return _help_text(
        max(_width(), _LEAST_WIDTH), box="╭─╮│╰╯" if _prints_boxes() else "+-+|++", colours=_is_coloured()
    )


def _help_text(width: int, *, box: str, colours: bool) -> str:
    unused = [_Cell("")] * 3  # Typer's columns of negative forms and types, so that the help stands where it puts it
    options: _Rows = [
        (_Cell(long, _BOLD_CYAN), _Cell(short, _BOLD_GREEN), *unused, _Cell(help_text))
        for long, short, help_text in _OPTIONS
    ]
    names = max(len(row.name) for rows in PANELS.values() for row in rows)
    panels: dict[str, _Rows] = {
        title: [(_Cell(row.name.ljust(names), _BOLD_CYAN), _Cell(row.help)) for row in rows]
        for title, rows in PANELS.items()
    }
    style = _coloured if colours else _plain
    usage = _paragraph(_USAGE, width, lambda text: style(_Cell(text, _BOLD)))
    lines = ["", *usage, "", *_paragraph(DESCRIPTION, width), ""]
    for title, rows in {"Options": options, **panels}.items():
        lines += _panel(title, rows, width, box, style)
    lines += ["", *_paragraph(FIRST_STEP, width), ""]
    return "\n".join(lines)


def _paragraph(text: str, width: int, style: Callable[[str], str] = str) -> Iterator[str]:
    for line in textwrap.wrap(text, width - 2, break_on_hyphens=False):
        yield f" {style(line)}"


def _panel(title: str, rows: _Rows, width: int, box: str, style: Callable[[_Cell], str]) -> Iterator[str]:
    """A framed table. The last column takes the width that the others leave, and wraps."""
    top_left, line, top_right, side, bottom_left, bottom_right = tuple(box)
    heading = f"{line} {title} "
    yield style(_Cell(f"{top_left}{heading.ljust(width - 2, line)}{top_right}", _DIM))
    edge = style(_Cell(side, _DIM))
    columns = [max(len(cell.text) for cell in column) for column in zip(*rows, strict=True)][:-1]
    last = width - 4 - sum(column + 2 for column in columns)
    for *cells, description in rows:
        first = "".join(
            style(cell) + " " * (column - len(cell.text) + 2) for cell, column in zip(cells, columns, strict=True)
        )
        indent = " " * sum(column + 2 for column in columns)
        for number, part in enumerate(textwrap.wrap(description.text, max(last, 1), break_on_hyphens=False)):
            yield f"{edge} {indent if number else first}{part.ljust(last)} {edge}"
    yield style(_Cell(f"{bottom_left}{line * (width - 2)}{bottom_right}", _DIM))


def _coloured(cell: _Cell) -> str:
    return f"{cell.style}{cell.text}{_RESET}" if cell.style and cell.text else cell.text


def _plain(cell: _Cell) -> str:
    return cell.text


def _width() -> int:
    """Columns of the terminal, or 80; the environment variable COLUMNS takes precedence."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    for descriptor in (0, 1, 2):  # the terminal, also when stdout goes into a pager
        try:
            return os.get_terminal_size(descriptor).columns or _DEFAULT_WIDTH
        except OSError:
            continue
    return _DEFAULT_WIDTH


def _prints_boxes() -> bool:
    return (sys.stdout.encoding or "utf-8").lower().startswith("utf")


def _is_coloured() -> bool:
    """True if stdout shows colours, by the conventions NO_COLOR and FORCE_COLOR and the kind of the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
