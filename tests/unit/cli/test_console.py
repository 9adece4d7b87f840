"""What is printed is people's own text."""

from __future__ import annotations

import threading

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.cli import console, run
from jellybean.cli.console import errors, out, print_json, print_texts, warn
from tests.support.command_line import jellybean


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


def test_no_line_of_a_table_is_padded_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "note", box=None)
    table.add_row("a", "")
    table.add_row("bb", "long")
    print_texts(table, Padding(table, (0, 0, 0, 2), expand=False), Group(Text("x"), table))
    errors.print(table)
    out.print("as it is given  ")
    written = capsys.readouterr()
    *lines, last = (written.err + written.out).splitlines()
    assert last == "as it is given  "
    assert lines and all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("command", ["plan --help", "pipeline -h", "pipeline draw --devices 4 --schedule chimera"])
def test_no_line_of_a_help_or_a_drawing_ends_with_blanks(command: str) -> None:
    lines = jellybean(*command.split()).stdout.splitlines()
    assert len(lines) > 4 and all(line == line.rstrip() for line in lines)


def test_a_log_gets_a_line_after_a_second_and_then_ever_fewer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now_s)
    with console.progress("work") as advance:
        for step in range(200):
            now_s = step * 0.5
            advance(step, 200, f"step {step}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "work: 2 of 200, step 2, about 99 s left"
    assert [int(line.split()[1]) for line in lines] == [2, 6, 14, 30, 62, 122, 182]


def test_no_time_is_said_to_be_left_before_the_work_has_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now_s)
    with console.progress("bench") as advance:
        now_s = 9.0
        advance(0.01, 13.0, "warm-up")
    assert capsys.readouterr().err == "bench: 0 of 13, warm-up\n"


def test_work_without_known_steps_is_said_once_it_is_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_FIRST_PAUSE_S", 0.0)
    said = threading.Event()
    monkeypatch.setattr(console, "say", lambda text: (errors.print(text), said.set()))
    with console.said_if_long("measuring m.onnx"):
        assert said.wait(60.0)
    monkeypatch.setattr(console, "_FIRST_PAUSE_S", 3600.0)
    with console.said_if_long("short work"):
        pass
    assert capsys.readouterr().err == "measuring m.onnx\n"
