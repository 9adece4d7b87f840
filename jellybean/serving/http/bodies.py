"""Bodies of HTTP requests, counted as they come and before they are decompressed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from aiohttp import web

from jellybean.serving.http.calls import HttpCall, RefusalError
from jellybean_agent import COMPRESSIONS, INLINE_BYTES, PIECE_BYTES, InflationError, inflate_piece

_MAX_MEMBERS = 64  # of a gzip body
_CODINGS = {**COMPRESSIONS, "x-gzip": COMPRESSIONS["gzip"]}
_RAW_DEFLATE = -15  # which many programs send as `deflate`; RFC 9110 means zlib's format
_ZLIB_METHOD = 8  # the low half of the first byte of zlib's format
_ACCEPTED = {"Accept-Encoding": "gzip, deflate"}


async def read_body(request: web.Request, call: HttpCall, limit: int, too_large: Callable[[int], str]) -> bytes:
    """The body, decompressed; its bytes are held by `call`. RefusalError if it is not what its headers say.

    `limit`: bytes above which it is refused, for the reason `too_large(size)`.
    """
    body, stated = _Body(call, limit, too_large, _content_coding(request)), request.content_length
    if stated is not None and stated > limit:
        raise RefusalError(413, too_large(stated))
    try:
        if request.content.is_eof():  # all of it came with the headers
            await body.add(request.content.read_nowait())
        else:
            await _receive(request, call, body)
    except web.RequestPayloadError as error:
        reason = f"the body is not what its headers say: {' '.join(str(error).split())[:200]}"
        raise RefusalError(400, reason, closes=True) from error
    return body.finish()


async def _receive(request: web.Request, call: HttpCall, body: _Body) -> None:
    async with call.reading():
        while chunk := await call.receive(request.content):
            await body.add(chunk)


def _content_coding(request: web.Request) -> str:
    """The coding of the body; empty without one. RefusalError if it is unknown, or there are several."""
    coding = ",".join(request.headers.getall("Content-Encoding", ())).strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in _CODINGS:
        raise RefusalError(415, f"Content-Encoding is {coding[:60]!r}: gzip or deflate is meant, or none", _ACCEPTED)
    return coding


class _Body:
    """A body that is being read. `size`: how much there is of it, decompressed."""

    def __init__(self, call: HttpCall, limit: int, too_large: Callable[[int], str], coding: str) -> None:
        self._call, self._limit, self._too_large, self._coding = call, limit, too_large, coding
        self._unpack: Any = None  # zlib's object of the stream that has begun
        self._members = 0
        self._pieces: list[bytes] = []
        self.size = self._received = 0

    async def add(self, chunk: bytes) -> None:
        """Add what came."""
        if not self._coding:
            self._call.hold(len(chunk))
            self._append(chunk)
            return
        self._received += len(chunk)
        if self._received > self._limit:  # it may be long without content
            raise RefusalError(413, self._too_large(self._received))
        for at in range(0, len(chunk), PIECE_BYTES):
            part = chunk[at : at + PIECE_BYTES]
            while part:
                if self._unpack is None or self._unpack.eof:
                    self._begin_member(part)
                part = await self._inflate(part)

    def finish(self) -> bytes:
        """The content of the body, which is complete. RefusalError if what is compressed is not."""
        if self._coding and (self._unpack is None or not self._unpack.eof):
            raise RefusalError(400, f"the body ends before its {self._coding} stream does")
        if len(self._pieces) == 1:
            return self._pieces[0]
        self._call.hold(self.size)
        content = b"".join(self._pieces)
        self._pieces.clear()
        self._call.give(self.size)
        return content

    def _begin_member(self, chunk: bytes) -> None:
        self._members += 1
        if self._members > (_MAX_MEMBERS if "gzip" in self._coding else 1):
            raise RefusalError(400, f"the body goes on after its {self._coding} stream")
        is_raw = self._coding == "deflate" and chunk[0] & 0xF != _ZLIB_METHOD
        self._unpack = zlib.decompressobj(wbits=_RAW_DEFLATE if is_raw else _CODINGS[self._coding])

    async def _inflate(self, chunk: bytes) -> bytes:
        """Add the content of a chunk, counted before it is made; returns what comes after the stream."""
        while True:
            is_small = self.size < INLINE_BYTES and self._received <= INLINE_BYTES
            size = INLINE_BYTES if is_small else PIECE_BYTES
            self._call.hold(size)
            try:
                if is_small:
                    piece = self._unpack.decompress(chunk, size)
                else:
                    piece = await inflate_piece(self._unpack, chunk, self._call.bytes.peer)
            except (zlib.error, InflationError) as error:
                raise RefusalError(400, f"the body is not {self._coding}, as its Content-Encoding says") from error
            self._call.give(size - len(piece))
            self._append(piece)
            if self._unpack.eof:
                unused: bytes = self._unpack.unused_data
                return unused
            chunk = self._unpack.unconsumed_tail
            if not chunk and len(piece) < size:
                return b""

    def _append(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._limit:
            raise RefusalError(413, self._too_large(self.size))
        self._pieces.append(piece)
