"""Commands validate and schema."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping, Sequence, Sized
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, example
from jellybean.cli.console import Advance, errors, lines_of_progress, out, print_json, say, warn
from jellybean.cli.exit_status import EXIT_BAD_INPUT
from jellybean.cli.failures import failure, status_of
from jellybean.cli.projects import (
    tell_never_measured,
    unservable_reasons,
    warn_about_figures,
    warn_about_hop,
    warn_about_stale_profiles,
)
from jellybean.cli.times import CheckLimit, command_limit
from jellybean.display.terminal import BAD
from jellybean.documents import (
    AnyProject,
    MultiWorkflowProject,
    build_problem,
    json_schemas,
    load_any_project,
    require_folder,
    written_projects,
)
from jellybean.documents.layout import WORKFLOW_FILE, workflow_folders
from jellybean.documents.todos import Todo, read_todos, remove_todos
from jellybean.errors import DocumentError, DocumentProblem, OutOfTimeError
from jellybean.folders import shell_text
from jellybean_solver import work_limit

if TYPE_CHECKING:
    from jellybean.documents.draft.port_comments import OutdatedComment
    from jellybean.documents.hashes import HashFix


_MOST_NAMED = 5  # models in a message


class Schema(StrEnum):
    """Documents that have a JSON Schema."""

    WORKFLOW = "workflow"
    INFRASTRUCTURE = "infrastructure"
    PROFILES = "profiles"
    TRAINING = "training"


@app.command(
    epilog=example(
        "jellybean validate my-digits",
        "jellybean validate my-digits --fix",
        "jellybean validate my-digits --set slo.accuracy=99 --json",
    )
)
def validate(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    stale: Stale = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="First write SHA-256 of models, and remove settled TODO comments; rewrite false ones on tensors.",
        ),
    ] = False,
    time_limit: CheckLimit = None,
) -> None:
    """Check all documents and print every problem with its file and line, then the TODOs in their comments."""
    fixed = _fix_hashes(directory) if fix else ()
    removed = _remove_settled(directory) if fix else ()
    comments = _port_comments(directory, fix=fix)
    try:
        unprofiled = _unprofiled(directory)
        project = load_any_project(directory, overrides or (), profiles=not unprofiled, accept_stale=stale)
        if not unprofiled:
            build_problem(project)
        _require_kubernetes(directory)
        with command_limit(time_limit):
            unloaded = _require_loaded_models(project, lines_of_progress("validate"))
    except DocumentError as first:
        error = _with_kubernetes(first, directory)
        todos = _todos_beside(directory, error.problems)
        if json:
            found = {"valid": False, "problems": [problem.to_dict() for problem in error.problems]}
            print_json({**found, **_json_lists(todos, fixed, removed, comments), **failure(error)})
        errors.print(str(error), style=BAD, soft_wrap=True)
        _print_todos(todos)
        raise typer.Exit(EXIT_BAD_INPUT) from first
    todos = read_todos(directory)
    warn_about_stale_profiles(project)
    warn_about_hop(project)
    warn_about_figures(project)
    tell_never_measured(project)
    for folder, reason in (unserved := unservable_reasons(project)).items():
        warn(f"{folder / WORKFLOW_FILE}: {reason}")
    parts = written_projects(project)
    if unloaded:
        lists = _json_lists(todos, fixed, removed, comments)
        status = _tell_not_loaded(unloaded, lists if json else None)
        _print_todos(todos)
        raise typer.Exit(status)
    if json:
        outdated = [entry.to_dict() for part in parts.values() for entry in part.all_stale]
        lists = _json_lists(todos, fixed, removed, comments)
        more = {"stale": outdated, "not_served": [*unserved.values()]}
        print_json({"valid": True, "problems": [], **lists, **{key: value for key, value in more.items() if value}})
        return
    fleet = project.infrastructure
    workflows = (
        f"{name}, {_count(part.workflow.operators, 'operator')}, {_count(part.workflow.sources, 'source')}"
        for name, part in parts.items()
    )
    count = sum(pool.count * fleet.sites.get(pool.tier, 1) for pool in fleet.workers.values())
    pools = next(iter(parts.values())).infrastructure.workers  # as written: sites that differ have each of their own
    workers = f"{count:,} worker{'s' * (count != 1)} in {_count(pools, 'pool')}"
    between = ", " if len(parts) == 1 else "; "
    sites = []
    if isinstance(project, MultiWorkflowProject) and project.written:
        sites = [f"{len(project.workflows) // len(project.written):,} sites"]
    out.print(f"valid: {between.join([*workflows, *sites, workers])}")
    for folder in unprofiled:
        warn(f"{folder / 'profiles.yaml'} does not exist yet; run: jellybean profile {shell_text(directory)}")
    _print_todos(todos)


def _require_loaded_models(project: AnyProject, advance: Advance) -> list[str]:
    """DocumentError for models that onnxruntime here does not load, which nothing in their signatures shows.

    Returns the variants that the time limit of the work left out, with their files.

    Those that its CPU provider has no kernels for may run on another device, and are warned of where a pool has such
    a device. Nothing is loaded without onnxruntime, which planning does not need.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return []
    from jellybean_agent import WorkLimit, load_problem

    limit = WorkLimit(lambda: work_limit().left(), lambda: OutOfTimeError("the time limit ended the load of a model"))
    problems: list[DocumentProblem] = []
    unloaded: list[str] = []
    parts = written_projects(project).values()
    operators = [spec for part in parts for spec in part.workflow.operators.values()]
    total = sum(files.model is not None for spec in operators for files in spec.variants.values())
    done = itertools.count()
    for part in parts:
        has_devices = not all(pool.worker_device.is_cpu for pool in part.infrastructure.workers.values())
        variants = ((name, spec.variants) for name, spec in part.workflow.operators.items())
        models = ((name, variant, files) for name, of in variants for variant, files in of.items() if files.model)
        for operator, variant, files in models:
            path = part.directory / (files.model or "")
            advance(next(done), total, f"model {operator} {variant}")
            try:
                problem = load_problem(path, files.sha256, limit) if files.sha256 and path.is_file() else None
            except OutOfTimeError:
                unloaded.append(f"{operator} {variant} ({path})")
                continue
            if problem is not None:
                where = f"operators.{operator}.variants.{variant}.model"
                file = str(part.directory / WORKFLOW_FILE)
                found = DocumentProblem(file, None, None, where, problem.reason, problem.hint)
                if problem.on_cpu_only and has_devices:
                    warn(str(found))
                else:
                    problems.append(found)
    if problems:
        if unloaded:
            warn(f"the time limit ended before these were loaded: {_some(unloaded)}")
        raise DocumentError(problems)
    return unloaded


