"""What a gateway is told of the project that it serves: how labels judge answers, and what it is measured with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.documents import AnyProject, Project
from jellybean.documents.layout import document_files
from jellybean.ledger.labels import LabelRule, label_rule
from jellybean.report import Store

if TYPE_CHECKING:
    from jellybean.serving.local.settings import ServedProject


def served_project(project: AnyProject) -> ServedProject:
    """The metrics of the project's workflows, its documents, its reports, and the files of its held-out data."""
    from jellybean.serving.local.settings import ServedProject

    rules = label_rules(project)
    return ServedProject(
        {name: rule.metric for name, rule in rules.items()},
        {name: rule.sink for name, rule in rules.items() if rule.sink is not None},
        {_path(project, file): file.resolve() for own in _parts(project) for file in _files(own)},
        Store.of(project.directory.resolve()).path,
    )


def label_rules(project: AnyProject) -> Mapping[str, LabelRule]:
    """Workflow -> how its answers are judged by labels; the name of the only one is empty."""
    if isinstance(project, Project):
        return {"": label_rule(project)}
    return {name: label_rule(own) for name, own in project.workflows.items()}


def _parts(project: AnyProject) -> tuple[Project, ...]:
    return (project,) if isinstance(project, Project) else tuple(project.workflows.values())


def _path(project: AnyProject, file: Path) -> str:
    """The path of a file in the project; an infrastructure file that others share, above its folder, goes into it."""
    return str(file.relative_to(project.directory)) if file.is_relative_to(project.directory) else file.name


def _files(project: Project) -> Iterator[Path]:
    """Documents of a workflow, and files with its held-out data."""
    yield from (file for file in document_files(project.directory).values() if file.exists())
    workflow = project.workflow
    for reference in (*(source.inputs for source in workflow.sources.values()), workflow.labels, workflow.stream_ids):
        if reference is not None:
            yield project.directory / str(reference).partition("#")[0]
