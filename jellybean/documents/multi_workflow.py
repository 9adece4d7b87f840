"""Load several workflows that share one fleet: `DIR/infrastructure.yaml` and the documents in `DIR/workflows/NAME/`.

Each `workflows/NAME` folder is also a project of its own on the shared fleet, for commands that take one workflow.
A project whose sites differ is one of several workflows too, one for each site.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from jellybean.documents.cascades.cascade import Cascade, check_measured, without_cascades
from jellybean.documents.cascades.checked import CheckedProject
from jellybean.documents.checks.audit_checks import check_audit
from jellybean.documents.checks.model_fit import Models
from jellybean.documents.checks.profile_checks import check_types
from jellybean.documents.checks.site_checks import check_sites_that_differ, most_of_any_site
from jellybean.documents.checks.workflow_checks import check_infrastructure
from jellybean.documents.garbage import cycle_search_paused
from jellybean.documents.layout import (
    INFRASTRUCTURE_FILE,
    PROFILES_FILE,
    WORKFLOW_FILE,
    holds_several_workflows,
    workflow_folders,
)
from jellybean.documents.overrides import SECTIONS, apply_multi_workflow_overrides, by_document, last_of_each_path
from jellybean.documents.project import (
    Project,
    blame_overrides,
    check_one_workflow,
    checked_project,
    load_written_project,
    require_folder,
    with_cascades,
)
from jellybean.documents.schema.fields import NAME_PATTERN
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.reader import Tree, read_file
from jellybean.documents.schema.validation import CheckedDocument, validate_tree
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.documents.unlike_sites import UnlikeSites
from jellybean.errors import DocumentError, DocumentProblem

_NAME = re.compile(NAME_PATTERN)
_RESERVED = frozenset([*SECTIONS, *(key for keys in SECTIONS.values() for key in keys)])


@dataclass(frozen=True)
class MultiWorkflowProject:
    """Validated documents of several workflows on one fleet, keyed by folder name; by site if sites differ.

    `overrides`: as of a `Project`. `written`: the projects as their documents state them, if they are expanded by site,
    by name of the workflow ("" for the only one): each site has a workflow of each, called by `name_at`.
    """

    directory: Path
    infrastructure: InfrastructureDocument
    workflows: Mapping[str, Project]
    overrides: tuple[str, ...] = ()
    written: Mapping[str, Project] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the project: its folder's name, or that of the workflow of all sites."""
        only = self.written.get("")
        return self.directory.resolve().name if only is None else only.workflow.name

    @property
    def written_workflows(self) -> Mapping[str, Project]:
        """The projects that documents state, each once: a workflow of many sites is one."""
        return {name or self.name: project for name, project in (self.written or self.workflows).items()}

    def written_name(self, workflow: str) -> str:
        """The key in `written` of a workflow of a site."""
        return workflow.rpartition(SITE_SEPARATOR)[0]


SITE_SEPARATOR = "@"  # is in no name of the documents


def name_at(workflow: str, site: str) -> str:
    """What a workflow is called in a site that differs: the site's name for the only one, else `shop@berlin`."""
    return f"{workflow}{SITE_SEPARATOR}{site}" if workflow else site


AnyProject = Project | MultiWorkflowProject


@cycle_search_paused()
def load_any_project(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    profiles: bool = True,
    files: bool = True,
    accept_stale: bool = False,
) -> AnyProject:
    """Load a project of one or several workflows; arguments and errors as in `load_project`.

    With several workflows, the override `NAME.path=value` changes the workflow NAME.
    """
    require_folder(directory)
    if not holds_several_workflows(directory):
        project = load_written_project(directory, overrides, profiles=profiles, files=files, accept_stale=accept_stale)
        if project.site_table is None:
            return project
        return by_site(project.directory, {"": project}, project.workflow.slo.budget_usd_per_h, project.overrides)
    try:
        return _load(directory, overrides, profiles=profiles, files=files, accept_stale=accept_stale)
    except DocumentError as error:
        if not overrides:
            raise
        plain = partial(_load, directory, (), profiles=profiles, files=files)
        raise DocumentError(blame_overrides(error.problems, plain, overrides)) from error


def by_site(
    directory: Path, written: Mapping[str, Project], budget: float | None, overrides: tuple[str, ...]
) -> MultiWorkflowProject:
    """The project with each written workflow in each of its sites, which differ."""
    sites = {name: UnlikeSites(one, one.site_table) for name, one in written.items() if one.site_table is not None}
    workflows = {
        name_at(name, site): project for name, own in sites.items() for site, project in own.workflows().items()
    }
    fleet = next(iter(sites.values())).fleet(budget)
    return MultiWorkflowProject(directory, fleet, workflows, overrides, written)


def written_projects(project: AnyProject) -> Mapping[str, Project]:
    """The projects that documents state, by the name of their workflow: what is measured, checked and warned about."""
    return project.written_workflows if isinstance(project, MultiWorkflowProject) else {project.workflow.name: project}


