"""The dynamic table of HPACK: entries, sizes and evictions; integers, strings, and the blocks that are cached."""

from __future__ import annotations

import pytest

from jellybean_agent.rpc.hpack import TABLE_BYTES, Decoder, Headers, HpackError, encode_headers


def decoder(max_bytes: int = 2**14) -> Decoder[Headers]:
    return Decoder(max_bytes, lambda headers: headers)


def literal(first: int, name: bytes, value: bytes) -> bytes:
    """A literal with a new name; `first`: 0x40 adds it to the table, 0x00 and 0x10 do not."""
    return bytes((first, len(name))) + name + bytes((len(value),)) + value


def test_what_is_encoded_is_decoded() -> None:
    headers = tuple((b"name-%d" % size, b"x" * size) for size in (0, 1, 126, 127, 128, 254, 255, 256, 5000))
    assert decoder().decode(encode_headers(headers)) == headers


def test_entries_are_found_by_their_age() -> None:
    it = decoder()
    assert it.decode(literal(0x40, b"a", b"1") + literal(0x40, b"b", b"2") + literal(0, b"c", b"3")) == (
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    )
    assert it.decode(b"\xbe\xbf") == ((b"b", b"2"), (b"a", b"1")), "62 is the newest"
    assert it.decode(b"\x7e\x01x") == ((b"b", b"x"),), "a name of the table, with another value"
    assert it.decode(b"\xbe\xbf\xc0") == ((b"b", b"x"), (b"b", b"2"), (b"a", b"1"))
    for block in (b"\xc1", b"\x80"):
        with pytest.raises(HpackError, match="is in no table"):
            it.decode(block)


@pytest.mark.parametrize(
    ("block", "header"),
    [
        (b"\x82", (b":method", b"GET")),
        (b"\x83", (b":method", b"POST")),
        (b"\x81", (b":authority", b"")),
        (b"\xbd", (b"www-authenticate", b"")),
        (b"\x04\x02/x", (b":path", b"/x")),
        (b"\x14\x02/x", (b":path", b"/x")),
        (b"\x0f\x10\x01x", (b"content-type", b"x")),
    ],
)
def test_names_of_the_static_table(block: bytes, header: tuple[bytes, bytes]) -> None:
    assert decoder().decode(block) == (header,)


def test_the_oldest_entries_are_evicted_when_the_table_is_full() -> None:
    it = decoder()
    size = 1 + 63 + 32  # of an entry
    count = TABLE_BYTES // size
    for number in range(count + 1):
        it.decode(literal(0x40, bytes((97 + number % 26,)), bytes((number,)) * 63))
    oldest = 62 + count - 1
    assert it.decode(bytes((0x80 | oldest,)))[0][1][0] == 1, "the first one is gone"
    with pytest.raises(HpackError, match="is in no table"):
        it.decode(bytes((0x80 | oldest + 1,)))


def test_an_entry_as_large_as_the_table_empties_it_or_fits() -> None:
    it = decoder()
    it.decode(literal(0x40, b"a", b"1"))
    value = b"x" * (TABLE_BYTES - 32 - 1)
    large = b"\x40\x01a\x7f" + _rest(len(value)) + value
    it.decode(large)
    assert it.decode(b"\xbe") == ((b"a", value),)
    with pytest.raises(HpackError):
        it.decode(b"\xbf")
    it.decode(b"\x40\x01a\x7f" + _rest(len(value) + 1) + value + b"x")
    with pytest.raises(HpackError):
        it.decode(b"\xbe")


def _rest(length: int) -> bytes:
    """An integer after a prefix of seven ones."""
    left, octets = length - 127, b""
    while left >= 128:
        octets += bytes((left & 127 | 128,))
        left >>= 7
    return octets + bytes((left,))


def test_the_client_may_shrink_the_table_and_widen_it_again() -> None:
    it = decoder()
    it.decode(literal(0x40, b"a", b"1") + literal(0x40, b"b", b"2"))
    assert it.decode(b"\x3f\x03") == (), "34 bytes: one entry"
    assert it.decode(b"\xbe") == ((b"b", b"2"),)
    with pytest.raises(HpackError):
        it.decode(b"\xbf")
    it.decode(b"\x20")
    with pytest.raises(HpackError):
        it.decode(b"\xbe")
    it.decode(b"\x3f\xe1\x1f" + literal(0x40, b"c", b"3"))
    assert it.decode(b"\xbe") == ((b"c", b"3"),)
    with pytest.raises(HpackError, match=f"a table of {TABLE_BYTES + 1} bytes; {TABLE_BYTES} are the most"):
        it.decode(b"\x3f\xe2\x1f")
    with pytest.raises(HpackError, match="a change of the table's size within a block"):
        it.decode(b"\x82\x20")


def test_blocks_are_cached_until_the_table_changes() -> None:
    reads: list[Headers] = []

    def read(headers: Headers) -> int:
        reads.append(headers)
        return len(reads)

    it = Decoder(2**14, read)
    it.decode(literal(0x40, b"a", b"1"))
    assert [it.decode(b"\xbe") for _ in range(3)] == [2, 2, 2]
    it.decode(literal(0x40, b"b", b"2"))
    assert (it.decode(b"\xbe"), reads[-1]) == (4, ((b"b", b"2"),)), "the same bytes mean another header now"
    it.decode(b"\x20\x3f\xe1\x1f")
    with pytest.raises(HpackError):
        it.decode(b"\xbe")
    large = encode_headers([(b"a", b"x" * 600)])
    before = len(reads)
    it.decode(large)
    it.decode(large)
    assert len(reads) == before + 2, "large ones are not kept"
    many = [encode_headers([(b"n", b"%d" % number)]) for number in range(65)]
    for block in many:
        it.decode(block)
    before = len(reads)
    it.decode(many[0])
    it.decode(many[64])
    assert len(reads) == before + 1, "64 are kept"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"\x00\x05ab", "ends too soon"),
        (b"\x00\x01a\x05b", "ends too soon"),
        (b"\x00", "ends too soon"),
        (b"\x7f\x80", "ends too soon"),
        (b"\xff\xff\xff\xff\xff\x7f", "an integer that is too large"),
        (b"\xff\x80\x80\x80\x80\x80\x80\x01", "an integer that is too large"),
        (b"\x00\x81\x00\x00", "does not end with ones"),
        (b"\x00\x81\xff\x00", "does not end with ones"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "the end of a string within it"),
    ],
)
def test_blocks_that_cannot_be_decoded(block: bytes, reason: str) -> None:
    with pytest.raises(HpackError, match=reason):
        decoder().decode(block)


def test_headers_are_bounded_with_what_each_entry_costs() -> None:
    block = literal(0, b"ab", b"cde")
    assert len(decoder(37 * 3).decode(block * 3)) == 3
    with pytest.raises(HpackError, match="headers of more than 110 bytes"):
        decoder(37 * 3 - 1).decode(block * 3)
