"""Compressed bodies at the HTTP port: read as what their Content-Encoding says, or refused, and limited."""

from __future__ import annotations

import asyncio
import logging
import zlib

import pytest

from tests.support.skips import NotInstalled

pytest.importorskip("aiohttp", reason=NotInstalled.AIOHTTP)

from tests.unit.serving.http_port import Served, gzipped, request, run, tensor


@pytest.mark.parametrize(
    ("coding", "body", "status", "told"),
    [
        ("gzip", b'{"inputs": []}', 400, "the body is not gzip, as its Content-Encoding says"),
        ("deflate", b'{"inputs": []}', 400, "the body is not deflate, as its Content-Encoding says"),
        ("gzip", b"", 400, "the body ends before its gzip stream does"),
        ("gzip", gzipped(tensor([1.0]))[:-1], 400, "the body ends before its gzip stream does"),
        ("gzip", gzipped(tensor([1.0])) + b"more", 400, "the body is not gzip"),
        ("deflate", zlib.compress(tensor([1.0])) + b"more", 400, "the body goes on after its deflate stream"),
        ("gzip", gzipped(b"") * 100, 400, "the body goes on after its gzip stream"),
        ("br", tensor([1.0]), 415, "gzip or deflate is meant"),
        ("zstd", tensor([1.0]), 415, "gzip or deflate is meant"),
        ("gzip, gzip", tensor([1.0]), 415, "gzip or deflate is meant"),
        ("gzip", gzipped(b" " * (2**24 + 1)), 413, "bytes of JSON are above the limit of"),
    ],
)
def test_a_body_is_what_its_content_encoding_says(
    coding: str, body: bytes, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test(port: Served) -> None:
        answer = await port.ask(body=body, Content_Encoding=coding)
        assert answer.status == status
        assert told in answer.json["error"]
        assert ("accept-encoding" in answer.headers) == (status == 415)
        assert port.admission.bytes.held == 0

    run(test)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("INFO", None)]


def test_a_compressed_body_may_begin_without_content() -> None:
    body = b"\0\0\0\xff\xff" * 100_000 + zlib.compress(tensor([1.0]))[2:-4]

    async def test(port: Served) -> None:
        answer = await port.ask(body=body, Content_Encoding="deflate")
        assert answer.json["outputs"][0]["data"] == [-1]

    run(test)


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_compressed_body_without_content_is_limited_too(is_chunked: bool) -> None:
    body = zlib.compress(b"")[:2] + b"\0\0\0\xff\xff" * 200_000
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    async def test(port: Served) -> None:
        headers = {"Content_Encoding": "deflate"} | ({"Transfer_Encoding": "chunked"} if is_chunked else {})
        answer = await port.ask("/v2/repository/index", body=chunks if is_chunked else body, **headers)
        assert answer.status == 413
        assert "above the limit of" in answer.json["error"]
        assert port.admission.bytes.held == 0

    run(test)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("identity", tensor([1.0])),
        ("GZIP", gzipped(tensor([1.0]))),
        ("x-gzip", gzipped(tensor([1.0]))),
        ("gzip", gzipped(tensor([1.0])[:20]) + gzipped(b"") + gzipped(tensor([1.0])[20:])),
        ("deflate", zlib.compress(tensor([1.0]))),
        ("deflate", zlib.compress(tensor([1.0]))[2:-4]),
        ("gzip", gzipped(tensor([1.0] * 30_000))),
    ],
)
def test_compressed_bodies_are_read(coding: str, body: bytes) -> None:
    async def test(port: Served) -> None:
        for size in (7, len(body)):
            connection = await port.connect()
            await connection.send(request(body=b"", Content_Encoding=coding, Content_Length=str(len(body))))
            for at in range(0, len(body), size):
                await connection.send(body[at : at + size])
                await asyncio.sleep(0)
            assert (await connection.answer()).json["outputs"][0]["data"][:1] == [-1]
            await connection.close()

    run(test)
