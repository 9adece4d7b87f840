"""The limits of the HTTP port: connections, time, requests and bytes, shared by clients; one request harms no other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.skips import NotInstalled

pytest.importorskip("aiohttp", reason=NotInstalled.AIOHTTP)

from aiohttp import web_protocol, web_server

from jellybean.serving.http.calls import CALL_BYTES, NO_BODY, TOO_MANY_BYTES, TOO_MANY_CALLS
from jellybean.serving.http.inference_http import JSON_LENGTH
from jellybean_agent import Array, PlanViewError
from tests.unit.serving.http_port import (
    PATH,
    ZEROS,
    Connection,
    Served,
    request,
    run,
    run_in_simulated_loop,
    tensor,
)

LIVE = "/v2/health/live"
CONNECTIONS = 16


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


# -- connections ------------------------------------------------------------------------------------------------------


def test_silent_connections_keep_nobody_out() -> None:
    async def test(port: Served) -> None:
        silent: list[Connection] = []
        for number in range(5 * CONNECTIONS):
            silent.append(await port.connect())
            if number % CONNECTIONS == 0:
                assert (await port.ask(body=tensor([1.0]))).json["outputs"][0]["data"] == [-1]
        assert (await port.ask(LIVE, source="127.0.0.2")).status == 200
        assert port.refused("to make room") >= 4 * CONNECTIONS
        for connection in silent:
            await connection.close()

    run(test, connections=CONNECTIONS)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_who_connects_while_the_port_closes_is_told_so(turns: int) -> None:
    clients: list[socket.socket] = []

    async def test(port: Served) -> None:
        clients.extend(socket.create_connection(("127.0.0.1", port.port), 10.0) for _ in range(3 * CONNECTIONS))
        for _ in range(turns):
            await asyncio.sleep(0)

    run(test)
    for client in clients:
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_a_connection_with_a_request_in_progress_is_not_ended_for_others() -> None:
    async def test(port: Served) -> None:
        port.backend.may_answer.clear()
        busy = await port.connect()
        await busy.send(request(body=tensor([2.0])))
        await until(lambda: port.backend.asked == 1)
        others = [await port.connect() for _ in range(3 * CONNECTIONS)]
        port.backend.may_answer.set()
        assert (await busy.answer()).json["outputs"][0]["data"] == [-2]
        for connection in (busy, *others):
            await connection.close()

    run(test, connections=CONNECTIONS)


@pytest.mark.parametrize("begin", [b"", b"POST /v2 HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_first_request_has_its_time_however_slowly_its_headers_come(begin: bytes) -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(begin)

        async def drip() -> None:
            with contextlib.suppress(OSError):
                while begin:
                    await connection.send(b"A: b\r\n")
                    await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await connection.is_ended()
        assert port.refused("no call") == 1
        dripping.cancel()
        await connection.close()

    run(test, run_in_simulated_loop, first_call_s=0.2)


@pytest.mark.parametrize("is_first", [True, False])
def test_headers_are_limited_in_all(is_first: bool) -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        if not is_first:
            await connection.send(request(LIVE))
            assert (await connection.answer()).status == 200
        await connection.send(request(LIVE)[:-2])
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await connection.send(b"A: " + b"b" * 4000 + b"\r\n")
                await asyncio.sleep(0.001)
            assert (await connection.answer()).status == 431
        assert await connection.is_ended()
        await connection.close()

    run(test)


def test_an_aiohttp_whose_headers_would_have_no_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(web_protocol.RequestHandler):  # type: ignore[misc]
        """What tells that a request's headers are complete has another name."""

        _waiter = property(fset=lambda self, waiter: None)

    monkeypatch.setattr(web_server, "RequestHandler", Renamed)

    async def test(port: Served) -> None:
        raise AssertionError("is served")

    with pytest.raises(PlanViewError, match=r"aiohttp \S+ does not say when the headers of a request are complete"):
        run(test)


def test_health_is_answered_although_all_bytes_are_held() -> None:
    async def test(port: Served) -> None:
        others = [port.admission.bytes.share_of(str(number)) for number in range(200)]
        for share in others:
            while share.take(2**12):
                pass
        assert (await port.ask(body=tensor([1.0]))).status in (429, 503)
        assert (await port.ask(LIVE)).status == 200

    run(test, request_bytes=2**18)


def test_an_idle_connection_has_its_time() -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(request(LIVE))
        assert (await connection.answer()).status == 200
        await connection.send(b"GET /v2 HTTP/1.1\r\n")  # no whole request is as good as none
        assert await connection.is_ended()
        await connection.close()

    run(test, run_in_simulated_loop, idle_s=0.2)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_one_client_cannot_take_all_requests() -> None:
    """Without certificates clients are told apart by their addresses; health is asked by everybody."""

    async def test(port: Served) -> None:
        port.backend.may_answer.clear()
        greedy = [asyncio.create_task(port.ask(body=tensor([1.0]))) for _ in range(20)]
        await until(lambda: port.refused(TOO_MANY_CALLS) == 6)  # 7/8 of 16 are allowed
        assert (await port.ask(LIVE)).status == 200
        other = asyncio.create_task(port.ask(body=tensor([3.0]), source="127.0.0.2"))
        await until(lambda: port.backend.asked == 15)
        port.backend.may_answer.set()
        answers = await asyncio.gather(*greedy)
        assert sorted(answer.status for answer in answers) == [200] * 14 + [429] * 6
        refusal = next(answer for answer in answers if answer.status == 429)
        assert "14 requests of this client, and 14 in all, are in progress" in refusal.json["error"]
        assert refusal.headers["retry-after"] == "1"
        assert (await other).json["outputs"][0]["data"] == [-3]

    run(test, calls=16)


