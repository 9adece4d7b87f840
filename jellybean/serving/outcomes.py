"""The result of a request: its outputs, or why it has no answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from jellybean_protos.agent.v1 import agent_pb2

Tensors = Mapping[str, agent_pb2.Tensor]  # by source, or by sink


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


Result = tuple[Outcome | None, Tensors]  # (None, outputs by sink), or (why there is no answer, {})
