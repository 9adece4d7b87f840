"""Held-out requests of a project: the inputs that a bench sends, and the labels of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.serving.errors import ServingError
from jellybean.tensor_files import read_archived
from jellybean_agent import Array
from jellybean_solver import Arrivals

if TYPE_CHECKING:
    from jellybean.documents import Project


@dataclass(frozen=True)
class HeldOut:
    """One array per source (row i belongs to request i), the rows' labels if known, and the arrival process.

    `labels_of`: the operator whose answers the labels are for; None: the only one that answers.
    """

    inputs: Mapping[str, Array]
    arrivals: Arrivals = Arrivals.POISSON
    labels: Array | None = None
    metric: str = "exact_match"
    stream_ids: Array | None = None  # the stream of each row, if an operator has a state
    labels_of: str | None = None

    @property
    def rows(self) -> int:
        """Number of held-out requests."""
        return min(len(array) for array in self.inputs.values())

    def request(self, row: int) -> dict[str, Array]:
        """Source -> tensor of the request `row`, with a leading dimension of 1."""
        return {source: array[row : row + 1] for source, array in self.inputs.items()}


def held_out(project: Project) -> HeldOut:
    """Load the project's held-out requests. JellyBeanError if a source names none or a file does not have them."""
    workflow = project.workflow
    inputs: dict[str, Array] = {}
    for name, source in workflow.sources.items():
        if source.inputs is None:
            raise ServingError(
                f"source {name} names no held-out inputs, so there is nothing to send; "
                f"add `inputs: data/heldout.npz#{name}` to it in workflow.yaml"
            )
        inputs[name] = read_array(project.directory, source.inputs)
    labels = None if workflow.labels is None else read_array(project.directory, workflow.labels)
    arrivals = Arrivals(next(iter(workflow.sources.values())).arrivals)
    streams = None if workflow.stream_ids is None else read_array(project.directory, workflow.stream_ids)
    labels_of = None if labels is None else workflow.labelled_answer
    found = HeldOut(inputs, arrivals, labels, workflow.metric or "exact_match", streams, labels_of)
    if found.rows == 0 or (labels is not None and len(labels) < found.rows):
        raise ServingError("the held-out data is empty, or has fewer labels than inputs")
    return found


def read_array(directory: Path, reference: str) -> Array:
    """Load the array `file.npz#name` of a project. JellyBeanError if it does not exist."""
    file, _, name = str(reference).partition("#")
    return read_archived(directory / file, name)
