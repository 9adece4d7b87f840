"""The models that a process serves by the Open Inference Protocol: name, version, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc

from jellybean_agent.errors import StatusError
from jellybean_agent.tensors.ports import TensorPort
from jellybean_protos.agent.v1 import agent_pb2


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. `reason`: why it is not ready; empty if it is. Inputs and outputs are None while unknown."""

    name: str
    version: str
    platform: str
    reason: str = ""
    inputs: tuple[TensorPort, ...] | None = None
    outputs: tuple[TensorPort, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """Counters of a model since the process started.

    `busy_s`: seconds spent in runs. `answered_s`, `failed_s`: sums of the seconds from request to answer, over answered
    and over failed requests. None: not measured.
    """

    answered: int
    failed: int
    runs: int
    busy_s: float | None
    answered_s: float | None = None
    failed_s: float | None = None
    last_unix_s: float = 0.0  # time of the last request; 0: none yet, or unknown


@dataclass(frozen=True, slots=True)
class Sequence:
    """A request's place in a sequence of requests (parameters sequence_id, sequence_start and sequence_end)."""

    id: str
    start: bool = False
    end: bool = False


class InferenceBackend(Protocol):
    """A process that serves models: the gateway its workflow, an agent its operators."""

    @property
    def name(self) -> str:
        """Name of the server."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it accepts requests now."""
        ...

    def models(self) -> Mapping[str, ServedModel]:
        """The models by name."""
        ...

    def check_caller(self, model: str) -> None:
        """StatusError PERMISSION_DENIED if the current caller may not use a model of this name, there or not."""
        ...

    def figures(self, model: str) -> ModelCounters: ...

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, agent_pb2.Tensor],
        timeout_s: float | None,
        sequence: Sequence | None = None,
        request_id: str = "",
    ) -> Mapping[str, agent_pb2.Tensor]:
        """Answer one request; returns all outputs by name. AgentError if it is refused or fails.

        `request_id`: that its client gave it, which need not be unique; empty: none.
        """
        ...


def find_model(served: InferenceBackend, name: str, version: str) -> ServedModel:
    """The model with a name and version (empty: any version).

    StatusError NOT_FOUND where there is none, PERMISSION_DENIED where the caller may not use it.
    """
    served.check_caller(name)
    models = served.models()
    model = models.get(name)
    if model is None:
        known = ", ".join(models) or "none"
        raise StatusError(grpc.StatusCode.NOT_FOUND, f"no model {name[:60]!r} here; served: {known}")
    if version not in ("", model.version):
        reason = f"{name} is served in version {model.version}, not {version[:60]!r}: name that or none"
        raise StatusError(grpc.StatusCode.NOT_FOUND, reason)
    return model


def ports_of_model(model: ServedModel) -> tuple[tuple[TensorPort, ...], tuple[TensorPort, ...]]:
    """A model's inputs and outputs. StatusError UNAVAILABLE while they are unknown."""
    if model.inputs is None or model.outputs is None:
        raise StatusError(grpc.StatusCode.UNAVAILABLE, model.reason or f"{model.name} is not known yet: try again")
    return model.inputs, model.outputs
