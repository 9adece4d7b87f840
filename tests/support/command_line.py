"""Runs the command line: in this process, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys

from jellybean.cli import run


def jellybean(*arguments: str, status: int | tuple[int, ...] = 0) -> subprocess.CompletedProcess[str]:
    """Run `jellybean ARGUMENTS` in this process; it must exit with `status` (or one of these).

    Saves the second of CPU time that each process needs to import the command line. Commands that start processes, read
    signals or run a user's modules need `jellybean_process`.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        returned = run(list(arguments))
    return _checked(subprocess.CompletedProcess(arguments, returned, out.getvalue(), err.getvalue()), status)


def jellybean_process(
    *arguments: str, status: int | tuple[int, ...] = 0, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `jellybean ARGUMENTS` as a process of its own; it must exit with `status` and print no traceback."""
    command = [sys.executable, "-m", "jellybean", *arguments]
    return _checked(subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False), status)


def _checked(done: subprocess.CompletedProcess[str], status: int | tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    assert done.returncode in (status if isinstance(status, tuple) else (status,)), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done
