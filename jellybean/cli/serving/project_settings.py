"""What a gateway is told of the project that it serves: how labels judge answers, and what it is measured with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jellybean.documents import Project
from jellybean.documents.layout import document_files
from jellybean.ledger.labels import label_rule
from jellybean.report import Store

if TYPE_CHECKING:
    from jellybean.serving.local.settings import ServedProject


def served_project(project: Project) -> ServedProject:
    """The metric of the project's workflow, its documents, its reports, and the files of its held-out data."""
    from jellybean.serving.local.settings import ServedProject

    rule = label_rule(project)
    files = {file.name: file.resolve() for file in document_files(project.directory).values() if file.exists()}
    files |= {path: (project.directory / path).resolve() for path in _held_out_files(project)}
    return ServedProject(rule.metric, rule.sink or "", files, Store.of(project.directory.resolve()).path)


def _held_out_files(project: Project) -> Iterator[str]:
    """Paths in the project of the files with held-out data."""
    workflow = project.workflow
    for reference in (*(source.inputs for source in workflow.sources.values()), workflow.labels, workflow.stream_ids):
        if reference is not None:
            yield str(reference).partition("#")[0]