@pytest.mark.parametrize("body", [b"", b"{"])
def test_a_body_that_does_not_come_is_given_up(body: bytes) -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(request(body=body, Content_Length="1000"))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert answer.json == {"error": "nothing of its body has arrived for 0.2 s"}
        assert port.refused(NO_BODY) == 1
        assert port.admission.bytes.held == 0
        await connection.close()

    run(test, run_in_simulated_loop, body_s=0.2)


def test_a_body_that_drips_is_given_up() -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(request(body=b"{", Content_Length="1000"))

        async def drip() -> None:
            with contextlib.suppress(OSError):
                while True:
                    await connection.send(b" ")
                    await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        answer = await connection.answer()
        assert answer.status == 408
        assert "which is too slow" in answer.json["error"]
        dripping.cancel()
        await connection.close()

    run(test, run_in_simulated_loop, body_s=0.5)


def test_stalled_bodies_end_for_requests_that_are_whole() -> None:
    async def test(port: Served) -> None:
        stalled = [await port.connect() for _ in range(16)]
        for connection in stalled:
            await connection.send(request(body=b"{", Content_Length="1000"))
        await asyncio.sleep(1.2)
        for number in range(3):
            assert (await port.ask(body=tensor([float(number)]))).status == 200
        assert port.refused(NO_BODY) >= 1
        for connection in stalled:
            await connection.close()

    run(test, run_in_simulated_loop, calls=16)


def test_an_answer_that_is_not_read_is_given_up() -> None:
    async def test(port: Served) -> None:
        connection = await port.connect(limit=2**10)
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(request(body=tensor([1.0], parameters={"binary_data_output": True})))
        await until(lambda: port.refused("does not read its answer") == 1)
        await until(lambda: port.admission.bytes.held == 0)
        connection.writer.transport.abort()

    run(test, answer=lambda x: np.zeros(2**23, np.float32), body_s=0.2)


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (bytes(2**20), {}),
        (b"%x\r\n%b\r\n0\r\n\r\n" % (2**20, bytes(2**20)), {"Transfer_Encoding": "chunked"}),
        (ZEROS, {"Content_Encoding": "gzip"}),
        (zlib.compress(bytes(2**23)), {"Content_Encoding": "deflate"}),
        (
            json.dumps(
                {"inputs": [{"name": "x", "datatype": "FP64", "shape": [200_000], "data": [0] * 200_000}]}
            ).encode(),
            {},
        ),
    ],
)
def test_bytes_are_counted_before_there_are_any(body: bytes, headers: dict[str, str]) -> None:
    """As they come, decompressed, and as the tensor that JSON becomes."""

    async def test(port: Served) -> None:
        answer = await port.ask(body=body, **headers)
        assert answer.status == 413
        assert "its body, tensors and answer need " in answer.json["error"]
        assert port.refused(TOO_MANY_BYTES) == 1
        assert port.admission.bytes.held == 0
        assert (await port.ask(body=tensor([1.0]))).status == 200

    run(test, request_bytes=2**19 + CALL_BYTES)


def test_what_an_answer_holds_is_counted() -> None:
    async def test(port: Served) -> None:
        answer = await port.ask(body=tensor([1.0]))
        assert answer.status == 413
        assert port.admission.bytes.held == 0

    run(test, request_bytes=2**19 + CALL_BYTES, answer=lambda x: np.zeros(2**18, np.float32))


def test_large_requests_leave_room_for_small_ones_of_the_same_client() -> None:
    async def test(port: Served) -> None:
        port.backend.may_answer.clear()
        body = tensor([1.0] * 60_000, parameters={"binary_data_output": True})
        large = [asyncio.create_task(port.ask(body=body)) for _ in range(20)]
        await until(lambda: port.refused(TOO_MANY_BYTES) + port.backend.asked == 20)
        assert port.refused(TOO_MANY_BYTES) > 0
        small = [asyncio.create_task(port.ask(body=tensor([2.0]))) for _ in range(3)]
        await until(lambda: port.refused(TOO_MANY_BYTES) + port.backend.asked == 23)
        port.backend.may_answer.set()
        assert [answer.status for answer in await asyncio.gather(*small)] == [200] * 3
        assert {answer.status for answer in await asyncio.gather(*large)} == {200, 429}

    run(test, request_bytes=2**23)


