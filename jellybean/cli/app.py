"""The Typer application and the options that every command shares."""

from __future__ import annotations

import importlib
import importlib.metadata
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from jellybean.errors import JellyBeanError

app = typer.Typer(
    name="jellybean",
    help="Plan, serve and measure ML workflows over edge and cloud.",
    epilog="Start here: jellybean init digits my-digits; it says what comes next.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

MODULES = {  # command or group -> the module here that adds it, in the order of the help
    "init": "documents",
    "validate": "documents",
    "profile": "planning.plan",
    "plan": "planning.plan",
    "explain": "planning.explain",
    "frontier": "planning.frontier",
    "simulate": "planning.plan",
    "up": "serving.serve",
    "apply": "serving.serve",
    "top": "serving.top",
    "infer": "serving.serve",
    "bench": "serving.measure",
    "report": "serving.measure",
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
    "train": "train",
    "diff": "planning.diff",
    "dashboard": "serving.top",
    "schema": "documents",
    "demo": "serving.measure",
    "pipeline": "pipeline",
    "operator": "kubernetes.operator",
}


def allowed_python(given: Sequence[str] | None) -> frozenset[str]:
    """The functions of `--allow-python`."""
    from jellybean_agent import ModelError, parse_allow_list

    try:
        return parse_allow_list(given or ())
    except ModelError as error:
        raise typer.BadParameter(f"--allow-python: {error}") from error


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"jellybean {importlib.metadata.version('jellybean-serving')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Plan, serve and measure ML workflows over edge and cloud."""


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder with workflow.yaml, infrastructure.yaml and profiles.yaml.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a value, e.g. --set slo.accuracy=57. May be repeated."),
]
AllowPython = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-python",
        metavar="MODULE:FUNCTION",
        help="A Python step of the workflow that may run here, besides the agent's own. May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(help="Lines of the processes' logs; default: the environment's JELLYBEAN_LOG, or text."),
]
HedgeAfter = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Send slow requests over a second route: after 300 ms, or 95 % (a quantile of recent latencies).",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


def hedge_text(given: str | None) -> str:
    """--hedge-after as the gateway reads it; empty for none. BadParameter when it is neither a share nor a time."""
    from jellybean.quantities import DURATION, InvalidValueError, parse_fraction, parse_quantity

    if given is None:
        return ""
    try:
        if not given.rstrip().endswith("%"):
            return str(parse_quantity(DURATION, given))
        if not 0 < (share := parse_fraction(given)) < 1:
            raise InvalidValueError(f"{given} is no share", "write for example 95 %")
        return f"{100 * share:g}%"
    except InvalidValueError as error:
        raise typer.BadParameter(f"--hedge-after: {error}") from error


def picture(path: Path) -> Path:
    """What --plot names, before long work is done for it; BadParameter when nothing can be drawn there."""
    from jellybean.display.pictures import require_picture

    try:
        require_picture(path)
    except JellyBeanError as error:
        raise typer.BadParameter(f"--plot {error}") from error
    return path


def page(option: str, path: Path) -> Path:
    """What a file is to be written to, before long work is done for it; BadParameter when none can be."""
    if path.is_dir():
        raise typer.BadParameter(f"{option} {path}: is a folder, not a file")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{option} {path}: there is no folder {path.parent}")
    return path


def folder(option: str, path: Path) -> Path:
    """A folder that is there or can be made; BadParameter when a file is in its way."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir():
        raise typer.BadParameter(f"{option} {path}: {there} is a file, not a folder")
    return path


def repeated(overrides: list[str] | None) -> str:
    """The `--set` options as they are to be given again: they last for one command."""
    return "".join(f" --set {shlex.quote(text)}" for text in overrides or ())


def example(*lines: str) -> str:
    """An epilog with command lines to copy."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)


def load(arguments: Sequence[str]) -> None:
    """Adds the command that is asked for, and all where none is (help, a mistake): a start is half as long by it."""
    asked = next((word for word in arguments if not word.startswith("-")), "")
    for module in sorted({MODULES[asked]} if asked in MODULES else set(MODULES.values())):
        importlib.import_module(f"jellybean.cli.{module}")
    order = list(MODULES)
    app.registered_commands.sort(
        key=lambda command: order.index(str(command.name or getattr(command.callback, "__name__", "")))
    )
