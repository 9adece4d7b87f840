"""Pages for scrapers and probes: two threads serve them, whoever connects and whatever is said."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
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
from tests.support.waiting import wait_until

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


def said(port: int, text: bytes, source: str = "127.0.0.1") -> bytes:
    """What is answered to some bytes, until the connection ends."""
    with connect(port, source) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(2**16), b""))


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
        assert refused[ListeningPort.METRICS, "to make room"] >= 8 * CONNECTIONS


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
        assert b"".join(iter(lambda: connection.recv(2**16), b"")).endswith(b"\r\n\r\ndone")


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
    with metrics() as (port, refused), connect(port) as connection:
        connection.sendall(begin)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert refused == {(ListeningPort.METRICS, "no call"): 1}


def test_who_does_not_read_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "PORT_LIMITS", {ListeningPort.METRICS: _limits(body_s=0.1)})
    refused, port = Refused(), free_port()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [bytes(2**25)]

    stop = serve_pages(("127.0.0.1", port), app, ListeningPort.METRICS, refused)
    with connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: refused[ListeningPort.METRICS, "does not read its answer"] == 1, 20.0)
    stop()


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
