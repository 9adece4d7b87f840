"""What can go wrong at a worker, and the one place that maps it to gRPC status codes."""

from __future__ import annotations

import grpc


class AgentError(Exception):
    """Root of the agent's errors; its text is one clear line for a person."""


class TransientError(AgentError):
    """Trying again later may help: a peer is gone, a worker is about to leave."""


class PermanentError(AgentError):
    """Trying again will not help."""


class InvalidInputError(PermanentError):
    """The request's own tensors are at fault: type, shape or size."""


class ModelError(PermanentError):
    """A model file is missing, altered, or not one that this agent runs."""


class PlanViewError(PermanentError):
    """The plan document is damaged, of another version, or does not name this worker."""


_STATUS: tuple[tuple[type[AgentError], grpc.StatusCode], ...] = (
    (InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT),
    (ModelError, grpc.StatusCode.FAILED_PRECONDITION),
    (PlanViewError, grpc.StatusCode.FAILED_PRECONDITION),
    (TransientError, grpc.StatusCode.UNAVAILABLE),
)


def status_of(error: AgentError) -> grpc.StatusCode:
    """The gRPC status of an error; INTERNAL for a permanent one that is nobody's input."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def status_from_number(number: int) -> grpc.StatusCode:
    """The status of a number on the wire; UNKNOWN for one that no status has."""
    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
