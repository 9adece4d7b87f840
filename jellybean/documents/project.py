"""A project: a folder with a workflow, an infrastructure and profiles, read and checked as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jellybean.documents.checks import check_infrastructure, check_reach, check_tiers, check_workflow
from jellybean.documents.explain import Checked, check_tree
from jellybean.documents.files import check_files
from jellybean.documents.models import InfrastructureDocument, WorkflowDocument
from jellybean.documents.overrides import apply_overrides, option_text
from jellybean.documents.profile_checks import check_profiles
from jellybean.documents.profiles import ProfilesDocument
from jellybean.documents.reader import read_file
from jellybean.errors import DocumentError, DocumentProblem

WORKFLOW_FILE = "workflow.yaml"
INFRASTRUCTURE_FILE = "infrastructure.yaml"
PROFILES_FILE = "profiles.yaml"
FILES = {"workflow": WORKFLOW_FILE, "infrastructure": INFRASTRUCTURE_FILE, "profiles": PROFILES_FILE}


@dataclass(frozen=True)
class Project:
    """Checked documents, in SI. `profiles` is None when they were not asked for."""

    directory: Path
    workflow: WorkflowDocument
    infrastructure: InfrastructureDocument
    profiles: ProfilesDocument | None = None


def load_project(directory: Path, overrides: Sequence[str] = (), *, profiles: bool = True) -> Project:
    """Read and check a project's documents, `--set` options applied. DocumentError lists every problem at once."""
    try:
        return _load(directory, overrides, profiles=profiles)
    except DocumentError as error:
        if not overrides:
            raise
        raise DocumentError(_blamed(error.problems, directory, overrides, profiles=profiles)) from error


def _blamed(
    problems: Sequence[DocumentProblem], directory: Path, overrides: Sequence[str], *, profiles: bool
) -> list[DocumentProblem]:
    """Problems of the files that are not there without the overrides are told at the overrides."""
    try:
        _load(directory, (), profiles=profiles)
        before: frozenset[DocumentProblem] = frozenset()
    except DocumentError as error:
        before = frozenset(error.problems)
    options = " ".join(option_text(text) for text in overrides)
    found: list[DocumentProblem] = []
    for problem in problems:
        if problem.line is None or problem in before:
            found.append(problem)
        else:
            message = f"{problem.message} ({problem.file}:{problem.line})"
            found.append(DocumentProblem(options, None, None, problem.path, message, problem.hint))
    return found


def _load(directory: Path, overrides: Sequence[str], *, profiles: bool) -> Project:
    names = [name for name in FILES if profiles or name != "profiles"]
    trees = {name: read_file(directory / FILES[name]) for name in names}
    problems = apply_overrides(trees, overrides)
    workflow = check_tree(WorkflowDocument, trees["workflow"])
    infrastructure = check_tree(InfrastructureDocument, trees["infrastructure"])
    profiled = check_tree(ProfilesDocument, trees["profiles"]) if profiles else None
    _check_all(directory, workflow, infrastructure, profiled)
    problems += [problem for tree in trees.values() for problem in tree.problems]
    if problems or workflow.document is None or infrastructure.document is None:
        raise DocumentError(problems)
    return Project(directory, workflow.document, infrastructure.document, profiled.document if profiled else None)


def _check_all(
    directory: Path,
    workflow: Checked[WorkflowDocument],
    infrastructure: Checked[InfrastructureDocument],
    profiles: Checked[ProfilesDocument] | None,
) -> None:
    flow = check_workflow(workflow)
    check_infrastructure(infrastructure)
    check_tiers(workflow, infrastructure)
    check_files(workflow, flow, directory)
    runs_on = check_profiles(workflow, infrastructure, profiles, flow) if profiles is not None else {}
    check_reach(workflow, infrastructure, flow, runs_on)
