"""`MODULES` names the module that defines each command."""

from __future__ import annotations

import importlib
import pkgutil

import jellybean.cli
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
