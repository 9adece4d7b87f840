"""How much memory a protobuf message takes once it is parsed, found without parsing it.

Two bytes of an empty submessage become some hundred, a number of one byte becomes eight. Whoever sends many of them
within the size of a message could have a server allocate a multiple of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jellybean_agent.admission.steps import Steps, at_once

SMALL_BYTES = 2**16  # messages up to this size are not looked through
MAX_OVERHEAD_BYTES = 2**23  # by which a parsed message may exceed its bytes
_ITEM_BYTES = 128  # of a submessage, a text or bytes besides their content
_NUMBER_BYTES = 8
_UNPACKED_BYTES = 64  # of a tag of numbers: less memory than that, but as much time to look at
_STEP_PARTS = 256  # less than half a millisecond
_VARINT, _LENGTH = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # their bytes
_WIRE_TYPES = {_VARINT, _LENGTH, *_FIXED}


def has_large_overhead(descriptor: Any, data: bytes | memoryview) -> bool:
    """True if a message would take `MAX_OVERHEAD_BYTES` more than its bytes.

    Ends after that many parts of it, however large the message is: what follows is not looked at.
    """
    return at_once(overhead_steps(descriptor, data))


def overhead_steps(descriptor: Any, data: bytes | memoryview) -> Steps[bool]:
    """`has_large_overhead` in steps, for messages of clients. A damaged message is measured up to the damage."""
    if len(data) <= SMALL_BYTES:
        return False
    view, fields, at, end = memoryview(data), _fields(descriptor), 0, len(data)
    around: list[tuple[dict[int, Any], int]] = []  # messages that go on behind this one: their fields and ends
    size, parts = _ITEM_BYTES, 0
    while size <= MAX_OVERHEAD_BYTES:
        if at >= end:
            if not around:
                return False
            at = end
            fields, end = around.pop()
            continue
        parts += 1
        if parts % _STEP_PARTS == 0:
            yield
        key, at = _varint(view, at)
        wire = key & 7
        if wire not in _WIRE_TYPES:
            return True  # a group: no message here has any
        length = _FIXED.get(wire, 0)
        if wire in (_VARINT, _LENGTH):
            number, at = _varint(view, at)
            length = number if wire == _LENGTH else 0
        kind = fields.get(key >> 3) if wire == _LENGTH else False
        if at + length > end:
            at = end
        elif kind is None or isinstance(kind, bool):
            size, at = size + _memory(length, kind), at + length
        else:
            size += _ITEM_BYTES
            around.append((fields, end))
            fields, end = _fields(kind), at + length
    return True


def _memory(length: int, kind: bool | None) -> int:
    """Bytes that a field takes besides its own. `kind`: as of `_fields`, None for texts, bytes, and unknown fields."""
    if kind is None:
        return _ITEM_BYTES
    return _UNPACKED_BYTES + (length * (_NUMBER_BYTES - 1) if kind else 0)


@lru_cache(256)
def _fields(descriptor: Any) -> dict[int, Any]:
    """By number: the descriptor of a submessage; True for numbers whose size on the wire varies, False for others."""
    varying = {descriptor_field.number: _kind(descriptor_field) for descriptor_field in descriptor.fields}
    return {number: kind for number, kind in varying.items() if kind is not None}


def _kind(field: Any) -> Any:
    if field.message_type is not None:
        return field.message_type
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return None
    return field.type not in (field.TYPE_FLOAT, field.TYPE_DOUBLE, field.TYPE_FIXED32, field.TYPE_FIXED64)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """(value of the varint at `at`, offset after it); an offset past the end if it is cut off."""
    if at >= len(data):
        return 0, at + 1
    number = data[at]
    if number < 0x80:  # what nearly all are
        return number, at + 1
    number &= 0x7F
    for shift, octet in enumerate(data[at + 1 : at + 10], start=1):
        number |= (octet & 0x7F) << 7 * shift
        if octet < 0x80:
            return number, at + shift + 1
    return 0, len(data) + 1
