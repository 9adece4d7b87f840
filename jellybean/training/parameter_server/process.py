"""What this process does in a run with parameter servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jellybean.documents.training import TrainingDocument
from jellybean.training.parameter_server.coordinator import Warn
from jellybean.training.parameter_server.further_server import serve_share
from jellybean.training.parameter_server.roles import role_of_process
from jellybean.training.parameter_server.server import ServedEpochs, served_run
from jellybean.training.parameter_server.worker import work
from jellybean.training.setup import RankRun


@contextmanager
def joined_run(
    document: TrainingDocument, directory: Path, warn: Warn
) -> Iterator[tuple[RankRun, ServedEpochs] | None]:
    """Context of the run on the first server; the other processes do their part before it begins, and yield None."""
    role = role_of_process(document)
    if role.serves and role.number:
        serve_share(document, directory, role)
        yield None
    elif role.serves:
        with served_run(document, directory, role, warn) as served:
            yield served
    else:
        work(document, directory, role)
        yield None
