"""Load a project: a folder with a workflow, an infrastructure and profiles, validated together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jellybean.documents.cascades.cascade import (
    Cascade,
    check_measured,
    without_cascades,
)
from jellybean.documents.cascades.checked import CheckedProject, checked_cascade
from jellybean.documents.checks.audit_checks import check_audit
from jellybean.documents.checks.cuts_checks import check_cuts
from jellybean.documents.checks.files import check_files
from jellybean.documents.checks.label_checks import check_labels
from jellybean.documents.checks.model_fit import Models
from jellybean.documents.checks.profile_checks import check_batches, check_profiles, check_types
from jellybean.documents.checks.site_checks import check_sites_that_differ, most_of_any_site
from jellybean.documents.checks.state_checks import check_states
from jellybean.documents.checks.workflow_checks import (
    check_infrastructure,
    check_reachable_workers,
    check_resources,
    check_tiers,
    check_workflow,
)
from jellybean.documents.figure_notes import message_notes, ratio_notes
from jellybean.documents.flow import follow_requests
from jellybean.documents.garbage import cycle_search_paused
from jellybean.documents.layout import (
    WORKFLOW_FILE,
    document_files,
    holds_several_workflows,
    shared_infrastructure_file,
    workflow_folders,
)
from jellybean.documents.overrides import apply_overrides, by_document, last_of_each_path, option_text
from jellybean.documents.provenance.content import Content, read_content
from jellybean.documents.provenance.staleness import StaleProfile, notes_on_machines, stale_profiles
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.reader import read_file
from jellybean.documents.schema.validation import CheckedDocument, validate_tree
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.documents.site_table import SiteTable
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.folders import shell_text
from jellybean.quantities import nearest_name
from jellybean_agent import this_machine

_MAX_SUGGESTIONS = 3
_INIT = "`jellybean init digits DIR` makes a project from an example"


@dataclass(frozen=True)
class Project:
    """Validated documents in SI units. `profiles` is None if they were not loaded.

    `content`: the content of its files. `stale`: entries of the profiles that no longer match it. `accept_stale`: the
    problem may be built from them. `overrides`: the `--set` options that the documents were changed by.
    `figure_notes`: figures of the workflow that its models or profiles contradict. `site_table`: sites that differ, in
    a project as it is written; each of them is planned as a project of its own. `alternatives`: the same project with
    each cascade of its workflow, of which `workflow` has none; `cascade`: the one of such a project.
    """

    directory: Path
    workflow: WorkflowDocument
    infrastructure: InfrastructureDocument
    profiles: ProfilesDocument | None = None
    content: Content | None = None
    stale: tuple[StaleProfile, ...] = ()
    accept_stale: bool = False
    overrides: tuple[str, ...] = ()
    figure_notes: tuple[str, ...] = ()
    site_table: SiteTable | None = None
    alternatives: tuple[Project, ...] = ()
    cascade: Cascade | None = None

    @property
    def candidates(self) -> tuple[Project, ...]:
        """The projects of which a plan is made, one of them: without cascades, and with each."""
        return (replace(self, alternatives=()), *self.alternatives)

    @property
    def chosen_cascade(self) -> tuple[str, str] | None:
        """Operator and variant of its cascade; None without one."""
        return None if self.cascade is None else (self.cascade.operator, self.cascade.variant)

    @property
    def all_stale(self) -> tuple[StaleProfile, ...]:
        """The stale entries of all candidates."""
        return tuple(dict.fromkeys(one for project in self.candidates for one in project.stale))


def load_project(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    profiles: bool = True,
    files: bool = True,
    accept_stale: bool = False,
) -> Project:
    """Read and validate a project's documents after applying `--set` options. DocumentError lists all problems.

    `profiles`: also load profiles.yaml. `files`: also check the model and array files that the documents name.
    `accept_stale`: a problem may be built from profiles that no longer match the files. Sites that differ are refused.
    """
    project = load_written_project(directory, overrides, profiles=profiles, files=files, accept_stale=accept_stale)
    if project.site_table is not None:
        raise DocumentError([_sites_that_differ(directory, project.site_table)])
    return project


@cycle_search_paused()
def load_written_project(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    profiles: bool = True,
    files: bool = True,
    accept_stale: bool = False,
) -> Project:
    """As `load_project`, but a project whose sites differ is returned as it is written, with their table."""
    require_folder(directory)
    if holds_several_workflows(directory):
        raise DocumentError([_several_workflows(directory)])
    if not any(file.exists() for file in document_files(directory).values()):
        raise DocumentError([_no_documents(directory)])
    try:
        project = _load(directory, overrides, profiles=profiles, files=files)
    except DocumentError as error:
        if not overrides:
            raise
        plain = partial(_load, directory, (), profiles=profiles, files=files)
        raise DocumentError(blame_overrides(error.problems, plain, overrides)) from error
    settings = replace(project, accept_stale=accept_stale, overrides=last_of_each_path(overrides))
    own = (replace(one, accept_stale=accept_stale, overrides=settings.overrides) for one in project.alternatives)
    return replace(settings, alternatives=tuple(own))


def require_folder(directory: Path) -> None:
    """DocumentError unless `directory` is an existing folder."""
    if directory.is_dir():
        return
    if directory.exists():
        hint = f"name its folder: {directory.parent}"
        message = "is a file; a project is a folder"
    else:
        near = nearest_name(directory.name, [path.name for path in _near_projects(directory.parent)])
        hint = f"did you mean {directory.parent / near}?" if near else _INIT
        message = "folder not found"
    raise DocumentError([DocumentProblem(str(directory), None, None, "", message, hint)])


def _no_documents(directory: Path) -> DocumentProblem:
    """The problem of a folder that has no documents; its hint names projects in the subfolders."""
    candidates = [str(path) for path in _near_projects(directory)][:_MAX_SUGGESTIONS]
    has_models = any(any(directory.glob(pattern)) for pattern in ("*.onnx", "models/*.onnx"))
    start = f"jellybean init {shell_text(directory)} --from {shell_text(directory)}" if has_models else _INIT
    named = f"did you mean {' or '.join(candidates)}?" if candidates else start
    message = f"is not a project: it has no {WORKFLOW_FILE}"
    return DocumentProblem(str(directory), None, None, "", message, named)


def _near_projects(folder: Path) -> list[Path]:
    """Projects in direct subfolders of a folder."""
    try:
        return sorted(path.parent for path in folder.glob(f"*/{WORKFLOW_FILE}"))
    except OSError:
        return []


def _several_workflows(directory: Path) -> DocumentProblem:
    """The problem of a multi-workflow project given to a command for one workflow."""
    folders = [str(folder) for folder in workflow_folders(directory).values()]
    message = f"has {len(folders)} workflows on one fleet, but this command takes one"
    return DocumentProblem(str(directory), None, None, "", message, f"name the folder of one: {' or '.join(folders)}")


def _sites_that_differ(directory: Path, table: SiteTable) -> DocumentProblem:
    """The problem of a project with sites that differ, given to a command for one workflow."""
    count = f"{len(table.sites)} site{'s' * (len(table.sites) != 1)}"
    message = (
        f"has {count} that differ ({table.file.name}), each planned as a workflow of its own, but this command takes "
        "one workflow: a plan of several is not served yet"
    )
    hint = f"write a number of identical sites: --set sites.{table.tier}=2"
    return DocumentProblem(str(directory), None, None, "", message, hint)


def blame_overrides(
    problems: Sequence[DocumentProblem], plain: Callable[[], object], overrides: Sequence[str]
) -> list[DocumentProblem]:
    """Relocate problems that are due to overrides to the `--set` options.

    A problem is not due to them if `plain`, which loads the documents without overrides, reports it too.
    """
    try:
        plain()
        before: frozenset[DocumentProblem] = frozenset()
    except DocumentError as error:
        before = frozenset(error.problems)
    options = " ".join(option_text(text) for text in overrides)
    result = [problem for problem in problems if problem.line is None or problem in before]
    alike: dict[tuple[str, str, str], list[DocumentProblem]] = {}
    for problem in problems:
        if problem.line is not None and problem not in before:
            alike.setdefault((problem.file, problem.message, problem.hint), []).append(problem)
    for (file, text, hint), group in alike.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        message = f"{text} ({file}:{group[0].line}{more})"
        result.append(DocumentProblem(options, None, None, group[0].path, message, hint))
    return result


def _load(directory: Path, overrides: Sequence[str], *, profiles: bool, files: bool) -> Project:
    documents = document_files(directory)
    trees = {name: read_file(file) for name, file in documents.items() if profiles or name != "profiles"}
    of_documents, of_sites = by_document(overrides)
    problems = apply_overrides(trees, of_documents)
    written = validate_tree(WorkflowDocument, trees["workflow"])
    infrastructure = validate_tree(InfrastructureDocument, trees["infrastructure"])
    several = infrastructure.document is not None and infrastructure.document.site_files
    workflow, cascades = without_cascades(written, has_files=files or not profiles)
    check_audit(workflow)
    profiled = validate_tree(ProfilesDocument, trees["profiles"]) if profiles else None
    check_measured(written, profiled)
    is_shared = shared_infrastructure_file(directory) is not None
    name = directory.resolve().name if is_shared else ""
    others = workflow_folders(directory.parent.parent) if is_shared else ()
    profiles_by_name = {} if profiled is None else {name: profiled}
    table = check_sites_that_differ(
        {name: workflow}, infrastructure, profiles_by_name, others=others, overrides=of_sites
    )
    if not several:
        problems += apply_overrides(trees, of_sites)
    in_any_site = infrastructure
    if infrastructure.document is not None and table is not None:
        in_any_site = replace(infrastructure, document=most_of_any_site(infrastructure.document, table))
    check_infrastructure(in_any_site)
    models = check_one_workflow(directory if files else None, workflow, in_any_site, profiled)
    if not is_shared:
        _check_unshared_fleet(infrastructure, profiled)
    problems += [problem for tree in trees.values() for problem in tree.problems]
    if problems or workflow.document is None or infrastructure.document is None:
        raise DocumentError(problems)
    project = checked_project(directory, workflow.document, infrastructure.document, profiled, models, files=files)
    project = replace(project, site_table=None if table is None else table.of_workflow(name))
    checked = CheckedProject(workflow, in_any_site, profiled, models)
    return with_cascades(project, checked, cascades if files or profiles else (), files=files)


def with_cascades(
    project: Project, checked: CheckedProject, cascades: Sequence[Cascade], *, files: bool = True
) -> Project:
    """The project with an alternative for each cascade. DocumentError if one of them is not right."""
    alternatives: list[Project] = []
    for cascade in cascades:
        if (found := checked_cascade(cascade, checked)) is not None:
            own = checked_project(project.directory, *found, files=files)
            replaced = {(cascade.operator, variant) for variant in cascade.whole.variants}
            others = [one for one in project.stale if not {(e.operator, e.variant) for e in one.entries} <= replaced]
            own = replace(own, infrastructure=project.infrastructure, site_table=project.site_table)
            alternatives.append(replace(own, cascade=cascade, stale=(*others, *own.stale)))
    if problems := checked.problems:
        raise DocumentError(problems)
    return replace(project, alternatives=tuple(alternatives))


def read_profiles(directory: Path) -> ProfilesDocument | None:
    """The profiles of a project, not checked against its other documents; None if there is no file yet.

    DocumentError if the file is invalid.
    """
    file = document_files(directory)["profiles"]
    if not file.exists():
        return None
    checked = validate_tree(ProfilesDocument, read_file(file))
    if checked.document is None or checked.tree.problems:
        raise DocumentError(checked.tree.problems)
    return checked.document


def machine_notes(project: Project) -> tuple[str, ...]:
    """Notes on times of the project's profiles that were not measured on this machine, or on unlike ones."""
    if project.profiles is None or project.content is None or not project.profiles.runs:
        return ()
    return notes_on_machines(project.profiles, project.content.speeds, this_machine())