def _tell_not_loaded(unloaded: Sequence[str], lists: Mapping[str, Any] | None) -> int:
    """Print that the time limit ended before these models were loaded; returns the exit status. `lists`: for JSON."""
    verb = "was" if len(unloaded) == 1 else "were"
    error = OutOfTimeError(
        f"no problem was found, but the time limit ended before {_count(unloaded, 'model')} {verb} loaded: "
        f"{_some(unloaded)}; allow more time"
    )
    if lists is not None:
        print_json({"valid": None, "problems": [], **lists, "not_loaded": list(unloaded), **failure(error)})
    errors.print(str(error), style=BAD, soft_wrap=True)
    return status_of(error)


def _some(names: Sequence[str]) -> str:
    """The first names of a list, and how many others there are."""
    others = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {others} more" if others > 0 else "")


def _require_kubernetes(directory: Path) -> None:
    """DocumentError if there is a kubernetes.yaml with problems."""
    from jellybean.documents.kubernetes import KUBERNETES_FILE, load_kubernetes

    if (directory / KUBERNETES_FILE).exists():
        load_kubernetes(directory)


def _with_kubernetes(error: DocumentError, directory: Path) -> DocumentError:
    """The error, with the problems of kubernetes.yaml beside those of the other documents."""
    try:
        _require_kubernetes(directory)
    except DocumentError as more:
        return DocumentError(list(dict.fromkeys([*error.problems, *more.problems])))
    return error


def _fix_hashes(directory: Path) -> Sequence[HashFix]:
    """Say which hashes are missing or wrong, then write them."""
    from jellybean.documents.hashes import write_hashes, wrong_hashes

    require_folder(directory)
    fixes = wrong_hashes(directory)
    for fix in fixes:
        say(f"writes {fix}")
    write_hashes(fixes)
    if not fixes:
        say("all hashes are those of the files")
    return fixes


def _remove_settled(directory: Path) -> Sequence[Todo]:
    """Remove the comments of a draft that are settled, and say which."""
    removed = remove_todos(read_todos(directory))
    for todo in removed:
        left = f"; the TODO in its place: {todo.follow_up}" if todo.follow_up else ""
        say(f"removed the TODO {todo} ({todo.resolved_reason}){left}")
    return removed


def _port_comments(directory: Path, *, fix: bool) -> Sequence[OutdatedComment]:
    """Say which comments of a draft name other tensors than the models have, and rewrite them with `fix`."""
    from jellybean.documents.draft.port_comments import outdated_port_comments, rewrite_port_comments

    comments = outdated_port_comments(directory)
    for comment in comments:
        say(f"rewrote the comment {comment}" if fix else f"false comment: {comment}; `validate --fix` rewrites it")
    if fix:
        rewrite_port_comments(comments)
    return comments


def _todos_beside(directory: Path, problems: Sequence[DocumentProblem]) -> Sequence[Todo]:
    """The TODO comments that no problem repeats: those beside or above a value that is still TODO."""
    reported = {(problem.file, problem.hint) for problem in problems}
    return [todo for todo in read_todos(directory) if (todo.file, todo.text) not in reported]


def _print_todos(todos: Sequence[Todo]) -> None:
    """Print the TODO comments, which do not keep a plan from being made, in order, then those that are settled."""
    for todo in todos:
        if not todo.resolved_reason:
            warn(f"TODO {todo}{f' ({todo.fits_now})' if todo.fits_now else ''}")
    for todo in todos:
        if todo.resolved_reason:
            other_way = "" if todo.beside_value else ", or have `validate --fix` do it"
            left = f"; left to do: {todo.follow_up}" if todo.follow_up else ""
            say(f"settled: {todo} ({todo.resolved_reason}): remove this comment{other_way}{left}")


def _json_lists(
    todos: Sequence[Todo], fixed: Sequence[HashFix], removed: Sequence[Todo], comments: Sequence[OutdatedComment]
) -> dict[str, Any]:
    """TODO comments, written hashes, removed and false comments as JSON; left out where there are none."""
    lists = {
        "todos": [todo.to_dict() for todo in todos],
        "fixed": [fix.to_dict() for fix in fixed],
        "removed": [todo.to_dict() for todo in removed],
        "comments": [comment.to_dict() for comment in comments],
    }
    return {name: entries for name, entries in lists.items() if entries}


@app.command(epilog=example("jellybean schema workflow > workflow.schema.json", "jellybean schema"))
def schema(
    document: Annotated[
        Schema | None, typer.Argument(metavar="[DOCUMENT]", help="One document; all by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the JSON Schemas of the documents, for completion in editors.

    They are JSON in any case; with --json so are errors.
    """
    del json  # read with the command line, for errors
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
