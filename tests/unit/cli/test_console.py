"""What is printed is people's own text."""

from __future__ import annotations

import pytest
from rich.table import Table
from rich.text import Text

from jellybean.cli import run
from jellybean.cli.console import errors, out, print_json, print_texts, warn


def test_names_between_colons_and_in_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "python my_steps:boom: ValueError: [bold] of :smile:"
    out.print(text)
    errors.print(text, style="red")
    warn(text)
    written = capsys.readouterr()
    assert written.out == text + "\n"
    assert written.err == 2 * (text + "\n")


@pytest.mark.parametrize("code", ["\x1b[2J", "\x9b31m", "\x1b]0;title\x07", "\x7f", "\u202e", "\u2028", "\r"])
def test_what_others_named_so_sends_no_code_to_the_terminal(capsys: pytest.CaptureFixture[str], code: str) -> None:
    name = f"edge{code}-1"
    table = Table("worker")
    table.add_row(name)
    table.add_row(Text(name, style="bold"))
    print_texts(table, Text(f"worker {name}"), f"{name}: gone")
    errors.print(f"{name}: failed", style="red", soft_wrap=True)
    warn(f"{name} is late")
    print_json({"name": name})
    written = capsys.readouterr()
    assert all(character == "\n" or character.isprintable() for character in written.out + written.err)
    assert code not in written.out + written.err


def test_lines_of_a_text_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    out.print("first\nsecond")
    assert capsys.readouterr().out == "first\nsecond\n"


def test_what_a_usage_error_quotes_sends_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "nowhere", "--allow-python", "\x1b[2J"]) == 2
    written = capsys.readouterr()
    assert "\x1b[2J" not in written.err and "--allow-python" in written.err
