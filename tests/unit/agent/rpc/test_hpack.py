"""Header blocks of HTTP/2 (RFC 7541): right ones are read, wrong ones refused."""

from __future__ import annotations

import pytest

from jellybean_agent.rpc.hpack import _CODES, Decoder, HpackError, _huffman


def test_headers_of_the_protocols_own_examples() -> None:
    """RFC 7541 C.4: one connection's requests, Huffman coded, with a dynamic table."""
    decoder = Decoder(2**14, dict)
    blocks = [
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ]
    first, second, third = (decoder.decode(bytes.fromhex(block)) for block in blocks)
    plain = {b":method": b"GET", b":scheme": b"http", b":path": b"/", b":authority": b"www.example.com"}
    assert first == plain
    assert second == plain | {b"cache-control": b"no-cache"}
    assert third == plain | {b":scheme": b"https", b":path": b"/index.html", b"custom-key": b"custom-value"}
    for wrong in ("ff80808080808080", "c5", "41", "418cf1e3c2", "3fe2ff7f", "4083ffffff0161"):
        with pytest.raises(HpackError):
            decoder.decode(bytes.fromhex(wrong))
    with pytest.raises(HpackError, match="more than 16384"):
        decoder.decode(bytes.fromhex("82") * 1000)


def test_every_octet_has_its_code() -> None:
    codes = {octet: f"{code:0{length}b}" for (length, code), octet in _CODES.items()}
    text = bytes(range(256)) * 3
    bits = "".join(codes[octet] for octet in text)
    bits += "1" * (-len(bits) % 8)
    assert _huffman(int(bits, 2).to_bytes(len(bits) // 8, "big")) == text
