"""Pages for scrapers and probes: two threads serve them, whoever connects and whatever is said."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from jellybean_agent import PORT_LIMITS, ListeningPort, serve_metrics, serve_pages
from jellybean_agent.process import page_server
from tests.support.ports import free_port

CONNECTIONS = PORT_LIMITS[ListeningPort.METRICS].connections
Refused = Counter[tuple[ListeningPort, str]]


class One(Collector):
    def collect(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("one", "One.", value=1.0)]


@contextlib.contextmanager
def metrics() -> Iterator[tuple[int, Refused]]:
    """A port for metrics, and what was refused there."""
    port, refused = free_port(), Refused()
    stop = serve_metrics(("127.0.0.1", port), One(), refused)
    assert stop is not None
    try:
        yield port, refused
    finally:
        stop()


@contextlib.contextmanager
def served(app: Any) -> Iterator[int]:
    port = free_port()
    stop = serve_pages(("127.0.0.1", port), app, ListeningPort.OPERATOR)
    try:
        yield port
    finally:
        stop()


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10.0, (source, 0))


def read_to_end(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(2**16), b""))


def said(port: int, text: bytes, source: str = "127.0.0.1") -> bytes:
    """What is answered to some bytes, until the connection ends."""
    with connect(port, source) as connection:
        connection.sendall(text)
        return read_to_end(connection)


def scrape(port: int, source: str = "127.0.0.1") -> bytes:
    return said(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", source)


def test_a_scraper_with_keep_alive_and_compression() -> None:
    with metrics() as (port, refused):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(3):
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip", "Connection": "keep-alive"})
            answer = connection.getresponse()
            assert answer.getheader("Content-Encoding") == "gzip"
            assert gzip.decompress(answer.read()).splitlines()[-1] == b"one 1.0"
    assert not refused


def test_silent_connections_start_no_threads_and_stop_no_scrape() -> None:
    with metrics() as (port, refused), contextlib.ExitStack() as stack:
        before = threading.active_count()
        for number in range(10 * CONNECTIONS):
            stack.enter_context(connect(port))
            if number % CONNECTIONS == 0:
                assert b"one 1.0" in scrape(port)
        assert b"one 1.0" in scrape(port, "127.0.0.2")
        assert threading.active_count() <= before + 1  # that of the pages begins with the first one
        assert refused.total() >= 8 * CONNECTIONS  # to make room, or on a busy machine as their time is over


def test_the_one_who_is_heard_stays() -> None:
    """A request whose page takes long is answered, although more connect than may."""
    asked, may_go = threading.Event(), threading.Event()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        asked.set()
        may_go.wait(10)
        start_response("200 OK", [])
        return [b"done"]

    with served(app) as port, connect(port) as connection, contextlib.ExitStack() as stack:
        connection.sendall(b"GET / HTTP/1.0\n\n")
        assert asked.wait(10)
        for _ in range(3 * CONNECTIONS):
            stack.enter_context(connect(port))
        may_go.set()
        assert read_to_end(connection).endswith(b"\r\n\r\ndone")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"405 Method Not Allowed"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"400 Bad Request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400 Bad Request"),
        (b"GET /" + b"a" * page_server.HEAD_BYTES, b"431 Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 3000, b"431 Request Header Fields Too Large"),
    ],
)
def test_what_is_no_request_for_a_page(text: bytes, status: bytes) -> None:
    with metrics() as (port, _):
        with contextlib.suppress(ConnectionResetError):  # as not all of it was read
            assert said(port, text).startswith(b"HTTP/1.1 " + status)
        assert b"one 1.0" in scrape(port)


@pytest.mark.parametrize("begin", [b"", b"GET /metrics HTTP/1.1\r\n"])
def test_who_says_nothing_or_says_it_slowly_has_its_time(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = dict(PORT_LIMITS) | {ListeningPort.METRICS: _limits(first_call_s=0.2)}
    monkeypatch.setattr(page_server, "PORT_LIMITS", limits)
    with metrics() as (port, refused), connect(port) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(begin)
        assert connection.recv(1) == b""
    assert refused == {(ListeningPort.METRICS, "no call"): 1}


def large_or_small(environ: Any, start_response: Any) -> list[bytes]:
    """Pages of 32 MiB, which no socket's buffers hold, or of a word."""
    start_response("200 OK", [])
    return [bytes(2**25) if environ["PATH_INFO"] == "/large" else b"small"]


@pytest.mark.parametrize("reads", [0, 2**16])
def test_an_answer_has_one_time_however_it_is_read(reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "PORT_LIMITS", {ListeningPort.METRICS: _limits(idle_s=0.1)})
    refused, port, size = Refused(), free_port(), 0
    stop = serve_pages(("127.0.0.1", port), large_or_small, ListeningPort.METRICS, refused)
    with connect(port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        for _ in range(1000):
            if refused or size >= 2**25:
                break
            with contextlib.suppress(ConnectionResetError):
                size += len(connection.recv(reads)) if reads else 0
            time.sleep(0.02)
    assert refused == {(ListeningPort.METRICS, "idle"): 1}
    stop()


def test_answers_that_nobody_reads_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even as long as they may stay, and from as many addresses as fill the port."""
    limits = _limits(connections=4, idle_s=60.0)
    monkeypatch.setattr(page_server, "PORT_LIMITS", {ListeningPort.OPERATOR: limits})
    with served(large_or_small) as port, contextlib.ExitStack() as stack:
        for source in ("127.0.0.3", "127.0.0.3", "127.0.0.3", "127.0.0.4"):
            connection = stack.enter_context(connect(port, source))
            connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert connection.recv(1)
        assert said(port, b"GET / HTTP/1.1\r\n\r\n", "127.0.0.2").endswith(b"small")


@pytest.mark.parametrize("crowd", [("127.0.0.3",) * 8, ("127.0.0.3", "127.0.0.4") * 4])
def test_addresses_have_their_pages_in_turn(crowd: tuple[str, ...]) -> None:
    begun, may_go, paths = threading.Event(), threading.Event(), list[str]()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        paths.append(environ["PATH_INFO"])
        begun.set()
        may_go.wait(10)
        start_response("200 OK", [])
        return [b"done"]

    with served(app) as port, contextlib.ExitStack() as stack:
        asked = []
        for source in (*crowd, "127.0.0.2"):
            connection = stack.enter_context(connect(port, source))
            connection.sendall(f"GET /{source} HTTP/1.1\r\n\r\n".encode())
            asked.append(connection)
            assert begun.wait(10)
            # Whatever needs no page is answered at once, after all that was said before.
            assert said(port, b"POST / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
        may_go.set()
        for connection in asked:
            assert read_to_end(connection).endswith(b"done")
    assert paths.index("/127.0.0.2") <= 1 + len(set(crowd))


def test_who_connects_while_the_port_closes_is_told_so() -> None:
    for _ in range(10):
        with contextlib.ExitStack() as stack:
            with metrics() as (port, _):
                connections = [stack.enter_context(connect(port)) for _ in range(3 * CONNECTIONS)]
            for connection in connections:
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""


def test_a_page_that_fails_is_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/bad":
            raise KeyError("bad")
        start_response("200 OK", [])
        return [environ["QUERY_STRING"].encode()]

    with served(app) as port:
        assert said(port, b"GET /bad HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 500 ")
        assert said(port, b"GET /good?a=b HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\na=b")
    assert [record.getMessage() for record in caplog.records] == ["a page failed unexpectedly: /bad"]


def _limits(**changes: Any) -> Any:
    return replace(PORT_LIMITS[ListeningPort.METRICS], **changes)
