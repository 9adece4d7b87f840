"""Which line of a user's code an exception comes from, and what it says, for messages."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

from jellybean_agent import describe_error

_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_TORCH = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")
_STANDARD = sysconfig.get_paths()["stdlib"]
_JELLYBEAN = f"{Path(__file__).resolve().parents[1]}/"


def user_frame(error: BaseException, *, libraries: bool = False) -> traceback.FrameSummary | None:
    """The last frame of the user's code; if it has none, the last one of a library other than torch; None without both.

    `libraries`: the last frame of either. It names the line that a tracer cannot follow, also in a library's model.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    users = [frame for frame in frames if not _INSTALLED.search(frame.filename)]
    chosen = frames if libraries else users or frames
    return chosen[-1] if chosen else None


def user_place(frame: FrameType | None) -> str:
    """FILE:LINE of the user's code that a thread is in, called by this package; empty if it is in none.

    `frame`: the thread's innermost one.
    """
    place = ""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_JELLYBEAN) and place:
            return place
        if not place and not _is_machinery(filename) and not _INSTALLED.search(filename):
            place = f"{filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def place_and_reason(error: BaseException) -> str:
    """` at FILE:LINE: REASON`, for the end of a message; only `: REASON` if no code of the user ran."""
    frame = user_frame(error)
    place = f" at {frame.filename}:{frame.lineno}" if frame is not None else ""
    return f"{place}: {reason_of(error)}"


def reason_of(error: BaseException) -> str:
    """The error in one line, with the first of those that it was raised from: libraries hide what failed."""
    if isinstance(error, SystemExit):
        return f"it exits with {error.code}"
    chain = [error]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    first = chain[-1]
    reason = describe_error(error, name=True)
    if first is error or str(first) in reason:
        return reason
    return f"{reason} (because of {describe_error(first, name=True)})"


def is_users_file(filename: str | None) -> bool:
    """True for a file of the user's own code, which is no library's."""
    return filename is not None and not _is_machinery(filename) and not _INSTALLED.search(filename)


def _is_machinery(filename: str) -> bool:
    """True for this package, torch, the standard library and generated code."""
    if filename.startswith(("<", _JELLYBEAN)) or _TORCH.search(filename):
        return True
    return filename.startswith(_STANDARD) and not _INSTALLED.search(filename)
