"""Ends a command quietly when the reader of its output has gone, as in `jellybean plan my-project | head -4`.

The streams raise SystemExit themselves, so that neither Typer, Rich nor a handler of OSError takes the closed pipe for
a failure of the command; its clean-up runs as for any exit. SIGPIPE stays ignored, as sockets that close are no reason
to end.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from typing import TextIO

from jellybean.cli.exit_status import EXIT_CLOSED_PIPE


class _PipeWriter(io.FileIO):
    """The writing end of a pipe. SystemExit once nobody reads it; what is written after that is dropped."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for what is left in buffers, which Python flushes at its end
            os.close(nowhere)
            raise SystemExit(EXIT_CLOSED_PIPE) from None


def end_at_closed_pipes() -> None:
    """Let the process end with status 141, as by SIGPIPE, once the reader of its stdout or stderr has gone."""
    sys.stdout, sys.stderr = _ending(sys.stdout), _ending(sys.stderr)


def _ending(stream: TextIO) -> TextIO:
    """A stream in place of `stream` if that is a pipe; otherwise `stream` (a terminal, a file, or None)."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    mode = os.fstat(stream.fileno()).st_mode
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return stream
    writer = io.BufferedWriter(_PipeWriter(stream.fileno(), "w", closefd=False))
    by_line = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(writer, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)
