"""Several workflows on one fleet: `DIR/infrastructure.yaml`, and `DIR/workflows/NAME/` with each one's documents.

Each such folder is a project of its own too, on the same fleet: what a command does with one workflow, it does there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jellybean.documents.checks.names import check_infrastructure
from jellybean.documents.checks.profile_checks import check_types
from jellybean.documents.layout import INFRASTRUCTURE_FILE, PROFILES_FILE, WORKFLOW_FILE, is_shared, workflow_folders
from jellybean.documents.overrides import SECTIONS, apply_overrides_of
from jellybean.documents.project import Project, blamed, check_one, load_project, require_folder
from jellybean.documents.schema.error_words import Checked, check_tree
from jellybean.documents.schema.fields import NAME_PATTERN
from jellybean.documents.schema.models import InfrastructureDocument, WorkflowDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.reader import Tree, read_file
from jellybean.errors import DocumentError, DocumentProblem

_NAME = re.compile(NAME_PATTERN)
_RESERVED = frozenset([*SECTIONS, *(key for keys in SECTIONS.values() for key in keys)])


@dataclass(frozen=True)
class SharedProject:
    """Checked documents of several workflows on one fleet, by the name of each one's folder."""

    directory: Path
    infrastructure: InfrastructureDocument
    workflows: Mapping[str, Project]

    @property
    def name(self) -> str:
        """Of all together: the folder's."""
        return self.directory.resolve().name


AnyProject = Project | SharedProject


def load_any(directory: Path, overrides: Sequence[str] = (), *, profiles: bool = True) -> AnyProject:
    """A project of one workflow or of several, as `load_project`; `--set NAME.path=value` reaches one of several."""
    require_folder(directory)
    if not is_shared(directory):
        return load_project(directory, overrides, profiles=profiles)
    try:
        return _load(directory, overrides, profiles=profiles)
    except DocumentError as error:
        if not overrides:
            raise
        plain = partial(_load, directory, (), profiles=profiles)
        raise DocumentError(blamed(error.problems, plain, overrides)) from error


def _load(directory: Path, overrides: Sequence[str], *, profiles: bool) -> SharedProject:
    folders = workflow_folders(directory)
    problems = [*_misplaced(directory, folders)]
    fleet = read_file(directory / INFRASTRUCTURE_FILE)
    trees = {name: _trees(folder, profiles=profiles) for name, folder in folders.items()}
    problems += apply_overrides_of(fleet, trees, overrides)
    infrastructure = check_tree(InfrastructureDocument, fleet)
    check_infrastructure(infrastructure)
    workflows: dict[str, Checked[WorkflowDocument]] = {}
    profiled: dict[str, Checked[ProfilesDocument]] = {}
    for name, folder in folders.items():
        workflows[name] = workflow = check_tree(WorkflowDocument, trees[name]["workflow"])
        if profiles:
            profiled[name] = check_tree(ProfilesDocument, trees[name]["profiles"])
        check_one(folder, workflow, infrastructure, profiled.get(name))
        if workflow.document is not None and workflow.document.slo.budget_usd_per_h is not None:
            hint = f"write it into {INFRASTRUCTURE_FILE}: limits: {{budget: 10 USD/h}}"
            workflow.tree.add(("slo", "budget"), "where workflows share a fleet, the budget is one of all", hint)
    if profiles:
        check_types(infrastructure, [*profiled.values()])
    problems += [problem for tree in _all(fleet, trees) for problem in tree.problems]
    if problems or infrastructure.document is None:
        raise DocumentError(problems)
    found = {
        name: Project(folders[name], workflow.document, infrastructure.document, _document(profiled.get(name)))
        for name, workflow in workflows.items()
        if workflow.document is not None
    }
    return SharedProject(directory, infrastructure.document, found)


def _document(profiled: Checked[ProfilesDocument] | None) -> ProfilesDocument | None:
    return None if profiled is None else profiled.document


def _trees(folder: Path, *, profiles: bool) -> dict[str, Tree]:
    files = {"workflow": WORKFLOW_FILE, "profiles": PROFILES_FILE} if profiles else {"workflow": WORKFLOW_FILE}
    return {name: read_file(folder / file) for name, file in files.items()}


def _all(fleet: Tree, trees: Mapping[str, Mapping[str, Tree]]) -> list[Tree]:
    return [fleet, *(tree for own in trees.values() for tree in own.values())]


def _misplaced(directory: Path, folders: Mapping[str, Path]) -> list[DocumentProblem]:
    """Files that would be left unread, and folders whose name no `--set` could reach."""
    found: list[DocumentProblem] = []
    for file in (WORKFLOW_FILE, PROFILES_FILE):
        if (directory / file).exists():
            message = "a project holds one workflow here, or several in workflows/; there are both"
            hint = f"move it into workflows/NAME/{file}, or take workflows/ away"
            found.append(DocumentProblem(str(directory / file), None, None, "", message, hint))
    for name, folder in folders.items():
        if (folder / INFRASTRUCTURE_FILE).exists():
            message = f"a second fleet; that of all workflows is {directory / INFRASTRUCTURE_FILE}"
            found.append(DocumentProblem(str(folder / INFRASTRUCTURE_FILE), None, None, "", message, "remove it"))
        if not _NAME.fullmatch(name):
            message, hint = "the folder's name is the workflow's", "letters, digits, '_', '-' and '.', at most 63"
            found.append(DocumentProblem(str(folder), None, None, "", message, hint))
        elif name in _RESERVED:
            message = f"a workflow cannot be called {name}: documents have a key of that name"
            found.append(DocumentProblem(str(folder), None, None, "", message, "give the folder another name"))
    return found
