"""The result of a request: its outputs, or why it has no answer, and the kinds of results that are counted apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import grpc

from jellybean_protos.agent.v1 import agent_pb2

Tensors = Mapping[str, agent_pb2.Tensor]  # by source, or by sink


class OutcomeKind(StrEnum):
    """What became of a request, as it is counted: by the gateway, by `top` and by `bench`."""

    ANSWERED = "answered"
    CANCELLED = "cancelled"  # by the client
    LATE = "late"  # no answer within its time limit
    SHED = "shed"  # refused because of overload: too many requests in flight or in a worker's queue
    CLIENT_ERROR = "client_error"  # invalid inputs, an unknown model, an unknown or used id
    UNAVAILABLE = "unavailable"  # reached no worker: boxes have not joined or were lost, or the gateway drains
    SERVER_ERROR = "server_error"  # everything else: a failing model


OUTCOME_WORDS = {
    OutcomeKind.ANSWERED: "answered",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.LATE: "late",
    OutcomeKind.SHED: "shed",
    OutcomeKind.CLIENT_ERROR: "client errors",
    OutcomeKind.UNAVAILABLE: "unavailable",
    OutcomeKind.SERVER_ERROR: "server errors",
}
_KIND_BY_STATUS = {
    grpc.StatusCode.OK: OutcomeKind.ANSWERED,
    grpc.StatusCode.CANCELLED: OutcomeKind.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: OutcomeKind.LATE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OutcomeKind.SHED,
    grpc.StatusCode.UNAVAILABLE: OutcomeKind.UNAVAILABLE,
    grpc.StatusCode.INVALID_ARGUMENT: OutcomeKind.CLIENT_ERROR,
    grpc.StatusCode.NOT_FOUND: OutcomeKind.CLIENT_ERROR,
    grpc.StatusCode.ALREADY_EXISTS: OutcomeKind.CLIENT_ERROR,
}


def outcome_kind(status: grpc.StatusCode) -> OutcomeKind:
    """The kind under which a request that ended with this gRPC status is counted."""
    return _KIND_BY_STATUS.get(status, OutcomeKind.SERVER_ERROR)


def outcome_text(counts: Mapping[str, int], *, answered: bool = True) -> str:
    """The outcomes that occurred: `350 answered, 4 late, 6 shed`. `answered`: with those that were answered."""
    kinds = (kind for kind in OutcomeKind if answered or kind is not OutcomeKind.ANSWERED)
    return ", ".join(f"{counts[kind]} {OUTCOME_WORDS[kind]}" for kind in kinds if counts.get(kind))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a request has no answer: a gRPC status and a reason for people.

    `kept`: the id under which the spool keeps the request until it has an answer; empty unless it is kept. `stuck`: a
    worker took the request and did not answer in time.
    """

    status: grpc.StatusCode
    reason: str
    kept: str = ""
    stuck: bool = False

    @property
    def kind(self) -> OutcomeKind:
        """How the request is counted."""
        return outcome_kind(self.status)


Result = tuple[Outcome | None, Tensors]  # (None, outputs by sink), or (why there is no answer, {})
