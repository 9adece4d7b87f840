"""`train --render`: the Kubernetes objects of a run."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import typer

from jellybean.quantities import SIZE, InvalidValueError, parse_quantity

if TYPE_CHECKING:
    from jellybean.documents.training import TrainingDocument

_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-._A-Za-z0-9]*")
HOST_BYTES, HOST_BYTES_ON_GPU = (
    2.0 * 2**30,
    8.0 * 2**30,
)  # bytes of host memory of a process: Python, torch and data; with a GPU also the CUDA context


@dataclass(frozen=True)
class JobOptions:
    """Options of `train` that need --render; empty where not given. `folder`: path of the project in the claim."""

    image: str
    claim: str
    folder: str
    pods: int
    gpu: str
    memory: str

    def check_unused(self) -> None:
        """BadParameter if one was given."""
        texts = {"image": self.image, "claim": self.claim, "folder": self.folder, "gpu": self.gpu}
        given = [name for name, text in (texts | {"memory": self.memory}).items() if text]
        given += ["pods"] if self.pods > 1 else []
        if given:
            raise typer.BadParameter(f"--{given[0]} needs --render")

    def check(self, ranks: int) -> None:
        """BadParameter for what no run of so many processes can have."""
        from jellybean_k8s import GPU_RESOURCES

        if not self.image or not self.claim:
            raise typer.BadParameter("--render needs --image (for the pods) and --claim (the volume with DIR)")
        if not _CLAIM.fullmatch(self.claim):
            raise typer.BadParameter(
                f"--claim {self.claim}: not a valid claim name; use lower-case letters, digits, '-' and '.'"
            )
        path = PurePosixPath(self.folder)
        if path.is_absolute() or ".." in path.parts:
            raise typer.BadParameter(
                f"--folder {self.folder}: write the path of DIR in the claim, for example runs/digits"
            )
        if self.gpu and self.gpu not in GPU_RESOURCES and not _RESOURCE.fullmatch(self.gpu):
            known = ", ".join(GPU_RESOURCES)
            raise typer.BadParameter(
                f"--gpu {self.gpu}: write {known}, or an extended resource such as vendor.example/gpu"
            )
        if ranks % self.pods:
            raise typer.BadParameter(f"--pods {self.pods} does not divide the {ranks} processes (devices x replicas)")


def print_job(document: TrainingDocument, directory: Path, overrides: Sequence[str], options: JobOptions) -> None:
    """Print the objects of the run as YAML. BadParameter for options that do not fit it."""
    from jellybean.documents.training import TRAINING_FILE
    from jellybean_agent import file_sha256
    from jellybean_k8s import TrainingJob, training_objects, yaml_documents

    if document.sync.has_servers:
        raise typer.BadParameter("--render has no parameter servers: take another `sync.way`, or start it by torchrun")
    options.check(document.ranks)
    version = importlib.metadata.version("jellybean-serving")
    job = TrainingJob(
        *(directory.resolve().name, options.image, options.claim),
        *(options.pods, document.ranks // options.pods, version),
        folder=options.folder,
        gpu=options.gpu or None,
        memory_bytes=_host_memory_bytes(document, options.memory, on_gpu=bool(options.gpu)),
        overrides=tuple(overrides),
        document_sha256=file_sha256(directory / TRAINING_FILE),
    )
    print(yaml_documents(training_objects(job)), end="")


def _host_memory_bytes(document: TrainingDocument, given: str, *, on_gpu: bool) -> float:
    """Host memory of a process in bytes: `given` (option --memory) if not empty, otherwise an estimate.

    On a CPU, the estimate includes the device memory that the document declares.
    """
    if given:
        try:
            return parse_quantity(SIZE, given)
        except InvalidValueError as error:
            raise typer.BadParameter(f"--memory: {error}; {error.hint}") from error
    return HOST_BYTES_ON_GPU if on_gpu else HOST_BYTES + (document.memory_bytes or 0.0)
