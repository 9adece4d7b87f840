"""Refuse plans for devices of a stated memory if the profiles do not say what models take of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jellybean.documents.layout import document_files
from jellybean.documents.project import Project
from jellybean.documents.schema.profiles import BatchProfile, ProfilesDocument
from jellybean.documents.schema.reader import dotted
from jellybean.errors import DocumentError, DocumentProblem

_HINT = (
    "profile on the device where nvidia-ml-py is installed, write device_memory beside memory into profiles.yaml, "
    "or remove it here: then no plan is refused for it"
)


def require_device_memory(project: Project, profiles: ProfilesDocument) -> None:
    """DocumentError if a pool states its devices' memory, and the profiles lack what a model takes of it.

    Without the figure a model would count as taking none, and a plan could not be served.
    """
    file = str(document_files(project.directory)["infrastructure"])
    problems = []
    for pool, worker in project.infrastructure.workers.items():
        if worker.device_memory_bytes is None or worker.count == 0:
            continue
        worker_type = worker.type or pool
        if unknown := [name for name, latency in _models(project, profiles) if _lacks(latency.get(worker_type, {}))]:
            text = f"profiles.yaml has no device_memory of {', '.join(unknown)} on {worker_type}"
            where = dotted(("workers", pool, "device_memory"))
            problems.append(DocumentProblem(file, None, None, where, text, _HINT))
    if problems:
        raise DocumentError(problems)


def _models(
    project: Project, profiles: ProfilesDocument
) -> Iterator[tuple[str, Mapping[str, Mapping[int, BatchProfile]]]]:
    """All models and stages of cuts that may be planned, in words, with their latencies by worker type."""
    for operator, spec in project.workflow.operators.items():
        for name, variant in spec.variants.items():
            profile = profiles.operators.get(operator, {}).get(name)
            if profile is None or variant.python is not None:  # functions run on the CPU
                continue
            yield f"{operator}/{name}", profile.latency
            for cut in (profile.cuts or ()) if spec.cuts_of(name) else ():
                yield f"{operator}/{name}.1-{cut.layers}", cut.head.latency
                yield f"{operator}/{name}.{cut.layers + 1}-{cut.of}", cut.tail.latency


def _lacks(batches: Mapping[int, BatchProfile]) -> bool:
    return any(batch.device_memory_bytes is None for batch in batches.values())