def checked_project(
    directory: Path,
    workflow: WorkflowDocument,
    infrastructure: InfrastructureDocument,
    profiles: CheckedDocument[ProfilesDocument] | None,
    models: Models,
    *,
    files: bool = True,
) -> Project:
    """The project of checked documents, with the content of its files and the entries of its profiles that are stale.

    `models`: signatures of the models. `files`: the files that the documents name are in `directory`.
    """
    content = read_content(directory if files else None, workflow, infrastructure, models)
    document = profiles.document if profiles is not None else None
    stale = stale_profiles(document, content, profiles.tree) if profiles is not None and document is not None else ()
    edges = follow_requests(workflow, infrastructure.sites).edges
    notes = list(message_notes(workflow, edges, models))
    if document is not None:
        notes += ratio_notes(workflow, edges, document)
    return Project(directory, workflow, infrastructure, document, content, stale, figure_notes=tuple(notes))


def _check_unshared_fleet(
    infrastructure: CheckedDocument[InfrastructureDocument], profiles: CheckedDocument[ProfilesDocument] | None
) -> None:
    """Check a fleet with a single workflow: worker types occur in the profiles, and `limits` has no budget."""
    if profiles is not None:
        check_types(infrastructure, [profiles])
    document = infrastructure.document
    if document is not None and document.limits.budget_usd_per_h is not None:
        message = "limits.budget is for several workflows, but this project has one"
        infrastructure.tree.add(("limits", "budget"), message, f"write slo: {{budget: ...}} into {WORKFLOW_FILE}")


def check_one_workflow(
    directory: Path | None,
    workflow: CheckedDocument[WorkflowDocument],
    infrastructure: CheckedDocument[InfrastructureDocument],
    profiles: CheckedDocument[ProfilesDocument] | None,
) -> Models:
    """Check one workflow and its profiles against the fleet and, if given, against the files in `directory`.

    Returns the signatures of its models.
    """
    flow = check_workflow(workflow, infrastructure)
    check_states(workflow, flow)
    check_tiers(workflow, infrastructure)
    models = check_files(workflow, flow, directory) if directory is not None else {}
    if directory is not None:
        check_labels(workflow, flow, models, directory)
    runs_on = check_profiles(workflow, infrastructure, profiles, flow) if profiles is not None else {}
    if profiles is not None:
        check_batches(profiles, models)
    check_cuts(workflow, infrastructure, profiles, directory)
    check_reachable_workers(workflow, infrastructure, flow, runs_on)
    check_resources(workflow, infrastructure)
    return models
