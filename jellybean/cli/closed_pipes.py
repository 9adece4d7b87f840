"""Ends a command in a line or less when its output cannot be written.

That is when the reader has gone, as in `jellybean plan my-project | head -4`, or a disk is full. The streams raise
SystemExit themselves, so that neither Typer, Rich nor a handler of OSError takes the output for a failure of the
command; its clean-up runs as for any exit. SIGPIPE stays ignored, as sockets that close are no reason to end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from pathlib import Path
from typing import TextIO

from jellybean.cli.exit_status import EXIT_CLOSED_PIPE, EXIT_FAILURE

_STDERR = 2


class _EndingWriter(io.FileIO):
    """A stream that ends the command once it cannot be written; what is written after that is dropped.

    Notes on stderr that cannot be written, but for a closed pipe, are dropped alone: the result on stdout is whole.
    """

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            self._drop()
            raise SystemExit(EXIT_CLOSED_PIPE) from None
        except BlockingIOError:
            raise
        except OSError as error:
            reason = _reason(self.fileno(), error)
            self._drop()
            if self.fileno() == _STDERR:
                return memoryview(data).nbytes  # type: ignore[arg-type]
            print(f"the output cannot be written: {reason}", file=sys.stderr)
            raise SystemExit(EXIT_FAILURE) from None

    def _drop(self) -> None:
        """Send what is left in buffers, which Python flushes at its end, nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def _reason(number: int, error: OSError) -> str:
    """Why a stream cannot be written; of a full disk, which file it goes to and where that is."""
    if error.errno != errno.ENOSPC or not stat.S_ISREG(os.fstat(number).st_mode):
        return str(error.strerror)
    from jellybean_agent import full_disk_text

    file = Path(f"/proc/self/fd/{number}").readlink()
    return f"{file}: {full_disk_text(file)}"


def end_at_closed_pipes() -> None:
    """Let the process end once its stdout cannot be written; with status 141, as by SIGPIPE, if its reader has gone."""
    sys.stdout, sys.stderr = _ending(sys.stdout), _ending(sys.stderr)


def _ending(stream: TextIO) -> TextIO:
    """A stream in place of `stream`, unless that is a terminal or belongs to a test."""
    if not isinstance(stream, io.TextIOWrapper) or stream.isatty():
        return stream
    writer = io.BufferedWriter(_EndingWriter(stream.fileno(), "w", closefd=False))
    by_line = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(writer, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)
