"""A project: a folder with a workflow, an infrastructure and profiles, read and checked as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jellybean.documents.checks.cuts_checks import check_cuts
from jellybean.documents.checks.files import check_files
from jellybean.documents.checks.names import check_infrastructure, check_reach, check_tiers, check_workflow
from jellybean.documents.checks.profile_checks import check_batches, check_profiles, check_types
from jellybean.documents.layout import WORKFLOW_FILE, files_of, is_shared, shared_fleet, workflow_folders
from jellybean.documents.overrides import apply_overrides, option_text
from jellybean.documents.schema.error_words import Checked, check_tree
from jellybean.documents.schema.models import InfrastructureDocument, WorkflowDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.reader import read_file
from jellybean.documents.schema.units import nearest
from jellybean.errors import DocumentError, DocumentProblem

_MOST_NAMED = 3
_INIT = "`jellybean init digits DIR` makes a project from an example"


@dataclass(frozen=True)
class Project:
    """Checked documents, in SI. `profiles` is None when they were not asked for."""

    directory: Path
    workflow: WorkflowDocument
    infrastructure: InfrastructureDocument
    profiles: ProfilesDocument | None = None


def load_project(
    directory: Path, overrides: Sequence[str] = (), *, profiles: bool = True, files: bool = True
) -> Project:
    """Read and check a project's documents, `--set` options applied. DocumentError lists every problem at once.

    `files`: models and arrays are here too, and are looked at.
    """
    require_folder(directory)
    if is_shared(directory):
        raise DocumentError([_several(directory)])
    if not any(file.exists() for file in files_of(directory).values()):
        raise DocumentError([_no_documents(directory)])
    try:
        return _load(directory, overrides, profiles=profiles, files=files)
    except DocumentError as error:
        if not overrides:
            raise
        plain = partial(_load, directory, (), profiles=profiles, files=files)
        raise DocumentError(blamed(error.problems, plain, overrides)) from error


def require_folder(directory: Path) -> None:
    """DocumentError unless there is a folder of this name."""
    if directory.is_dir():
        return
    if directory.exists():
        hint = f"name the folder that it is in: {directory.parent}"
        message = "is a file; a project is a folder"
    else:
        near = nearest(directory.name, [path.name for path in _near_projects(directory.parent)])
        hint = f"did you mean {directory.parent / near}?" if near else _INIT
        message = "there is no such folder"
    raise DocumentError([DocumentProblem(str(directory), None, None, "", message, hint)])


def _no_documents(directory: Path) -> DocumentProblem:
    """Told once, not for each document; names a project below it if there is one."""
    below = [str(path) for path in _near_projects(directory)][:_MOST_NAMED]
    named = f"did you mean {' or '.join(below)}?" if below else _INIT
    message = f"holds no project: there is no {WORKFLOW_FILE} in it"
    return DocumentProblem(str(directory), None, None, "", message, named)


def _near_projects(folder: Path) -> list[Path]:
    """Projects right below a folder."""
    try:
        return sorted(path.parent for path in folder.glob(f"*/{WORKFLOW_FILE}"))
    except OSError:
        return []


def _several(directory: Path) -> DocumentProblem:
    """For commands that work with one workflow."""
    folders = [str(folder) for folder in workflow_folders(directory).values()]
    message = f"holds {len(folders)} workflows on one fleet, and this command works with one"
    return DocumentProblem(str(directory), None, None, "", message, f"name its folder: {' or '.join(folders)}")


def blamed(
    problems: Sequence[DocumentProblem], plain: Callable[[], object], overrides: Sequence[str]
) -> list[DocumentProblem]:
    """Problems that are not there in the `plain` documents, without the overrides, are told at the overrides."""
    try:
        plain()
        before: frozenset[DocumentProblem] = frozenset()
    except DocumentError as error:
        before = frozenset(error.problems)
    options = " ".join(option_text(text) for text in overrides)
    found = [problem for problem in problems if problem.line is None or problem in before]
    alike: dict[tuple[str, str, str], list[DocumentProblem]] = {}
    for problem in problems:
        if problem.line is not None and problem not in before:
            alike.setdefault((problem.file, problem.message, problem.hint), []).append(problem)
    for (file, text, hint), group in alike.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        message = f"{text} ({file}:{group[0].line}{more})"
        found.append(DocumentProblem(options, None, None, group[0].path, message, hint))
    return found


def _load(directory: Path, overrides: Sequence[str], *, profiles: bool, files: bool) -> Project:
    documents = files_of(directory)
    trees = {name: read_file(file) for name, file in documents.items() if profiles or name != "profiles"}
    problems = apply_overrides(trees, overrides)
    workflow = check_tree(WorkflowDocument, trees["workflow"])
    infrastructure = check_tree(InfrastructureDocument, trees["infrastructure"])
    profiled = check_tree(ProfilesDocument, trees["profiles"]) if profiles else None
    check_infrastructure(infrastructure)
    check_one(directory if files else None, workflow, infrastructure, profiled)
    if shared_fleet(directory) is None:
        _own_fleet(infrastructure, profiled)
    problems += [problem for tree in trees.values() for problem in tree.problems]
    if problems or workflow.document is None or infrastructure.document is None:
        raise DocumentError(problems)
    return Project(directory, workflow.document, infrastructure.document, profiled.document if profiled else None)


def _own_fleet(infrastructure: Checked[InfrastructureDocument], profiles: Checked[ProfilesDocument] | None) -> None:
    """What is said of a fleet that serves one workflow only."""
    if profiles is not None:
        check_types(infrastructure, [profiles])
    document = infrastructure.document
    if document is not None and document.limits.budget_usd_per_h is not None:
        message = "this budget is of several workflows, and there is one"
        infrastructure.tree.add(("limits", "budget"), message, f"write slo: {{budget: ...}} into {WORKFLOW_FILE}")


def check_one(
    directory: Path | None,
    workflow: Checked[WorkflowDocument],
    infrastructure: Checked[InfrastructureDocument],
    profiles: Checked[ProfilesDocument] | None,
) -> None:
    """One workflow and its profiles against the fleet, and against the files of its `directory`."""
    flow = check_workflow(workflow, infrastructure)
    check_tiers(workflow, infrastructure)
    models = check_files(workflow, flow, directory) if directory is not None else {}
    runs_on = check_profiles(workflow, infrastructure, profiles, flow) if profiles is not None else {}
    if profiles is not None:
        check_batches(profiles, models)
    check_cuts(workflow, infrastructure, profiles, directory)
    check_reach(workflow, infrastructure, flow, runs_on)
