"""The brain's messages as the wire has them: read and checked against the plan, written."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.messages import MAX_CHILDREN, Message, Path
from jellybean_agent.plan_view import PlanView
from jellybean_agent.tensors import bytes_of, decode, kind_of
from jellybean_protos.agent.v1 import agent_pb2

Data = bytes | memoryview
_TENSOR = agent_pb2.Message.DESCRIPTOR.fields_by_name["tensor"].number << 3 | 2
_DATA = agent_pb2.Tensor.DESCRIPTOR.fields_by_name["data"].number << 3 | 2
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


def write_message(plan: str, message: Message) -> tuple[agent_pb2.Message, Data]:
    """A message for the wire, and its tensor's bytes, which are not in it.

    InvalidInputError when the tensor is too large or of a dtype unknown to the wire.
    """
    array = message.payload
    wire = agent_pb2.Message(
        request_id=message.request,
        route=message.route,
        upstream=message.upstream,
        downstream=message.downstream,
        path=[agent_pb2.Position(index=index, count=count) for index, count in message.path],
        tensor=None if array is None else kind_of(array),
        plan=plan,
    )
    return wire, b"" if array is None else bytes_of(array)


def parts_of(message: agent_pb2.Message, data: Data) -> list[Data]:
    """A message's bytes. `data`: of its tensor, if they are not in it; they leave as they lie.

    Protobuf puts the parts of a field that comes twice together: the tensor's kind, then its bytes.
    """
    head = message.SerializeToString()
    if not data:
        return [head]
    size = varint(len(data))
    inner = varint(1 + len(size) + len(data))
    return [b"".join((head, bytes((_TENSOR,)), inner, bytes((_DATA,)), size)), data]


def varint(number: int) -> bytes:
    """A number as protobuf writes lengths."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)
