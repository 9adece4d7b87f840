"""ModelInfer of an agent without protobuf and without a task for each request, where a request is like many others.

All of a request but its tensors' bytes and its id (the envelope) is read once, by the code that reads every request; of
the next ones with the same envelope only the bytes are looked at. What is unusual in any way is left to that code.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from jellybean_agent.driver import Driver
from jellybean_agent.errors import AgentError
from jellybean_agent.inference.operators import Operators
from jellybean_agent.inference.service import asked, told
from jellybean_agent.inference.tensors import dtype_of, inputs_of, outputs_of
from jellybean_agent.rpc.calls import Call
from jellybean_agent.tensors import DTYPES, Array, encode
from jellybean_protos.inference.v2 import inference_pb2 as pb

_ID, _RAW_INPUT = 3 << 3 | 2, 7 << 3 | 2  # tags of fields with a length, in a request
_ID_TAG, _RAW_OUTPUT_TAG = bytes((3 << 3 | 2,)), bytes((6 << 3 | 2,))  # in a response
_KEPT, _KEPT_BYTES = 256, 2**11  # envelopes that are remembered, and of one
_NONE = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Slot:
    """What one tensor of a known envelope must be."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class _Known:
    """An envelope that was read and found right."""

    model: str
    version: str
    timeout_s: float | None
    slots: tuple[_Slot, ...]  # in the order of the request's tensors
    order: tuple[int, ...]  # of the operator's inputs among them
    names: tuple[str, ...]  # of the outputs that are asked for
    answers: dict[tuple[object, ...], bytes] = field(default_factory=dict)  # envelopes of responses by outputs' shapes


class FastInfer:
    """Serves `INFER` raw; for `Server.add_raw`."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self._known: dict[bytes, _Known] = {}

    def __call__(self, call: Call, data: memoryview) -> bool:
        """Take a request; False leaves it to the handler."""
        cut = _cut(data)
        driver = self._operators.ready_driver
        if cut is None or driver is None:
            return False
        envelope, own_id, tensors = cut
        known = self._known.get(envelope)
        if known is None:
            known = self._read(envelope, data)
            if known is None:
                return False
        if len(tensors) != len(known.slots):
            return False
        arrays = []
        for index in known.order:
            slot, tensor = known.slots[index], tensors[index]
            if len(tensor) != slot.size:
                return False
            arrays.append(np.frombuffer(tensor, slot.dtype).reshape(slot.shape))
        told_id = bytes(own_id)
        if own_id and not told_id.isascii():
            return False
        _Request(call, driver, known, told_id).begin(arrays)
        return True

    def _read(self, envelope: bytes, data: memoryview) -> _Known | None:
        """What an envelope asks for, checked with the rest of its request; None where that is wrong or unusual."""
        request = pb.ModelInferRequest()
        try:
            request.ParseFromString(bytes(data))
            model, names, timeout_s = asked(self._operators, request)
            self._operators.arrays(model.name, inputs_of(request))
        except (DecodeError, AgentError):
            return None
        slots = []
        for item in request.inputs:
            dtype, shape = DTYPES[dtype_of(item.datatype)], tuple(item.shape)
            slots.append(_Slot(item.name, dtype, shape, math.prod(shape) * dtype.itemsize))
        by_name = {slot.name: index for index, slot in enumerate(slots)}
        order = tuple(by_name[name] for name in self._operators.input_names(model.name))
        known = _Known(model.name, model.version, timeout_s, tuple(slots), order, names)
        if len(envelope) <= _KEPT_BYTES:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[envelope] = known
        return known


class _Request:
    """One request under way."""

    __slots__ = ("_call", "_driver", "_id", "_key", "_known", "_left_s", "_timer")

    def __init__(self, call: Call, driver: Driver, known: _Known, own_id: bytes) -> None:
        self._call, self._driver, self._known, self._id = call, driver, known, own_id
        self._key = ""
        self._timer: asyncio.TimerHandle | None = None
        limits = [limit_s for limit_s in (call.time_remaining(), known.timeout_s) if limit_s is not None]
        self._left_s = min(limits, default=None)

    def begin(self, arrays: Sequence[Array]) -> None:
        try:
            self._key = self._driver.begin_asked(self._known.model, arrays, self._answered)
        except AgentError as error:
            self._call.end(*told(error))
            return
        if self._call.is_over:  # answered already
            return
        if self._left_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._left_s, self._late)
        self._call.on_cancel = self._cancelled

    def _answered(self, what: Mapping[str, Array] | AgentError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._call.on_cancel = None
        try:
            if isinstance(what, AgentError):
                raise what
            response = _response(self._known, self._id, what)
        except AgentError as error:
            self._call.end(*told(error))
        else:
            self._call.reply(response)

    def _late(self) -> None:
        error = self._driver.late(self._known.model, self._left_s or 0.0)
        self._driver.give_up(self._key)
        self._call.on_cancel = None
        self._call.end(*told(error))

    def _cancelled(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._driver.give_up(self._key)


def _response(known: _Known, own_id: bytes, outputs: Mapping[str, Array]) -> bytes:
    """A whole ModelInferResponse: its envelope, its id, the outputs' bytes."""
    arrays = [outputs[name] for name in known.names]
    key = tuple((array.dtype, array.shape) for array in arrays)
    envelope = known.answers.get(key)
    if envelope is None:
        tensors = {name: encode(array) for name, array in zip(known.names, arrays, strict=True)}
        request = pb.ModelInferRequest(model_name=known.model)
        response = outputs_of(request, known.version, known.names, tensors)
        del response.raw_output_contents[:]
        envelope = response.SerializeToString()
        if len(known.answers) < _KEPT:
            known.answers[key] = envelope
    parts = [envelope]
    if own_id:
        parts += (_ID_TAG, _varint(len(own_id)), own_id)
    for array in arrays:
        parts += (
            _RAW_OUTPUT_TAG,
            _varint(array.nbytes),
            array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(),
        )
    return b"".join(parts)


def _cut(data: memoryview) -> tuple[bytes, memoryview, list[memoryview]] | None:
    """A request's envelope, id and tensors; None where it is no message, or has no raw tensors."""
    envelope: list[memoryview] = []
    tensors: list[memoryview] = []
    own_id = _NONE
    at, size = 0, len(data)
    while at < size:
        began, tag = at, data[at]
        at += 1
        if tag & 0x87 != 2:  # one byte of tag, and a length: all fields of this message are so
            return None
        length = shift = 0
        while True:
            if at >= size or shift > 28:
                return None
            octet = data[at]
            at += 1
            length |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                break
        end = at + length
        if end > size:
            return None
        if tag == _RAW_INPUT:
            tensors.append(data[at:end])
        elif tag == _ID:
            own_id = data[at:end]
        else:
            envelope.append(data[began:end])
        at = end
    return (b"".join(envelope), own_id, tensors) if tensors else None


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)
