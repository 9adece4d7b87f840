"""The time of clients at the event loop: whatever one of them sends over HTTP, others are answered."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.skips import NotInstalled

pytest.importorskip("aiohttp", reason=NotInstalled.AIOHTTP)

from aiohttp import web_protocol

from tests.unit.serving.http_port import PATH, Served, request, tensor
from tests.unit.serving.test_http_port import run, until


def test_a_body_of_tiny_chunks_is_refused_by_what_is_around_them() -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(request(body=b"", Transfer_Encoding="chunked"))
        with contextlib.suppress(ConnectionError):  # it ends while chunks are being sent
            for _ in range(100):
                await connection.send(b"1\r\n \r\n" * 1000)
        answer = await connection.answer()
        assert answer.status == 400
        assert "send larger chunks" in answer.json["error"]
        await connection.close()
        small = b"".join(b"1\r\n%c\r\n" % octet for octet in tensor([1.0, 2.0])) + b"0\r\n\r\n"
        connection = await port.connect()
        await connection.send(request(body=small, Transfer_Encoding="chunked"))
        assert (await connection.answer()).json["outputs"][0]["data"] == [-1, -2]
        await connection.close()

    run(test)


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_a_client_without_time_waits_and_another_one_is_answered(is_pipelined: bool) -> None:
    """Whatever it sends: what another client asks is answered while it waits for its turn."""
    large = tensor([1.0] * 20_000)

    async def test(port: Served) -> None:
        turn = port.admission.turns.of("ipv4:127.0.0.2")
        connection = await port.connect("127.0.0.2")
        await connection.send(request(body=tensor([1.0])) if is_pipelined else request(body=large)[:1000])
        await until(lambda: port.backend.asked == is_pipelined)
        turn.charge(1e9)
        await connection.send(request(body=tensor([1.0])) if is_pipelined else request(body=large)[1000:])
        for _ in range(3):
            assert (await port.ask(body=tensor([3.0]))).json["outputs"][0]["data"] == [-3]
        assert port.backend.asked == 3 + is_pipelined
        assert turn.is_used_up
        await connection.close()

    run(test)


@pytest.mark.parametrize("path", ["/v2/models/none/load", "/elsewhere", PATH])
def test_the_rest_of_a_body_that_nobody_reads_is_dropped(path: str) -> None:
    """Its chunks are not even looked at: without a limit they would take the time of others."""

    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(request(path, b"", Transfer_Encoding="chunked"))
        await connection.send(b"1\r\n \r\n" * (100_000 if path == PATH else 10))
        answer = await connection.answer()
        assert answer.status in (400, 404)
        assert answer.headers["connection"] == "close"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(web_protocol.RequestHandler, "data_received", None)  # it would fail
            with contextlib.suppress(ConnectionError):
                await connection.send(b"1\r\n \r\n" * 10_000)
            assert await connection.is_ended()
        await connection.close()

    run(test)


@pytest.mark.parametrize("count", [2000, 150_000])
def test_a_small_body_that_was_refused_leaves_its_connection(count: int) -> None:
    """As of a picture that came to a gateway with too many calls."""
    whole = request("/elsewhere", tensor([1.0] * count))

    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(whole[:2000])
        assert (await connection.answer()).status == 404
        await connection.send(whole[2000:])
        await connection.send(request(body=tensor([2.0])))
        assert (await connection.answer()).json["outputs"][0]["data"] == [-2]
        await connection.close()

    run(test)
