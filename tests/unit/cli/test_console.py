"""What is printed is people's own text."""

from __future__ import annotations

import pytest

from jellybean.cli.console import errors, out, warn


def test_names_between_colons_and_in_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "python my_steps:boom: ValueError: [bold] of :smile:"
    out.print(text)
    errors.print(text, style="red")
    warn(text)
    written = capsys.readouterr()
    assert written.out == text + "\n"
    assert written.err == 2 * (text + "\n")
