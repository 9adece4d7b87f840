"""The Typer application, and options and argument checks shared by several commands."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

from jellybean.cli.command_table import PROGRAM, CommandRow, is_group, panel_of, rows_of
from jellybean.cli.program_help import DESCRIPTION, FIRST_STEP, VERSION_HELP, program_help, program_version
from jellybean.errors import JellyBeanError

_PYDANTIC = "Value error, "  # before the message of a wrong choice


class InterruptedCommandError(Exception):
    """Ctrl-C in a command; raised from the KeyboardInterrupt, which Typer would take for a silent exit."""


class Commands(typer.core.TyperGroup):
    """The commands of the table: listed without being imported, and imported when they run or show their own help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._rows = rows_of(str(self.name))
        self.commands.clear()
        for row in self._rows.values():
            panel = panel_of(row.name) if self.name == PROGRAM else None
            self.add_command(typer.core.TyperCommand(row.name, help=row.help, rich_help_panel=panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named, imported: the one that `get_command` lists has its name and help alone."""
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is None:
            return name, listed, rest
        command = _imported_command(str(self.name), self._rows[args[0]])
        _hide_types_of_flags(command.get_params(ctx))
        return name, command, rest

    def get_params(self, ctx: Any) -> Any:
        return _hide_types_of_flags(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if self.name == PROGRAM:
            typer.echo(program_help())
        else:
            super().format_help(ctx, formatter)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt as interrupt:  # while options are parsed
            raise InterruptedCommandError from interrupt

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise InterruptedCommandError from interrupt
        except typer.BadParameter as error:  # Typer prints it, with what it says of documents and peers
            from jellybean_agent import printable_lines

            error.message = printable_lines(error.message).replace(_PYDANTIC, "")
            raise


def _imported_command(group: str, row: CommandRow) -> Any:
    """A command with its options, or a group, from its module."""
    importlib.import_module(f"jellybean.cli.{row.module}")
    if group == PROGRAM and is_group(row.name):
        return typer.main.get_group(APPLICATIONS[row.name])
    definition = next(
        command
        for command in APPLICATIONS[group].registered_commands
        if (command.name or getattr(command.callback, "__name__", "")) == row.name
    )
    return typer.main.get_command_from_info(definition, pretty_exceptions_short=True, rich_markup_mode="rich")


def _hide_types_of_flags(options: list[Any]) -> list[Any]:
    """No type beside options that take no value."""
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    return options


def new_group(name: str, epilog: str) -> typer.Typer:
    """The application of a group of the table, for the decorators of its commands."""
    group = typer.Typer(
        name=name,
        cls=Commands,
        help=rows_of(PROGRAM)[name].help,
        epilog=epilog,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    APPLICATIONS[name] = group
    return group


app = typer.Typer(
    name=PROGRAM,
    cls=Commands,
    help=DESCRIPTION,
    epilog=FIRST_STEP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
APPLICATIONS = {PROGRAM: app}  # the program, and its groups whose modules were imported


def parse_allowed_python(given: Sequence[str] | None) -> frozenset[str]:
    """Parse `--allow-python`; BadParameter for an invalid function name."""
    from jellybean_agent import ModelError, parse_allow_list

    try:
        return parse_allow_list(given or ())
    except ModelError as error:
        raise typer.BadParameter(f"--allow-python: {error}") from error


def _version(requested: bool) -> None:
    if requested:
        typer.echo(program_version())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help=VERSION_HELP)] = False,
) -> None:
    """Options of the program itself."""


ServeLedger = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="Database of the ledger: its own file by default, or postgresql+psycopg://host/name; none: no ledger.",
    ),
]
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder with workflow.yaml, infrastructure.yaml and profiles.yaml.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a value, e.g. --set slo.accuracy=57; an item of a list by its index: links.0.latency=40ms, "
        "the next index adds one, null removes. May be repeated.",
    ),
]
Stale = Annotated[
    bool,
    typer.Option(
        "--stale", help="Go on with profiles that were measured with other models, data or speeds; the plan says so."
    ),
]
AllowPython = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-python",
        metavar="MODULE:FUNCTION",
        help="A Python step that agents may run here, in addition to the built-in ones. May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(help="Format of the processes' logs; default: the environment variable JELLYBEAN_LOG, or text."),
]
HedgeAfter = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Hedge slow requests: send a second copy after 300 ms, or after the 95 % quantile of recent latencies.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]


def parse_hedge_after(given: str | None) -> str:
    """Convert `--hedge-after` to the gateway's notation; empty if not given.

    BadParameter unless it is a duration or a percentage.
    """
    from jellybean.quantities import DURATION, InvalidValueError, parse_fraction, parse_quantity

    if given is None:
        return ""
    try:
        if not given.rstrip().endswith("%"):
            return str(parse_quantity(DURATION, given))
        if not 0 < (share := parse_fraction(given)) < 1:
            raise InvalidValueError(f"{given} is not between 0 and 100 %", "write for example 95 %")
        return f"{100 * share:g}%"
    except InvalidValueError as error:
        raise typer.BadParameter(f"--hedge-after: {error}") from error


def checked_picture(path: Path) -> Path:
    """Check the file of --plot before long work starts; BadParameter if no picture can be written there."""
    from jellybean.display.pictures import require_picture

    try:
        require_picture(path)
    except JellyBeanError as error:
        raise typer.BadParameter(f"--plot {error}") from error
    return path


def checked_file(option: str, path: Path) -> Path:
    """Check an output file before long work starts; BadParameter if it cannot be written."""
    if path.is_dir():
        raise typer.BadParameter(f"{option} {path}: is a folder, not a file")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{option} {path}: folder {path.parent} not found")
    return path


_DOCUMENTS = ("workflow.yaml", "infrastructure.yaml", "profiles.yaml", "training.yaml", "kubernetes.yaml")
_PLAN = b'"kind": "Plan"'  # in the first bytes of a plan that is served


def checked_result(option: str, path: Path) -> Path:
    """`checked_file` of a result that is no document and no plan to serve: BadParameter if it would replace one."""
    if path.name in _DOCUMENTS or (path.is_file() and os.access(path, os.R_OK) and _PLAN in _first_bytes(path)):
        other = path.with_name(f"stages{path.suffix}")
        raise typer.BadParameter(f"{option} {path}: is a file of the project, which would be lost: write {other}")
    return checked_file(option, path)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def checked_folder(option: str, path: Path) -> Path:
    """Check that an output folder exists or can be created; BadParameter if a file has its name."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise typer.BadParameter(f"{option} {path}: {existing} is a file, not a folder")
    return path


def example(*lines: str) -> str:
    """A help epilog with example command lines."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)
