"""The Typer application, and options and argument checks shared by several commands."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

from jellybean.errors import JellyBeanError


class InterruptedCommandError(Exception):
    """Ctrl-C in a command; raised from the KeyboardInterrupt, which Typer would take for a silent exit."""


class Commands(typer.core.TyperGroup):
    """A group of commands. Their help shows no type beside options that take no value."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _hide_types_of_flags(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> Any:
        return _hide_types_of_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise InterruptedCommandError from interrupt


def _hide_types_of_flags(options: list[Any]) -> list[Any]:
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    return options


app = typer.Typer(
    name="jellybean",
    cls=Commands,
    help="Plan, serve and measure ML workflows over edge and cloud.",
    epilog="Start here: jellybean init digits my-digits; it prints the next commands.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

MODULES = {  # command or group -> module of this package that defines it, in the order of the help
    "init": "init",
    "validate": "documents",
    "profile": "planning.profile",
    "plan": "planning.plan",
    "explain": "planning.explain",
    "frontier": "planning.frontier",
    "calendar": "planning.calendar",
    "simulate": "planning.plan",
    "up": "serving.serve",
    "apply": "serving.serve",
    "top": "serving.top",
    "infer": "serving.infer",
    "bench": "serving.measure",
    "report": "serving.measure",
    "cost": "serving.accounts.cost",
    "history": "serving.accounts.history",
    "label": "serving.accounts.label",
    "accuracy": "serving.accounts.accuracy",
    "down": "serving.serve",
    "certs": "serving.certs",
    "token": "serving.gateway",
    "gateway": "serving.gateway",
    "render": "kubernetes.render",
    "deploy": "kubernetes.cluster",
    "status": "kubernetes.cluster",
    "rollback": "kubernetes.cluster",
    "undeploy": "kubernetes.cluster",
    "discover": "kubernetes.discover",
    "train": "training.train",
    "diff": "planning.diff",
    "dashboard": "serving.top",
    "schema": "documents",
    "demo": "serving.measure",
    "pipeline": "pipeline.commands",
    "operator": "kubernetes.operator",
}


def parse_allowed_python(given: Sequence[str] | None) -> frozenset[str]:
    """Parse `--allow-python`; BadParameter for an invalid function name."""
    from jellybean_agent import ModelError, parse_allow_list

    try:
        return parse_allow_list(given or ())
    except ModelError as error:
        raise typer.BadParameter(f"--allow-python: {error}") from error


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"jellybean {importlib.metadata.version('jellybean-serving')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan, serve and measure ML workflows over edge and cloud."""


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


def checked_folder(option: str, path: Path) -> Path:
    """Check that an output folder exists or can be created; BadParameter if a file has its name."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise typer.BadParameter(f"{option} {path}: {existing} is a file, not a folder")
    return path


def example(*lines: str) -> str:
    """A help epilog with example command lines."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)


def load_commands(arguments: Sequence[str]) -> None:
    """Import the module of the given command, or all modules if none is given. One module halves the start-up time."""
    command_name = next((word for word in arguments if not word.startswith("-")), "")
    for module in sorted({MODULES[command_name]} if command_name in MODULES else set(MODULES.values())):
        importlib.import_module(f"jellybean.cli.{module}")
    order = list(MODULES)
    app.registered_commands.sort(
        key=lambda command: order.index(str(command.name or getattr(command.callback, "__name__", "")))
    )
