"""Commands init, validate and schema."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sized
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, example
from jellybean.cli.console import EXIT_BAD_INPUT, errors, out, print_json, warn
from jellybean.cli.failures import failure
from jellybean.cli.projects import warn_about_profiles
from jellybean.documents import MultiWorkflowProject, build_problem, json_schemas, load_any_project, require_folder
from jellybean.documents.layout import workflow_folders
from jellybean.errors import DocumentError, JellyBeanError


class Example(StrEnum):
    """Example projects that `init` can copy."""

    DIGITS = "digits"
    SPLIT = "split"
    VQA = "vqa"
    TWO_WORKFLOWS = "two-workflows"
    PIPELINE = "pipeline"


_STEPS = {
    Example.DIGITS: (
        ("profile", "measure its models on this machine"),
        ("plan", "choose models, place operators"),
        ("simulate", "predict latency and the highest sustained rate"),
        ("up --detach", "serve the plan on this machine"),
        ("bench", "measure it under the declared load"),
        ("report", "compare predictions with measurements"),
        ("down", "stop it"),
    ),
    Example.SPLIT: (
        ("profile", "measure its models and their stages on this machine"),
        ("plan", "choose a model, where to cut it, and where its stages run"),
        ("up --detach", "serve the plan on this machine"),
        ("bench", "measure it under the declared load"),
        ("report", "compare predictions with measurements"),
        ("down", "stop it"),
    ),
    Example.VQA: (
        ("plan", "choose models, place operators; its profiles are published figures"),
        ("explain", "why this plan, and the alternatives"),
        ("frontier", "cost as a function of accuracy"),
    ),
    Example.TWO_WORKFLOWS: (
        ("plan", "plan both workflows together on one fleet; its profiles are included"),
        ("simulate", "predict latency and throughput of each"),
    ),
    Example.PIPELINE: (
        ("train", "train a small transformer on this machine; needs the extra `train` and scikit-learn"),
        ("train --fresh --set devices=2", "the same as a pipeline of two processes"),
    ),
}


class Schema(StrEnum):
    """Documents that have a JSON Schema."""

    WORKFLOW = "workflow"
    INFRASTRUCTURE = "infrastructure"
    PROFILES = "profiles"
    TRAINING = "training"


@app.command(epilog=example("jellybean init digits my-digits", "jellybean init vqa my-vqa"))
def init(
    name: Annotated[
        Example,
        typer.Argument(
            metavar="EXAMPLE",
            help="digits or split (can be served on this machine), vqa or two-workflows (planning only), "
            "or pipeline (training only).",
        ),
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to create; an existing folder must be empty.")
    ],
) -> None:
    """Copy an example project to start from."""
    copy_example(name, directory)
    out.print(f"{directory}: copied from the example {name.value}; next commands:", soft_wrap=True)
    lines = {f"jellybean {step} {shlex.quote(str(directory))}": purpose for step, purpose in _STEPS[name]}
    for line, purpose in lines.items():
        out.print(f"  {line:{max(map(len, lines))}}  # {purpose}", soft_wrap=True)


def copy_example(name: Example, directory: Path) -> None:
    """Copy an example project to `directory`. JellyBeanError if that is not empty."""
    if directory.exists() and any(directory.iterdir() if directory.is_dir() else [directory]):
        raise JellyBeanError(f"{directory} exists and is not empty; choose another folder")
    ignored = shutil.ignore_patterns("__pycache__", ".jellybean", "plan.json", "training")
    shutil.copytree(_examples() / name.value, directory, dirs_exist_ok=True, ignore=ignored)


@app.command(
    epilog=example("jellybean validate my-digits", "jellybean validate my-digits --set slo.accuracy=99 --json")
)
def validate(directory: Directory, overrides: Overrides = None, json: Json = False, stale: Stale = False) -> None:
    """Check all documents and print every problem with its file and line."""
    try:
        unprofiled = _unprofiled(directory)
        project = load_any_project(directory, overrides or (), profiles=not unprofiled, accept_stale=stale)
        if not unprofiled:
            build_problem(project)
    except DocumentError as error:
        if not json:
            raise
        print_json({"valid": False, "problems": [problem.to_dict() for problem in error.problems], **failure(error)})
        errors.print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    warn_about_profiles(project)
    parts = project.workflows if isinstance(project, MultiWorkflowProject) else {project.workflow.name: project}
    if json:
        outdated = [entry.to_dict() for part in parts.values() for entry in part.stale]
        print_json({"valid": True, "problems": [], **({"stale": outdated} if outdated else {})})
        return
    fleet = project.infrastructure
    workflows = (
        f"{name}, {_count(part.workflow.operators, 'operator')}, {_count(part.workflow.sources, 'source')}"
        for name, part in parts.items()
    )
    count = sum(pool.count * fleet.sites.get(pool.tier, 1) for pool in fleet.workers.values())
    workers = f"{count:,} worker{'s' * (count != 1)} in {_count(fleet.workers, 'pool')}"
    between = ", " if len(parts) == 1 else "; "
    out.print(f"valid: {between.join([*workflows, workers])}")
    for folder in unprofiled:
        warn(f"{folder / 'profiles.yaml'} does not exist yet; run: jellybean profile {directory}")


@app.command(epilog=example("jellybean schema workflow > workflow.schema.json", "jellybean schema"))
def schema(
    document: Annotated[
        Schema | None, typer.Argument(metavar="[DOCUMENT]", help="One document; all by default.")
    ] = None,
) -> None:
    """Print the JSON Schemas of the documents, for completion in editors."""
    schemas = {name.lower(): value for name, value in json_schemas().items()}
    print_json(schemas if document is None else schemas[document.value])


def _count(items: Sized, name: str) -> str:
    return f"{len(items)} {name}{'s' * (len(items) != 1)}"


def check_project(directory: Path, overrides: list[str] | None) -> None:
    """Check folder and overrides for commands that do not load the documents otherwise. DocumentError if invalid."""
    require_folder(directory)
    if overrides:
        load_any_project(directory, overrides, profiles=not _unprofiled(directory))


def _unprofiled(directory: Path) -> list[Path]:
    """Folders of the project's workflows that have no profiles.yaml yet."""
    folders = workflow_folders(directory).values() or [directory]
    return [folder for folder in folders if not (folder / "profiles.yaml").exists()]


def _examples() -> Path:
    """The folder of example projects: in a checkout next to the package, in a wheel inside the package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / "vqa" / "workflow.yaml").exists():
            return folder
    raise JellyBeanError(f"the examples are missing from this installation ({package})")
