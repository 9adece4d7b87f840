"""Load the labelled held-out requests of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from jellybean.documents.checks.files import array_header, inside
from jellybean.documents.layout import WORKFLOW_FILE
from jellybean.documents.project import Project
from jellybean.errors import DocumentError, DocumentProblem, InputError
from jellybean.quantities import InvalidValueError
from jellybean.tensor_files import read_archived

Array = npt.NDArray[Any]


class HeldOut(NamedTuple):
    """Held-out requests; row i of every array belongs to request i.

    `inputs` is keyed by source; `metric` names how answers are compared.
    """

    inputs: dict[str, Array]
    labels: Array
    metric: str


def load_heldout(project: Project) -> HeldOut:
    """Load inputs, labels and metric. DocumentError if the workflow names no inputs or labels, or a file lacks them."""
    workflow = project.workflow
    file = str(project.directory / WORKFLOW_FILE)
    problems: list[DocumentProblem] = []
    arrays: dict[str, Array] = {}
    references = {f"sources.{name}.inputs": source.inputs for name, source in workflow.sources.items()}
    for path, reference in {**references, "labels": workflow.labels}.items():
        if reference is None:
            hint = f"write {path.rpartition('.')[2]}: data/heldout.npz#name"
            problems.append(DocumentProblem(file, None, None, path, "no held-out data is given", hint))
            continue
        try:
            arrays[path] = _load(project.directory, reference)
        except InvalidValueError as error:
            problems.append(DocumentProblem(file, None, None, path, error.message, error.hint))
    if workflow.metric is None:
        hint = "write metric: exact_match, top1, word_accuracy or character_accuracy"
        problems.append(DocumentProblem(file, None, None, "metric", "no metric is given", hint))
    if problems or workflow.metric is None:
        raise DocumentError(problems)
    inputs = {name: arrays[f"sources.{name}.inputs"] for name in workflow.sources}
    return HeldOut(inputs, arrays["labels"], workflow.metric)


def _load(directory: Path, reference: str) -> Array:
    array_header(directory, reference)
    file, _, name = reference.partition("#")
    try:
        return read_archived(inside(directory, file), name)
    except InputError as error:
        raise InvalidValueError(str(error), "write it with numpy.savez") from error
