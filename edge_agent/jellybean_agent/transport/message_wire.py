"""Messages on the wire: parsed and checked against the plan, and written; large tensors without copies."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from jellybean_agent.brain.messages import MAX_CHILDREN, EdgeMessage, FanOutPath, StreamPosition
from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.errors import InvalidInputError
from jellybean_agent.rpc.parsed_size import has_large_overhead
from jellybean_agent.tensors.tensors import RawTensor, decode_tensor, tensor_bytes, tensor_without_data
from jellybean_protos.agent.v1 import agent_pb2

Data = bytes | memoryview
_TENSOR_TAG = agent_pb2.Message.DESCRIPTOR.fields_by_name["tensor"].number << 3 | 2
_DATA_TAG = agent_pb2.Tensor.DESCRIPTOR.fields_by_name["data"].number << 3 | 2
_MOST_FIELDS = 64  # of a message whose tensor is split off
_LARGE_BYTES = 2**16  # a smaller message is parsed as a whole, which costs less than splitting it
MAX_LEFT_S = 3600.0  # upper limit of the time left that a message may state


def read_message(
    view: PlanView, operators: Sequence[str], wire: agent_pb2.Message, now_s: float, data: Data = b""
) -> EdgeMessage:
    """A message from the wire, checked against the plan. InvalidInputError when it does not fit.

    `operators`: of this worker. `now_s`: CLOCK_MONOTONIC. `data`: the tensor's bytes, if they were split off.
    """
    operator = view.operators.get(wire.downstream)
    if wire.downstream not in operators or operator is None or wire.route >= len(view.table):
        raise InvalidInputError(f"no operator {wire.downstream[:60]!r} on route {wire.route} here")
    if wire.upstream not in (upstream for upstream, _ in operator.wiring.inputs):
        raise InvalidInputError(f"{wire.downstream} has no input from {wire.upstream[:60]!r}")
    path = read_fan_out_path(wire, view.path_length(wire.upstream, wire.downstream))
    payload = None if any(count == 0 for _, count in path) else decode_tensor(_tensor(wire, data))
    until_s = now_s + (min(wire.left_s, MAX_LEFT_S) if wire.left_s > 0 else MAX_LEFT_S)  # else: also for NaN
    position = StreamPosition(wire.stream, wire.after) if wire.stream else None
    return EdgeMessage(wire.request_id, wire.route, wire.upstream, wire.downstream, path, payload, until_s, position)


def _tensor(wire: agent_pb2.Message, data: Data) -> agent_pb2.Tensor | RawTensor:
    return RawTensor(wire.tensor.dtype, tuple(wire.tensor.shape), data) if data else wire.tensor


def wire_path(wire: agent_pb2.Message) -> FanOutPath:
    """A message's path as it was sent, unchecked."""
    return tuple((position.index, position.count) for position in wire.path)


def read_fan_out_path(wire: agent_pb2.Message, length: int) -> FanOutPath:
    """A message's path of `length` positions. InvalidInputError unless each is child i < n, or 0 of 0."""
    if len(wire.path) != length:
        raise InvalidInputError(f"{len(wire.path)} open fan-outs in the path; the plan has {length}")
    path = wire_path(wire)
    for index, count in path:
        if count > MAX_CHILDREN or index >= max(count, 1):
            raise InvalidInputError(f"child {index} of {count} in the path")
    return path


def write_message(plan: str, message: EdgeMessage) -> tuple[agent_pb2.Message, Data]:
    """A message for the wire without its tensor's bytes, and these bytes. `plan`: the plan's hash.

    PermanentError when the tensor is too large, or of a dtype unknown to the wire.
    """
    array = message.payload
    wire = agent_pb2.Message(
        request_id=message.request,
        route=message.route,
        upstream=message.upstream,
        downstream=message.downstream,
        path=[agent_pb2.Position(index=index, count=count) for index, count in message.path],
        tensor=None if array is None else tensor_without_data(array),
        plan=plan,
    )
    if (position := message.position) is not None:
        wire.stream, wire.after = position.stream, position.after
    return wire, b"" if array is None else tensor_bytes(array)


def message_parts(message: agent_pb2.Message, data: Data) -> list[Data]:
    """Serialise a message, in parts. `data`: bytes of its tensor if they are not in `message`; they are not copied.

    A protobuf field that comes twice is merged: here the tensor's dtype and shape, then its bytes.
    """
    head = message.SerializeToString()
    if not data:
        return [head]
    size = varint(len(data))
    inner = varint(1 + len(size) + len(data))
    return [b"".join((head, bytes((_TENSOR_TAG,)), inner, bytes((_DATA_TAG,)), size)), data]


def parse_message(data: bytes) -> agent_pb2.Message:
    """Parse a message. DecodeError when the bytes are none, or one of so many parts that no process sends it."""
    if has_large_overhead(agent_pb2.Message.DESCRIPTOR, data):
        raise DecodeError(f"a message of {len(data)} bytes has too many small parts")
    return agent_pb2.Message.FromString(data)


def split_message(data: bytes) -> tuple[agent_pb2.Message, Data]:
    """Parse what `message_parts` wrote. A large tensor's bytes are returned apart, without a copy.

    DecodeError as of `parse_message`.
    """
    if len(data) >= _LARGE_BYTES:
        view = memoryview(data)
        last_field, begins = _find_tensor_data(view)
        if begins:
            return parse_message(bytes(view[:last_field])), view[begins:].toreadonly()
    return parse_message(data), b""


def _find_tensor_data(view: memoryview) -> tuple[int, int]:
    """(offset of the last field, offset of the bytes in it) if that field is a tensor with bytes only; else (0, 0)."""
    at, size = 0, len(view)
    for _ in range(_MOST_FIELDS):
        if at >= size:
            break
        began, tag = at, view[at]
        length, at = _varint_at(view, at + 1) if tag & 7 in (0, 2) else (0, at + 1)
        if tag > 0x7F:  # a field that this protocol does not have
            return 0, 0
        at += {0: 0, 1: 8, 2: length, 5: 4}.get(tag & 7, size)
        if at == size and tag == _TENSOR_TAG:
            inner = size - length
            if length and view[inner] == _DATA_TAG:
                length, begins = _varint_at(view, inner + 1)
                return (began, begins) if begins + length == size else (0, 0)
    return 0, 0


def _varint_at(view: memoryview, at: int) -> tuple[int, int]:
    """(value of the protobuf varint at `at`, offset after it); an offset past the end if it is truncated."""
    number = shift = 0
    for end in range(at, min(at + 10, len(view))):
        number |= (view[end] & 0x7F) << shift
        shift += 7
        if view[end] < 0x80:
            return number, end + 1
    return 0, len(view) + 1


def varint(number: int) -> bytes:
    """A number as a protobuf varint."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)
