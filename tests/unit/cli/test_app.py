"""The table of commands: complete, in step with the commands themselves, and enough for help and completion."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import typer.core
from typer import rich_utils

import jellybean.cli
from jellybean.cli import run
from jellybean.cli.app import app
from jellybean.cli.command_table import PANELS, PROGRAM, is_group, rows_of
from tests.support.command_line import jellybean as command

GROUPS = [name for name in rows_of(PROGRAM) if is_group(name)]
ROWS = {(): rows_of(PROGRAM), **{(group,): rows_of(group) for group in GROUPS}}
PATHS = [(*group, name) for group, rows in ROWS.items() for name in rows]


@dataclass(frozen=True)
class Definition:
    """A command as its source has it, so that nothing must be imported."""

    module: str
    text: str
    decorator: str


@pytest.fixture(scope="module")
def definitions() -> dict[tuple[str, ...], Definition]:
    """Each function that is decorated as a command of the program (`app`) or of a group (its name)."""
    folder = Path(jellybean.cli.__path__[0])
    defined = {}
    for file in folder.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        if ".command(" not in source:
            continue
        module = ".".join(file.relative_to(folder).with_suffix("").parts)
        functions = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)]
        for function in functions:
            for decorator in function.decorator_list:
                match decorator:
                    case ast.Call(ast.Attribute(ast.Name(application), "command"), arguments):
                        group = () if application == "app" else (application,)
                        name = ast.literal_eval(arguments[0]) if arguments else function.name
                        text = ast.get_docstring(function) or ""
                        defined[*group, name] = Definition(module, text, ast.unparse(decorator))
    return defined


def imported(path: tuple[str, ...]) -> typer.core.TyperCommand | typer.core.TyperGroup:
    """The command with its options, or the group; the empty path is the program."""
    found = typer.main.get_command(app)
    for name in path:
        assert isinstance(found, typer.core.TyperGroup)
        found = found.resolve_command(typer.Context(found), [name])[1]
    assert isinstance(found, typer.core.TyperCommand | typer.core.TyperGroup)
    return found


def test_the_table_has_every_command_and_the_module_that_defines_it(
    definitions: dict[tuple[str, ...], Definition],
) -> None:
    commands = [path for path in PATHS if path[0] not in GROUPS or len(path) == 2]
    rows = {path: ROWS[path[:-1]][path[-1]].module for path in commands}
    assert {path: definition.module for path, definition in definitions.items()} == rows


def test_a_row_has_the_first_sentence_of_the_commands_docstring(
    definitions: dict[tuple[str, ...], Definition],
) -> None:
    for path, definition in definitions.items():
        first = re.split(r"(?<=\.)\s", " ".join(definition.text.split("\n\n")[0].split()))[0]
        assert ROWS[path[:-1]][path[-1]].help == first, path


def test_the_help_of_every_command_and_group_has_an_example_of_it(
    definitions: dict[tuple[str, ...], Definition],
) -> None:
    for path, definition in definitions.items():
        assert " ".join(["jellybean", *path]) in definition.decorator.partition("epilog=example(")[2], path
    for group in GROUPS:
        assert f"jellybean {group}" in str(imported((group,)).epilog)


def test_help_says_which_options_may_be_repeated() -> None:
    for name in ("plan", "explain", "certs"):
        repeated = [option for option in imported((name,)).params if getattr(option, "multiple", False)]
        assert repeated
        for option in repeated:
            assert "May be repeated." in str(getattr(option, "help", "")), (name, option.name)


@pytest.mark.parametrize("path", [[], ["init"], ["pipeline"], ["pipeline", "draw"]])
def test_help_shows_no_type_beside_options_without_a_value(path: list[str]) -> None:
    shown = command(*path, "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown
    assert command(*path, "-h").stdout == shown


def test_the_programs_help_has_the_form_that_typer_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert lines(command("--help").stdout) == lines(help_by_typer(80, monkeypatch))


@pytest.mark.parametrize("width", [60, 131])
def test_the_programs_help_fills_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = command("--help").stdout
    assert {len(line) for line in shown.splitlines() if line.startswith(("╭", "│", "╰"))} == {width}
    assert [*re.findall(r"[^\s─│╭╮╰╯]+", shown)] == [*re.findall(r"[^\s─│╭╮╰╯]+", help_by_typer(500, monkeypatch))]


def help_by_typer(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    root = imported(())
    names = ["--help", "-h"]
    with redirect_stdout(io.StringIO()) as shown:
        context = typer.Context(root, info_name=PROGRAM, help_option_names=names)
        rich_utils.rich_format_help(obj=root, ctx=context, markup_mode="rich")
    assert all(f"─ {panel} ─" in shown.getvalue() for panel in PANELS)
    return shown.getvalue()


def lines(text: str) -> list[str]:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n").split("\n")


def test_the_programs_help_in_colours_and_without_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = command("--help").stdout
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = command("--help").stdout
    assert "\x1b[1;36mvalidate" in coloured
    assert lines(re.sub(r"\x1b\[[\d;]*m", "", coloured)) == lines(plain)
    monkeypatch.delenv("FORCE_COLOR")
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")) as ascii_only:
        assert run(["--help"]) == 0
        ascii_only.flush()
        assert b"+- Deploy -" in ascii_only.buffer.getvalue()  # type: ignore[attr-defined]


def test_no_command_is_the_help_with_the_status_of_a_usage_error() -> None:
    assert command(status=2).stdout == command("--help").stdout


def test_an_unknown_command_is_answered_with_those_that_are_like_it() -> None:
    assert "'deploy'" in command("deplyo", status=2).stderr
    assert "'collectives'" in command("pipeline", "collective", status=2).stderr


_HEAVY = ("typer", "rich", "grpc", "numpy", "pydantic", "matplotlib", "sqlalchemy", "onnx", "highspy", "asyncio")
_IMPORTED = "import sys; from jellybean.__main__ import main\ntry:\n    main()\nfinally:\n    print(*sys.modules)"


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--help"], _HEAVY),
        (["--version"], _HEAVY),
        (["pipeline", "--help"], ("grpc", "numpy", "matplotlib", "sqlalchemy", "onnx", "highspy", "torch", "asyncio")),
    ],
    ids=" ".join,
)
def test_help_and_version_import_only_what_they_need(arguments: list[str], unused: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert "jellybean" in done.stdout
    assert not {*done.stdout.splitlines()[-1].split()} & {*unused}


COMPLETIONS = {  # what is typed -> some of the completions, and none of the others
    "jellybean ": (["plan", "operator", "schema"], []),
    "jellybean de": (["deploy"], ["plan"]),
    "jellybean pipeline ": (["draw", "wpipe"], ["deploy"]),
    "jellybean init --bl": (["--blank"], ["--help"]),
}


@pytest.mark.parametrize("typed", COMPLETIONS)
def test_a_shell_completes_commands_and_options(typed: str) -> None:
    shown, absent = COMPLETIONS[typed]
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    completed = complete({"_JELLYBEAN_COMPLETE": "complete_bash", **words}).split("\n")
    assert {*shown} <= {*completed}
    assert not {*absent} & {*completed}


def test_completion_imports_no_command() -> None:
    words = {"_JELLYBEAN_COMPLETE": "complete_bash", "COMP_WORDS": "jellybean ", "COMP_CWORD": "1"}
    modules = complete(words).split("\n")[-2].split()
    assert "jellybean.cli.app" in modules
    assert not {"jellybean.cli.planning.plan", "numpy", "grpc", "sqlalchemy"} & {*modules}


def test_the_script_for_the_shell_is_printed(tmp_path: Path) -> None:
    script = complete({"_JELLYBEAN_COMPLETE": "source_zsh", "HOME": str(tmp_path)})
    assert "#compdef jellybean" in script
    assert "--show-completion" in command("--help").stdout


def complete(environment: dict[str, str]) -> str:
    """What the shell's script gets; the last line has the modules that were imported for it."""
    return subprocess.run(
        [sys.executable, "-c", _IMPORTED],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
