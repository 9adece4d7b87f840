"""Output of the CLI: results on stdout, progress and errors on stderr, so that `--json` can be piped."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from jellybean.display.terminal import WARN
from jellybean.termination import terminated_as_interrupted
from jellybean_agent import printable_lines

_PIPED_WIDTH = 160  # width of the output without a terminal, in characters, so that tables in a log are not cut
# Without a terminal, pauses before a line of progress: the first one after a second, as work that takes no longer needs
# none, and then ever fewer, so that a log of hours stays short.
_FIRST_PAUSE_S, _PAUSE_S = 1.0, 30.0
_LEAST_DONE = 0.01  # of the work, before it is said how long the remaining work takes
_SPEED_PERIOD_S = 600.0  # the remaining time is estimated from the speed in this window; some steps take a minute


_PADDING = re.compile(r" +$", re.MULTILINE)


def without_padding(text: str) -> str:
    """The text without blanks at the ends of its lines."""
    return _PADDING.sub("", text)


class _PrintableConsole(Console):
    """Writes the control characters of texts escaped: names and reasons may come from anywhere."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_plain = segment.control or segment.text == "\n" or segment.text.isprintable()
            yield segment if is_plain else Segment(printable_lines(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; without a terminal no line ends with blanks but those of a string, which is as it is given."""
        if self.is_terminal or all(isinstance(one, str) for one in objects):
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(without_padding(captured.get()))
        self.file.flush()


# Rich's markup and emoji codes are off, because names and paths are arbitrary text, such as "my_steps:boom: ...".
# Colours are set by `style=` and `Text`.
def _console(stream: TextIO, *, stderr: bool) -> Console:
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
    return _PrintableConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


out = _console(sys.stdout, stderr=False)
errors = _console(sys.stderr, stderr=True)


class Advance(Protocol):
    """Progress of a command: called with the work done, its total and the current step."""

    def __call__(self, done: float, total: float, label: str) -> None: ...

    def print(self, *results: RenderableType) -> None:
        """Print a part of the result to stdout while the work goes on."""


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, not wrapped or coloured; nan and inf become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def print_texts(*results: RenderableType) -> None:
    """Print to stdout. Texts (not tables) wrap on a terminal only: in a pipe a line is whole, so that grep finds it."""
    for result in results:
        out.print(result, soft_wrap=isinstance(result, Text) and not out.is_terminal)


def say(text: str) -> None:
    """Print an informational line to stderr; see `_print_note`."""
    _print_note(text, "dim")


def lines_of_progress(title: str) -> Advance:
    """Progress as in a log, also on a terminal: a command that mostly takes less than a second shows no bar."""
    return _Heartbeat(title, shows_time_left=True)


@contextmanager
def said_if_long(text: str) -> Iterator[None]:
    """Say what is going on if the block takes longer than a second, and its steps are not known."""
    timer = threading.Timer(_FIRST_PAUSE_S, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_COMMAND = re.compile(r"(?<= )jellybean [^;,()]*\Z")  # at the end of a note: what to run next


def _print_note(text: str, style: str) -> None:
    """Print lines to stderr, wrapped on a terminal; paths and the command at the end stay whole, to be copied."""
    lines = text.splitlines() if errors.is_terminal else [text]
    for line in lines:
        errors.print(
            "\n".join(_wrapped(line, errors.width) if errors.is_terminal else [line]), style=style, soft_wrap=True
        )


def _wrapped(line: str, width: int) -> list[str]:
    command = match[0] if (match := _COMMAND.search(line)) else ""
    indent = " " * (len(line) - len(line.lstrip()))
    wrapped = textwrap.wrap(
        line[: len(line) - len(command)],
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
    if not command:
        return wrapped
    if len(wrapped[-1]) + 1 + len(command) <= width:
        return [*wrapped[:-1], f"{wrapped[-1]} {command}"]
    return [*wrapped, indent + command]


_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    _print_note(text, WARN)
    if (collected := _collected.get()) is not None and text not in collected:
        collected.append(text)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the warnings of a block that takes minutes, each once, so that they can be repeated at its end."""
    collected: list[str] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


@contextmanager
def progress(title: str, *, shows_time_left: bool = True, kept: str = "") -> Iterator[Advance]:
    """A progress bar with remaining time on stderr; without a terminal, a line after a second and then ever fewer.

    `shows_time_left=False`: for steps that take unlike times, or whose number is not known before.
    The bar is removed if the work fails, so that it does not precede the error message. Work that is interrupted says
    how far it came, with its last label, which has what is known, and what of it is `kept`.
    """
    with terminated_as_interrupted(), _progress(title, shows_time_left) as advance:
        reached = _Reached(advance)
        try:
            yield reached
        except KeyboardInterrupt:
            if reached.label:
                how_far = f"interrupted at {round(reached.done)} of {round(reached.total)}: {reached.label}"
                warn("; ".join(filter(None, (f"{title}: {how_far}", kept))))
            raise


class _Reached:
    """Passes progress on and remembers it. `done`, `total`, `label`: of the last call."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self.done, self.total, self.label = advance, 0.0, 0.0, ""

    def __call__(self, done: float, total: float, label: str) -> None:
        self.done, self.total, self.label = done, total, label
        self._advance(done, total, label)

    def print(self, *results: RenderableType) -> None:
        self._advance.print(*results)


@contextmanager
def _progress(title: str, shows_time_left: bool) -> Iterator[Advance]:
    if not sys.stderr.isatty():
        yield _Heartbeat(title, shows_time_left)
        return
    left = (TextColumn("[dim]left"), TimeRemainingColumn()) if shows_time_left else ()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[dim]elapsed"),
        TimeElapsedColumn(),
        *left,
    )
    with Progress(*columns, console=errors, speed_estimate_period=_SPEED_PERIOD_S) as bar:
        advance = _Bar(title, bar)
        try:
            yield advance
        except BaseException:
            bar.live.transient = True
            raise
        total = bar.tasks[advance.task].total or 1
        bar.update(advance.task, completed=total, total=total, description=f"{title}: done")


class _Bar:
    """A progress bar on a terminal."""

    def __init__(self, title: str, bar: Progress) -> None:
        self._title, self._bar = title, bar
        self.task = bar.add_task(title, total=None)

    def __call__(self, done: float, total: float, label: str) -> None:
        text = f"{self._title}: {label}"
        self._bar.update(self.task, completed=round(done), total=round(total), description=text)

    def print(self, *results: RenderableType) -> None:
        """Print to stdout above the bar, which is removed meanwhile: on a terminal both have the same lines."""
        self._bar.live.transient = True
        self._bar.stop()
        print_texts(*results)
        self._bar.live.transient = False
        self._bar.start()


class _Heartbeat:
    """Prints the progress of long work at intervals, for logs."""

    def __init__(self, title: str, shows_time_left: bool) -> None:
        self._title, self._shows_time_left, self._printed_s = title, shows_time_left, time.monotonic()
        self._began_s, self._pause_s = self._printed_s, _FIRST_PAUSE_S

    def __call__(self, done: float, total: float, label: str) -> None:
        now = time.monotonic()
        if now - self._printed_s >= self._pause_s and done < total:
            self._printed_s, self._pause_s = now, min(2 * self._pause_s, _PAUSE_S)
            is_known = done >= _LEAST_DONE * total  # before, the start of processes is most of the time
            left_s = (now - self._began_s) * (total - done) / done if done > 0 and is_known else None
            left = f", about {left_s:.0f} s left" if self._shows_time_left and left_s is not None else ""
            say(f"{self._title}: {round(done)} of {round(total)}, {label}{left}")

    def print(self, *results: RenderableType) -> None:
        print_texts(*results)
        sys.stdout.flush()
