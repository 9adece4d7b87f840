"""The standard streams of a process as programs expect them, whatever it was started with.

A daemon starts programs with closed streams, and a terminal or a log of CI may know less than Unicode. Neither is a
reason for a command to fail.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

_ERRORS = "jellybean.plain"  # how characters are written that an encoding lacks
_PLAIN = {  # of this program's own texts
    "µ": "u",
    "μ": "u",
    "×": "x",
    "·": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "→": "->",
    "±": "+-",
    "²": "^2",
    "≤": "<=",
    "≥": ">=",
    "─": "-",
    "━": "-",
    "│": "|",
    "┃": "|",
    "●": "*",
    "○": "o",
    "◇": "o",
    "‰": " per mille",
    **dict.fromkeys("╭╮╰╯", "+"),
}


def open_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr, and let every text be printed on the last two.

    Invariant: file descriptors 0 to 2 are open from here on. Otherwise the next file or connection would get one of
    them, and what libraries and child processes print would be written into it.
    """
    _open_descriptors()
    codecs.register_error(_ERRORS, _plain)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout, sys.stderr = _printing(sys.stdout, 1), _printing(sys.stderr, 2)


def _open_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _printing(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is None:
        return open(descriptor, "w", encoding="utf-8", errors=_ERRORS, closefd=False)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_ERRORS)
    return stream


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What is written in place of characters that an encoding lacks: the usual ASCII, or an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    texts = (_PLAIN.get(character) or _escape(character) for character in characters)
    return "".join(texts), error.end


def _escape(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode("ascii")
