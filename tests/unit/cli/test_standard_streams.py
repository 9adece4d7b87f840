"""Commands whose standard streams are closed, full or of an encoding that knows less than Unicode."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from jellybean_protos.standard_streams import open_standard_streams


@pytest.mark.parametrize(
    ("encoding", "text", "written"),
    [
        ("ascii", "12 µs – 3 × 2…", b"12 us - 3 x 2..."),
        ("latin-1", "12 µs – 3 × 2…", b"12 \xb5s - 3 \xd7 2..."),
        ("cp1252", "≤ ● ─ 日", b"<= * - \\u65e5"),
        ("utf-8", "µ\udcff", b"\xc2\xb5\\udcff"),  # a part of a file name that is not UTF-8
    ],
)
def test_characters_that_an_encoding_lacks_are_written_otherwise(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str, written: bytes
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.write(text)
        stream.flush()
        assert stream.buffer.getvalue() == written


def shell(command: str, folder: Path) -> tuple[int, str]:
    """Exit status of a shell's command line, and what it writes to `out`. `jellybean` is the program."""
    line = command.replace("jellybean", f"{sys.executable} -m jellybean")
    ended = subprocess.run(["sh", "-c", line], cwd=folder, check=False)
    return ended.returncode, (folder / "out").read_text(encoding="utf-8", errors="replace")


def test_closed_streams_are_no_failure(tmp_path: Path) -> None:
    assert shell("jellybean --version <&- >&- 2> out", tmp_path) == (0, "")
    status, text = shell("jellybean --version 2>&- > out", tmp_path)
    assert (status, text.startswith("jellybean")) == (0, True)


def test_an_output_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    assert shell("jellybean --version > /dev/full 2> out", tmp_path) == (
        1,
        "the output cannot be written: No space left on device\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", ["2> /dev/full > out", "<&- 2>&- > out"])
def test_notes_that_nobody_can_read_do_not_change_the_result(tmp_path: Path, end: str) -> None:
    assert shell("jellybean schema workflow > usual; cp usual out", tmp_path)[0] == 0
    usual = (tmp_path / "usual").read_text(encoding="utf-8")
    assert shell(f"jellybean schema workflow {end}", tmp_path) == (0, usual)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--help", "plan --help", "plan no-project"])
def test_help_and_refusals_are_printed_in_ascii(tmp_path: Path, command: str) -> None:
    usual, _ = shell(f"jellybean {command} > out 2>&1", tmp_path)
    status, text = shell(f"PYTHONIOENCODING=ascii jellybean {command} > out 2>&1", tmp_path)
    assert (status, "Traceback" in text, text.isascii()) == (usual, False, True)
