"""What a run with parameter servers cannot have, in training.yaml. Does not import torch."""

from __future__ import annotations

from typing import Protocol

from jellybean.documents.training.run import SyncSpec
from jellybean.documents.training.tensor import TensorSpec
from jellybean.quantities import InvalidValueError


class ServerRun(Protocol):
    """The settings of a document that parameter servers restrict."""

    @property
    def sync(self) -> SyncSpec: ...
    @property
    def devices(self) -> int: ...
    @property
    def tensor(self) -> TensorSpec: ...
    @property
    def schedule(self) -> str: ...
    @property
    def plan(self) -> str | None: ...
    @property
    def objective(self) -> str | None: ...
    @property
    def staleness(self) -> bool: ...
    @property
    def precision(self) -> str: ...
    @property
    def clip(self) -> float | None: ...


def check_servers(document: ServerRun) -> None:
    """InvalidValueError if the document asks for parameter servers and for what they do not do."""
    sync = document.sync
    if not sync.has_servers:
        return
    if document.devices > 1:
        raise InvalidValueError(
            "with a parameter server each replica is one process",
            "write devices: 1, or another `sync.way`",
            keys=("devices", "sync.way"),
        )
    if document.tensor.ways > 1:
        raise InvalidValueError(
            "with a parameter server each replica is one process",
            "remove `tensor`, or take another `sync.way`",
            keys=("tensor", "sync.way"),
        )
    of_pipelines = {
        "plan": document.plan,
        "objective": document.objective,
        "schedule": document.schedule != "auto",
        "staleness": document.staleness,
    }
    given = next((key for key, value in of_pipelines.items() if value), None)
    if given is not None:
        raise InvalidValueError(
            f"`{given}` is for pipelines, and with a parameter server each replica is one process",
            "remove it (`sync.mode` and `sync.staleness` say how replicas wait), or take another `sync.way`",
            keys=(given, "sync.way"),
        )
    if document.precision == "float16":
        raise InvalidValueError(
            "a parameter server does not scale the loss, as float16 needs",
            "write precision: bfloat16",
            keys=("precision", "sync.way"),
        )
    if document.clip is not None and sync.servers > 1:
        raise InvalidValueError(
            "`clip` needs the norm of all gradients, and each of several servers has some of them",
            "write servers: 1",
            keys=("clip", "sync.servers"),
        )
