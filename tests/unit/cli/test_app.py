"""`MODULES` names the module that defines each command."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import typer

import jellybean.cli
from jellybean.cli import run
from jellybean.cli.app import MODULES, app, load_commands


def test_modules_names_the_module_of_every_command() -> None:
    for module in pkgutil.walk_packages(jellybean.cli.__path__, "jellybean.cli."):
        importlib.import_module(module.name)
    load_commands([])
    defined = {
        str(command.name or getattr(command.callback, "__name__", "")): getattr(command.callback, "__module__", "")
        for command in app.registered_commands
    }
    groups = {str(group.name or group.typer_instance.info.name) for group in app.registered_groups}
    commands = {command: module for command, module in MODULES.items() if command not in groups}
    assert defined == {command: f"jellybean.cli.{module}" for command, module in commands.items()}
    assert groups == {"pipeline", "operator"}
    assert [command.name or command.callback.__name__ for command in app.registered_commands if command.callback] == [
        command for command in MODULES if command not in groups
    ]


def test_the_help_of_every_command_and_group_has_an_example_of_it() -> None:
    load_commands([])
    root = typer.main.get_command(app)
    assert isinstance(root, typer.core.TyperGroup)
    commands = {("jellybean", name): command for name, command in root.commands.items()}
    for path, group in list(commands.items()):
        if isinstance(group, typer.core.TyperGroup):
            commands |= {(*path, name): command for name, command in group.commands.items()}
    assert len(commands) > len(MODULES)
    for path, command in commands.items():
        assert " ".join(path) in str(command.epilog), path


def test_help_says_which_options_may_be_repeated() -> None:
    load_commands([])
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    for name in ("plan", "explain", "certs"):
        repeated = [option for option in command.commands[name].params if getattr(option, "multiple", False)]
        assert repeated
        for option in repeated:
            assert "May be repeated." in str(getattr(option, "help", "")), (name, option.name)


@pytest.mark.parametrize("command", [[], ["up"], ["pipeline"], ["pipeline", "draw"]])
def test_help_shows_no_type_beside_options_without_a_value(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert "bool" not in shown
