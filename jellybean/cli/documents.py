"""init, validate, schema: commands about documents."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sized
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, app, example
from jellybean.cli.console import EXIT_BAD_INPUT, errors, out, print_json, warn
from jellybean.cli.failures import failure
from jellybean.documents import build_problem, json_schemas, load_project, require_folder
from jellybean.errors import DocumentError, JellyBeanError


class Example(StrEnum):
    """Projects that `init` can copy."""

    DIGITS = "digits"
    VQA = "vqa"


_STEPS = {
    Example.DIGITS: (
        ("profile", "measure its models on this machine"),
        ("plan", "choose models, place operators"),
        ("simulate", "predict latency and the highest rate"),
        ("up --detach", "serve the plan here"),
        ("bench", "measure it under its own load"),
        ("report", "predicted beside measured"),
        ("down", "stop it"),
    ),
    Example.VQA: (
        ("plan", "choose models, place operators; its figures are published, so there is nothing to profile"),
        ("explain", "why this plan, and what else was possible"),
        ("frontier", "what every accuracy costs"),
    ),
}


class Schema(StrEnum):
    """Documents that have a schema."""

    WORKFLOW = "workflow"
    INFRASTRUCTURE = "infrastructure"
    PROFILES = "profiles"


@app.command(epilog=example("jellybean init digits my-digits", "jellybean init vqa my-vqa"))
def init(
    name: Annotated[Example, typer.Argument(metavar="EXAMPLE", help="digits (runs here) or vqa (published figures).")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; must not exist or be empty.")],
) -> None:
    """Copy an example project to start from."""
    copy_example(name, directory)
    out.print(f"{directory}: copied from the example {name.value}; next, in this order:", soft_wrap=True)
    lines = {f"jellybean {step} {shlex.quote(str(directory))}": purpose for step, purpose in _STEPS[name]}
    for line, purpose in lines.items():
        out.print(f"  {line:{max(map(len, lines))}}  # {purpose}", soft_wrap=True)


def copy_example(name: Example, directory: Path) -> None:
    """Make a project like an example. JellyBeanError where something is already."""
    if directory.exists() and any(directory.iterdir() if directory.is_dir() else [directory]):
        raise JellyBeanError(f"{directory} exists and is not empty; name another folder")
    ignored = shutil.ignore_patterns("__pycache__", ".jellybean", "plan.json")
    shutil.copytree(_examples() / name.value, directory, dirs_exist_ok=True, ignore=ignored)


@app.command(
    epilog=example("jellybean validate my-digits", "jellybean validate my-digits --set slo.accuracy=99 --json")
)
def validate(directory: Directory, overrides: Overrides = None, json: Json = False) -> None:
    """Check all documents and name every problem with its file and line."""
    try:
        has_profiles = (directory / "profiles.yaml").exists()
        project = load_project(directory, overrides or (), profiles=has_profiles)
        if has_profiles:
            build_problem(project)
    except DocumentError as error:
        if not json:
            raise
        print_json({"valid": False, "problems": [problem.to_dict() for problem in error.problems], **failure(error)})
        errors.print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    if json:
        print_json({"valid": True, "problems": []})
        return
    workflow, fleet = project.workflow, project.infrastructure
    count = sum(pool.count * fleet.sites.get(pool.tier, 1) for pool in fleet.workers.values())
    out.print(
        f"valid: {workflow.name}, {_count(workflow.operators, 'operator')}, {_count(workflow.sources, 'source')}, "
        f"{count:,} worker{'s' * (count != 1)} in {_count(fleet.workers, 'pool')}"
    )
    if not has_profiles:
        warn(f"there is no profiles.yaml yet; run: jellybean profile {directory}")


@app.command(epilog=example("jellybean schema workflow > workflow.schema.json", "jellybean schema"))
def schema(
    document: Annotated[
        Schema | None, typer.Argument(metavar="[DOCUMENT]", help="One document; all by default.")
    ] = None,
) -> None:
    """Print the JSON Schemas of the documents (editors complete from them)."""
    schemas = {name.lower(): value for name, value in json_schemas().items()}
    print_json(schemas if document is None else schemas[document.value])


def _count(items: Sized, name: str) -> str:
    return f"{len(items)} {name}{'s' * (len(items) != 1)}"


def check(directory: Path, overrides: list[str] | None) -> None:
    """DocumentError for a folder or override that is none, where what runs, not the documents, gives the answer."""
    require_folder(directory)
    if overrides:
        load_project(directory, overrides, profiles=(directory / "profiles.yaml").exists())


def _examples() -> Path:
    """Beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / "vqa" / "workflow.yaml").exists():
            return folder
    raise JellyBeanError(f"the examples are missing from this installation ({package})")