def _load(
    directory: Path, overrides: Sequence[str], *, profiles: bool, files: bool, accept_stale: bool = False
) -> MultiWorkflowProject:
    folders = workflow_folders(directory)
    problems = [*_misplaced(directory, folders)]
    fleet = read_file(directory / INFRASTRUCTURE_FILE)
    trees = {name: _trees(folder, profiles=profiles) for name, folder in folders.items()}
    beside = [text for text in by_document(overrides)[1] if not any(text.startswith(f"{name}.") for name in folders)]
    problems += apply_multi_workflow_overrides(fleet, trees, [text for text in overrides if text not in beside])
    infrastructure = validate_tree(InfrastructureDocument, fleet)
    if infrastructure.document is None or not infrastructure.document.site_files:
        problems += apply_multi_workflow_overrides(fleet, trees, beside)
    workflows: dict[str, CheckedDocument[WorkflowDocument]] = {}
    profiled: dict[str, CheckedDocument[ProfilesDocument]] = {}
    models: dict[str, Models] = {}
    cascades: dict[str, tuple[Cascade, ...]] = {}
    for name in folders:
        written = validate_tree(WorkflowDocument, trees[name]["workflow"])
        workflows[name], cascades[name] = without_cascades(written, has_files=files or not profiles)
        if profiles:
            profiled[name] = validate_tree(ProfilesDocument, trees[name]["profiles"])
            check_measured(written, profiled[name])
    table = check_sites_that_differ(workflows, infrastructure, profiled, overrides=beside)
    in_any_site = infrastructure
    if infrastructure.document is not None and table is not None:
        in_any_site = replace(infrastructure, document=most_of_any_site(infrastructure.document, table))
    check_infrastructure(in_any_site)
    for name, folder in folders.items():
        workflow = workflows[name]
        models[name] = check_one_workflow(folder if files else None, workflow, in_any_site, profiled.get(name))
        _check_targets(workflow)
        check_audit(workflow)
    if profiles:
        check_types(in_any_site, [*profiled.values()])
    problems += [problem for tree in _all_trees(fleet, trees) for problem in tree.problems]
    if problems or infrastructure.document is None:
        raise DocumentError(problems)
    projects = {
        name: checked_project(
            folders[name], workflow.document, infrastructure.document, profiled.get(name), models[name], files=files
        )
        for name, workflow in workflows.items()
        if workflow.document is not None
    }
    for name, project in projects.items():
        checked = CheckedProject(workflows[name], in_any_site, profiled.get(name), models[name])
        of_sites = replace(project, site_table=None if table is None else table.of_workflow(name))
        own = with_cascades(of_sites, checked, cascades[name] if files or profiles else (), files=files)
        projects[name] = replace(own, accept_stale=accept_stale)
    stated = last_of_each_path(overrides)
    if table is not None:
        return by_site(directory, projects, infrastructure.document.limits.budget_usd_per_h, stated)
    return MultiWorkflowProject(directory, infrastructure.document, projects, stated)


def _check_targets(workflow: CheckedDocument[WorkflowDocument]) -> None:
    """Add problems of targets that a workflow on a common fleet cannot have."""
    if workflow.document is None:
        return
    slo = workflow.document.slo
    if slo.budget_usd_per_h is not None:
        hint = f"write it into {INFRASTRUCTURE_FILE}: limits: {{budget: 10 USD/h}}"
        workflow.tree.add(("slo", "budget"), "workflows that share a fleet have one budget", hint)


def _trees(folder: Path, *, profiles: bool) -> dict[str, Tree]:
    files = {"workflow": WORKFLOW_FILE, "profiles": PROFILES_FILE} if profiles else {"workflow": WORKFLOW_FILE}
    return {name: read_file(folder / file) for name, file in files.items()}


def _all_trees(fleet: Tree, trees: Mapping[str, Mapping[str, Tree]]) -> list[Tree]:
    return [fleet, *(tree for own in trees.values() for tree in own.values())]


def _misplaced(directory: Path, folders: Mapping[str, Path]) -> list[DocumentProblem]:
    """Problems: documents in the wrong folder, and workflow folders whose name a `--set` path cannot express."""
    problems: list[DocumentProblem] = []
    for file in (WORKFLOW_FILE, PROFILES_FILE):
        if (directory / file).exists():
            message = "a project has one workflow here or several in workflows/, not both"
            hint = f"move it into workflows/NAME/{file}, or remove workflows/"
            problems.append(DocumentProblem(str(directory / file), None, None, "", message, hint))
    for name, folder in folders.items():
        if (folder / INFRASTRUCTURE_FILE).exists():
            message = f"a second fleet; all workflows use {directory / INFRASTRUCTURE_FILE}"
            problems.append(DocumentProblem(str(folder / INFRASTRUCTURE_FILE), None, None, "", message, "remove it"))
        if not _NAME.fullmatch(name):
            message, hint = (
                "the folder's name is not a valid workflow name",
                "use at most 63 letters, digits, '_', '-' and '.'",
            )
            problems.append(DocumentProblem(str(folder), None, None, "", message, hint))
        elif name in _RESERVED:
            message = f"a workflow cannot be named {name}, because a document key has that name"
            problems.append(DocumentProblem(str(folder), None, None, "", message, "give the folder another name"))
    return problems
