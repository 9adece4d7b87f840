"""A command whose output nobody reads any more ends quietly, with the status of SIGPIPE."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["--help"], ["schema", "workflow"], ["plan", "no-project", "--json"]], ids=["Typer", "JSON", "an error"]
)
def test_a_closed_pipe_ends_a_command_quietly(command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "jellybean", *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.slow
def test_a_pipe_that_is_read_gets_all_output() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "jellybean", "plan", "no-project"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no-project" in ended.stderr and "Traceback" not in ended.stderr
