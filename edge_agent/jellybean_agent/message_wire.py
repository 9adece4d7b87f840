"""The brain's messages as the wire has them: read and checked against the plan, written."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.messages import MAX_CHILDREN, Message, Path
from jellybean_agent.plan_view import PlanView
from jellybean_agent.tensors import decode, encode
from jellybean_protos.agent.v1 import agent_pb2

MAX_LEFT_S = 3600.0  # nobody waits longer for an answer, whatever a message says


def read_message(view: PlanView, operators: Sequence[str], wire: agent_pb2.Message) -> Message:
    """A message from the wire, checked against the plan. InvalidInputError when it does not fit."""
    operator = view.operators.get(wire.downstream)
    if wire.downstream not in operators or operator is None or wire.route >= len(view.routes):
        raise InvalidInputError(f"no operator {wire.downstream[:60]!r} on route {wire.route} here")
    if wire.upstream not in (upstream for upstream, _ in operator.wiring.inputs):
        raise InvalidInputError(f"{wire.downstream} has no input from {wire.upstream[:60]!r}")
    path = read_path(wire, view.path_length(wire.upstream, wire.downstream))
    payload = None if any(count == 0 for _, count in path) else decode(wire.tensor)
    until_s = time.monotonic() + (min(wire.left_s, MAX_LEFT_S) if wire.left_s > 0 else MAX_LEFT_S)  # NaN is not
    return Message(wire.request_id, wire.route, wire.upstream, wire.downstream, path, payload, until_s)


def read_path(wire: agent_pb2.Message, length: int) -> Path:
    """A message's path of `length` positions. InvalidInputError unless each is child i < n, or 0 of 0."""
    path = tuple((position.index, position.count) for position in wire.path)
    if len(path) != length:
        raise InvalidInputError(f"{len(path)} open fan-outs in the path; the plan has {length}")
    for index, count in path:
        if count > MAX_CHILDREN or index >= max(count, 1):
            raise InvalidInputError(f"child {index} of {count} in the path")
    return path


def write_message(plan: str, message: Message) -> agent_pb2.Message:
    """A message for the wire. InvalidInputError when its tensor is too large or of a dtype unknown to the wire."""
    return agent_pb2.Message(
        request_id=message.request,
        route=message.route,
        upstream=message.upstream,
        downstream=message.downstream,
        path=[agent_pb2.Position(index=index, count=count) for index, count in message.path],
        tensor=None if message.payload is None else encode(message.payload),
        plan=plan,
    )
