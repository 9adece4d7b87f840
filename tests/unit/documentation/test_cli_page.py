"""docs/cli.md lists every command of the table, and no other."""

from __future__ import annotations

import re

from jellybean.cli.command_table import PROGRAM, is_group, rows_of
from jellybean_protos.extras import MODULES_OF_EXTRAS
from tests.support.paths import DOCS

TEXT = (DOCS / "cli.md").read_text(encoding="utf-8")


def test_the_first_table_lists_every_command_and_no_other() -> None:
    table = TEXT.partition("| command | what it does | writes |")[2].partition("\n\n")[0]
    listed = {
        tuple(command.split()[: 2 if is_group(command.split()[0]) else 1])
        for row in table.splitlines()
        for command in re.findall(r"`([a-z][^`]*)`", row.split("|")[1] if row.startswith("|") else "")
    }
    commands = {(name,) for name in rows_of(PROGRAM) if not is_group(name)}
    commands |= {(group, name) for group in rows_of(PROGRAM) if is_group(group) for name in rows_of(group)}
    assert listed == commands


def test_the_table_of_extras_names_those_that_bring_something_to_a_command() -> None:
    table = TEXT.partition("| extra | brings |")[2].partition("\n\n")[0]
    listed = {
        extra for row in table.splitlines() for extra in re.findall(r"`([^`]+)`", row.split("|")[1:2][0] if row else "")
    }
    assert listed == {*MODULES_OF_EXTRAS} - {"examples", "ocr"}
