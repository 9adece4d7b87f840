"""Header compression of HTTP/2 (HPACK, RFC 7541): a decoder with its dynamic table, and an encoder without one.

Clients repeat their header blocks: a block of table references is decoded once per state of the dynamic table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Generic, TypeVar

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]
Read = TypeVar("Read")

TABLE_BYTES = 4096  # size of the dynamic table, the protocol's default
_ENTRY_BYTES = 32  # overhead per entry, by the protocol
_MAX_CACHED, _MAX_CACHED_BYTES = 64, 512  # number of cached blocks; largest block that is cached
_MAX_INTEGER = 2**31

_TABLE = (  # the protocol's static table: name, and after a space its value
    ":authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|"
    ":status 200|:status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|"
    "accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|"
    "allow|authorization|cache-control|content-disposition|content-encoding|content-language|"
    "content-length|content-location|content-range|content-type|cookie|date|etag|expect|expires|from|"
    "host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|"
    "location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|"
    "server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
_STATIC: tuple[Header, ...] = tuple(
    (name.encode(), value.encode()) for name, _, value in (entry.partition(" ") for entry in _TABLE.split("|"))
)
_LENGTHS = (  # code length in bits of each octet in the canonical Huffman code, two digits each; last: end of string
    "132328282828282828243028283028282828282828283028282828282828282806101012130608111010081108060606"
    "050505060606060606060708150612101306070707070707070707070707070707070707070707070807081319131406"
    "150506050605060606050707060606050607060505060707070707151114132820222020222222232223232323232423"
    "242422232423232323212223222323242221202222232321232222242122232321212221232223232022222223222223"
    "262620192223222526262627272624251921262727262724212126262827272720242021222121232222252524242623"
    "2627262627272727272827272727272630"
)


class HpackError(Exception):
    """A header block that cannot be decoded; the connection's compression state is lost."""


def encode_headers(headers: Iterable[Header]) -> bytes:
    """A header block of literals, which needs no dynamic table."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


class Decoder(Generic[Read]):
    """Decodes the header blocks of one connection.

    `max_bytes`: largest size of one block's headers, entry overhead included. `read`: converts decoded headers; its
    result is cached with the block.
    """

    def __init__(self, max_bytes: int, read: Callable[[Headers], Read]) -> None:
        self._max_bytes, self._read = max_bytes, read
        self._dynamic: deque[Header] = deque()
        self._bytes, self._table_bytes = 0, TABLE_BYTES
        self._cached: dict[bytes, Read] = {}

    def decode(self, block: bytes) -> Read:
        """Decode and convert a whole block. HpackError when it is invalid or too large."""
        found = self._cached.get(block)
        if found is None:
            found = self._decoded(block)
        return found

    def _decoded(self, block: bytes) -> Read:
        found: list[Header] = []
        at, size, changes = 0, 0, False
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 7)
                    found.append(self._entry(index))
                elif first & 0xE0 == 0x20:
                    if found:
                        raise HpackError("a change of the table's size within a block")
                    limit, at = _integer(block, at, 5)
                    self._resize(limit)
                    changes = True
                    continue
                else:
                    adds = bool(first & 0x40)
                    header, at = self._literal(block, at, 6 if adds else 4)
                    found.append(header)
                    if adds:
                        self._add(header)
                        changes = True
                size += len(found[-1][0]) + len(found[-1][1]) + _ENTRY_BYTES
                if size > self._max_bytes:
                    raise HpackError(f"headers of more than {self._max_bytes} bytes")
        except IndexError as error:
            raise HpackError("a header block that ends too soon") from error
        value = self._read(tuple(found))
        if changes:
            self._cached.clear()
        elif len(self._cached) < _MAX_CACHED and max(len(block), size // 4) <= _MAX_CACHED_BYTES:
            self._cached[block] = value
        return value

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Header, int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _read_string(block, at)
        value, at = _read_string(block, at)
        return (name, value), at

    def _entry(self, index: int) -> Header:
        if 1 <= index <= len(_STATIC):
            return _STATIC[index - 1]
        if len(_STATIC) < index <= len(_STATIC) + len(self._dynamic):
            return self._dynamic[index - len(_STATIC) - 1]
        raise HpackError(f"header {index} is in no table")

    def _add(self, header: Header) -> None:
        self._dynamic.appendleft(header)
        self._bytes += len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict()

    def _resize(self, limit: int) -> None:
        if limit > TABLE_BYTES:
            raise HpackError(f"a table of {limit} bytes; {TABLE_BYTES} are the most")
        self._table_bytes = limit
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._table_bytes:
            name, value = self._dynamic.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """(the integer with a prefix of `bits` bits at offset `at`, the offset after it)."""
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        shift += 7
        if value > _MAX_INTEGER or shift > 35:
            raise HpackError("an integer that is too large")
        if not octet & 0x80:
            return value, at


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] & 0x80
    length, at = _integer(block, at, 7)
    if at + length > len(block):
        raise HpackError("a header block that ends too soon")
    text = block[at : at + length]
    return (_huffman(text) if coded else text), at + length


def _string(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    octets, left = [0x7F], length - 0x7F
    while left >= 0x80:
        octets.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*octets, left)) + text


def _codes() -> dict[tuple[int, int], int]:
    """The Huffman code as (length in bits, code) -> octet; 256 is the end of a string."""
    lengths = [int(_LENGTHS[at : at + 2]) for at in range(0, len(_LENGTHS), 2)]
    found: dict[tuple[int, int], int] = {}
    code, before = 0, 0
    for length, octet in sorted((length, octet) for octet, length in enumerate(lengths)):
        code <<= length - before
        before = length
        found[length, code] = octet
        code += 1
    return found


_CODES = _codes()
_END, _LONGEST = 256, 30


@cache
def _step(length: int, code: int, nibble: int) -> tuple[int, int, bytes]:
    """Append four bits to a partial code of `length` bits; returns its new length and value, and the octet decoded."""
    found = b""
    for bit in (3, 2, 1, 0):
        code = code << 1 | nibble >> bit & 1
        length += 1
        symbol = _CODES.get((length, code))
        if symbol == _END:
            raise HpackError("the end of a string within it")
        if symbol is not None:
            found = bytes((symbol,))
            code = length = 0
        elif length > _LONGEST:
            raise HpackError("bits that are no code")
    return length, code, found


def _huffman(text: bytes) -> bytes:
    found = bytearray()
    code = length = 0
    for octet in text:
        length, code, ended = _step(length, code, octet >> 4)
        found += ended
        length, code, ended = _step(length, code, octet & 15)
        found += ended
    if length > 7 or code != (1 << length) - 1:
        raise HpackError("a string that does not end with ones")
    return bytes(found)
