"""Each command's module is the one that is loaded for it."""

from __future__ import annotations

import importlib
import pkgutil

import jellybean.cli
from jellybean.cli.app import MODULES, app, load


def test_every_command_is_found_where_it_is_looked_for() -> None:
    for module in pkgutil.iter_modules(jellybean.cli.__path__):
        importlib.import_module(f"jellybean.cli.{module.name}")
    load([])
    there = {
        str(command.name or getattr(command.callback, "__name__", "")): getattr(command.callback, "__module__", "")
        for command in app.registered_commands
    }
    groups = {str(group.name or group.typer_instance.info.name) for group in app.registered_groups}
    assert there == {command: f"jellybean.cli.{module}" for command, module in MODULES.items() if command not in groups}
    assert groups == {"pipeline", "operator"}
    assert [command.name or command.callback.__name__ for command in app.registered_commands if command.callback] == [
        command for command in MODULES if command not in groups
    ]
