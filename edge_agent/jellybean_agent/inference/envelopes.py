"""Caches of ModelInfer envelopes. The envelope of a request is the whole message except its id and tensor bytes.

Clients repeat their envelopes, so each is parsed once, and the envelope of the response is written once. Unusual
requests have no envelope and take the general path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jellybean_agent.inference.tensors import dtype_of_datatype, outputs_of
from jellybean_agent.tensors.dtypes import WIRE_DTYPES
from jellybean_agent.tensors.tensors import check_answer_size, wrong_bool
from jellybean_agent.transport.message_wire import varint
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb

_ID, _RAW_INPUT = 3 << 3 | 2, 7 << 3 | 2  # tags of length-delimited fields of a request
_ID_TAG, _RAW_OUTPUT_TAG = bytes((3 << 3 | 2,)), bytes((6 << 3 | 2,))  # tags of fields of a response
_KEPT, _KEPT_BYTES = 256, 2**11  # number of cached envelopes; largest one that is cached
_MOST_PARTS = 256  # of a request: names, parameters, tensors
_NONE = memoryview(b"")
RawOutput = tuple[str, tuple[int, ...], bytes]  # dtype, shape, little-endian bytes


@dataclass(frozen=True, slots=True)
class Slot:
    """One input tensor of an envelope. `size`: in bytes. `is_bool`: not all bytes are values of it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int
    is_bool: bool

    def fits(self, tensor: memoryview) -> bool:
        """True if these are the bytes of such a tensor."""
        return len(tensor) == self.size and not (self.is_bool and wrong_bool(self.dtype, tensor) is not None)


@dataclass(frozen=True, slots=True)
class RequestEnvelope:
    """A parsed envelope that was found valid."""

    model: str
    version: str
    timeout_s: float | None
    slots: tuple[Slot, ...]  # in the order of the request's tensors
    order: tuple[int, ...]  # index into `slots` per input of the model
    names: tuple[str, ...]  # of the requested outputs
    answers: dict[tuple[object, ...], bytes] = field(
        default_factory=dict
    )  # envelope of the response by dtypes and shapes of the outputs

    def fits(self, own_id: memoryview, tensors: Sequence[memoryview]) -> bool:
        """True if the tensors are of the envelope's sizes and types, and the id needs no further check."""
        return (
            len(tensors) == len(self.slots)
            and all(slot.fits(tensor) for slot, tensor in zip(self.slots, tensors, strict=True))
            and (not own_id or bytes(own_id).isascii())
        )

    def response(self, own_id: bytes, outputs: Sequence[RawOutput]) -> bytes:
        """A serialised ModelInferResponse. `outputs`: in the order of `names`. PermanentError if they are too large."""
        check_answer_size(len(data) for _, _, data in outputs)
        key = tuple([output[:2] for output in outputs])
        envelope = self.answers.get(key)
        if envelope is None:
            envelope = self._envelope(outputs)
            if len(self.answers) < _KEPT:
                self.answers[key] = envelope
        parts = [envelope]
        if own_id:
            parts += (_ID_TAG, varint(len(own_id)), own_id)
        for _, _, data in outputs:
            parts += (_RAW_OUTPUT_TAG, varint(len(data)), data)
        return b"".join(parts)

    def _envelope(self, outputs: Sequence[RawOutput]) -> bytes:
        tensors = {
            name: agent_pb2.Tensor(dtype=dtype, shape=shape)
            for name, (dtype, shape, _) in zip(self.names, outputs, strict=True)
        }
        response = outputs_of(pb.ModelInferRequest(model_name=self.model), self.version, self.names, tensors)
        del response.raw_output_contents[:]
        return response.SerializeToString()


class Envelopes:
    """The cached envelopes of a server."""

    def __init__(self) -> None:
        self._known: dict[bytes, RequestEnvelope] = {}

    def get(self, envelope: bytes) -> RequestEnvelope | None:
        return self._known.get(envelope)

    def add(
        self,
        envelope: bytes,
        request: pb.ModelInferRequest,
        version: str,
        names: tuple[str, ...],
        timeout_s: float | None,
        inputs: Sequence[str],
    ) -> RequestEnvelope:
        """Cache the envelope of a valid request. `names`: requested outputs; `inputs`: the model's, in its order."""
        slots = []
        for item in request.inputs:
            dtype, shape = WIRE_DTYPES[dtype_of_datatype(item.datatype)], tuple(item.shape)
            size = math.prod(shape) * dtype.itemsize
            slots.append(Slot(item.name, dtype, shape, size, dtype == np.bool_))
        by_name = {slot.name: index for index, slot in enumerate(slots)}
        order = tuple(by_name[name] for name in inputs)
        known = RequestEnvelope(request.model_name, version, timeout_s, tuple(slots), order, names)
        if len(envelope) <= _KEPT_BYTES:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[envelope] = known
        return known

    def clear(self) -> None:
        self._known.clear()


def shortest_timeout_s(*limits: float | None) -> float | None:
    """The shortest of several timeouts in seconds; None means no timeout."""
    return min((limit for limit in limits if limit is not None), default=None)


def split_request(data: memoryview) -> tuple[bytes, memoryview, list[memoryview]] | None:
    """Split a serialised request into (envelope, id, tensors).

    None if it is invalid, has no raw tensors, or many parts: what is read here is not looked at for its size before.
    """
    envelope: list[memoryview] = []
    tensors: list[memoryview] = []
    own_id = _NONE
    at, size = 0, len(data)
    for _ in range(_MOST_PARTS):
        if at >= size:
            break
        began, tag = at, data[at]
        at += 1
        if tag & 0x87 != 2:  # each field of this message has a one-byte tag and is length-delimited
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
    return (b"".join(envelope), own_id, tensors) if tensors and at == size else None
