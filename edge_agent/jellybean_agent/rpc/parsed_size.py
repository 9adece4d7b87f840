"""How much memory a protobuf message takes once it is parsed, found without parsing it.

Two bytes of an empty submessage become some hundred, a number of one byte becomes eight. Whoever sends many of them
within the size of a message could have a server allocate a multiple of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

SMALL_BYTES = 2**16  # messages up to this size are not looked through
MAX_OVERHEAD_BYTES = 2**23  # by which a parsed message may exceed its bytes
_ITEM_BYTES = 128  # of a submessage, a text or bytes besides their content
_NUMBER_BYTES = 8
_UNPACKED_BYTES = 64  # of a tag of numbers: less memory than that, but as much time to look at
_GROUPS = 2**62  # more than any limit: no message here has groups
_FIXED = {1: 8, 5: 4}


def has_large_overhead(descriptor: Any, data: bytes | memoryview) -> bool:
    """True if a message would take `MAX_OVERHEAD_BYTES` more than its bytes.

    Ends after that many parts of it, however large the message is: what follows is not looked at.
    """
    if len(data) <= SMALL_BYTES:
        return False
    return _overhead_bytes(descriptor, memoryview(data), MAX_OVERHEAD_BYTES) > MAX_OVERHEAD_BYTES


def _overhead_bytes(descriptor: Any, data: memoryview, most: int) -> int:
    """Bytes of memory besides the message's own, or some number above `most`.

    A damaged message is measured up to the damage.
    """
    fields, size, at, end = _fields(descriptor), _ITEM_BYTES, 0, len(data)
    while at < end and size <= most:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 2:
            kind = fields.get(key >> 3)
            length, at = _varint(data, at)
            if at + length > end:
                return size
            if kind is None:
                size += _ITEM_BYTES
            elif isinstance(kind, bool):
                size += _UNPACKED_BYTES + (length * (_NUMBER_BYTES - 1) if kind else 0)
            else:
                size += _overhead_bytes(kind, data[at : at + length], most - size)
            at += length
        elif wire == 0:
            size, at = size + _UNPACKED_BYTES, _varint(data, at)[1]
        elif wire in _FIXED:
            size, at = size + _UNPACKED_BYTES, at + _FIXED[wire]
        else:
            return _GROUPS
    return size


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