def test_one_clients_bytes_leave_room_for_anothers() -> None:
    async def test(port: Served) -> None:
        port.backend.may_answer.clear()
        # Nothing is answered yet: who has an answer is refused, or given up (408) for a body that stalls, as on a busy
        # machine.
        greedy = [asyncio.create_task(port.ask(body=tensor([1.0] * 2000))) for _ in range(40)]
        await until(lambda: sum(one.done() for one in greedy) + port.backend.asked == 40)
        assert port.refused(TOO_MANY_BYTES) > 0
        other = asyncio.create_task(port.ask(body=tensor([3.0]), source="127.0.0.2"))
        await until(lambda: sum(one.done() for one in (*greedy, other)) + port.backend.asked == 41)
        port.backend.may_answer.set()
        assert (await other).status == 200
        assert {answer.status for answer in await asyncio.gather(*greedy)} <= {200, 408, 429, 503}
        assert port.admission.bytes.held == 0

    run(test, run_in_simulated_loop, request_bytes=24 * CALL_BYTES)


# -- long work --------------------------------------------------------------------------------------------------------


def test_others_are_served_while_large_json_is_read_and_written() -> None:
    """Between the steps of one request others have their turns: many small ones are answered in its time."""
    numbers = np.linspace(-1, 1, 300_000, dtype=np.float32)

    async def test(port: Served) -> None:
        large = asyncio.create_task(port.ask(body=tensor(numbers.tolist())))
        await until(lambda: port.admission.bytes.held > 2**20)
        small = 0
        connection = await port.connect("127.0.0.2")
        while not large.done():
            await connection.send(request(body=tensor([1.0])))
            assert (await connection.answer()).status == 200
            small += 1
        await connection.close()
        (output,) = large.result().json["outputs"]
        assert np.array(output["data"], np.float32).tobytes() == (-numbers).tobytes()
        assert small >= 5
        assert port.admission.bytes.held == 0

    run(test)


@pytest.mark.parametrize("is_large", [False, True])
def test_bytes_and_json_in_one_answer(is_large: bool) -> None:
    values = np.arange(50_000 if is_large else 5, dtype=np.float32)

    async def test(port: Served) -> None:
        for binary in (True, False):
            parameters = {"binary_data_output": binary}
            answer = await port.ask(body=tensor(values.tolist(), parameters=parameters))
            size = int(answer.headers.get("inference-header-content-length", len(answer.body)))
            (output,) = json.loads(answer.body[:size])["outputs"]
            assert answer.body[size:] == ((-values).tobytes() if binary else b"")
            assert binary or np.array_equal(output["data"], -values)

    run(test)


@pytest.mark.parametrize("size", [3, 100_000])
def test_what_json_cannot_write_is_refused_before_anything_is_sent(size: int) -> None:
    def answer(array: Array) -> Array:
        found = np.zeros(size, np.float32)
        found[-1] = np.nan
        return found

    async def test(port: Served) -> None:
        refusal = await port.ask(body=tensor([1.0]))
        assert (refusal.status, "ask for it with binary_data" in refusal.json["error"]) == (400, True)

    run(test, answer=answer)


BOMB = ["x" * 300_000] + [""] * 2000


@pytest.mark.parametrize("data", [json.dumps(BOMB), json.dumps([[text] for text in BOMB]), "[[[" * 1000, "[{}]"])
def test_a_list_of_anything_costs_what_it_is(data: str) -> None:
    async def test(port: Served) -> None:
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ' + data.encode() + b"}]}"
        assert (await port.ask(body=body)).status == 400

    run(test, request_bytes=2**21)


def test_a_fault_of_the_server_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    def answer(array: Array) -> Array:
        return array if array[0] else np.zeros(3, np.complex64)  # which the wire lacks

    async def test(port: Served) -> None:
        connection = await port.connect()
        for value, status in ((1.0, 200), (0.0, 400), (1.0, 200)):
            await connection.send(request(body=tensor([value])))
            assert (await connection.answer()).status == status
        await connection.close()

    run(test, answer=answer)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("host", ["LOCALHOST", "localhost.:80", "[::1]:1", "127.0.0.1"])
def test_this_machine_is_called_by_any_of_its_names(host: str) -> None:
    async def test(port: Served) -> None:
        connection = await port.connect()
        await connection.send(f"GET {LIVE} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await connection.answer()).status == 200
        await connection.close()

    run(test)


def test_a_size_of_the_json_that_is_given_twice_is_refused() -> None:
    async def test(port: Served) -> None:
        for second, status in ((b"5", 400), (str(len(tensor([1.0]))).encode(), 200)):
            length = str(len(tensor([1.0]))).encode()
            head = request(PATH, tensor([1.0])).partition(b"\r\n\r\n")
            name = JSON_LENGTH.encode()
            connection = await port.connect()
            await connection.send(b"%s\r\n%s: %s\r\n%s: %s\r\n\r\n%s" % (head[0], name, length, name, second, head[2]))
            answer = await connection.answer()
            assert answer.status == status, answer.body
            await connection.close()

    run(test)
