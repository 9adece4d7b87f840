"""Serves a few small pages over HTTP/1.1 to scrapers and probes: by GET alone, one request a connection.

Two threads do all of it, however many connect: one has the connections, the other one makes the pages, for addresses
in turn. Both are apart from the process's event loop, so that probes and metrics are answered while that is busy.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from jellybean_agent.admission.gate import ConnectionGate, Entry
from jellybean_agent.admission.limits import PORT_LIMITS, ListeningPort
from jellybean_agent.admission.process import Admission
from jellybean_agent.system.addresses import listening_sockets, peer_name, peer_network

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

HEAD_BYTES = 2**13  # of a request line and its headers
_ACCEPTED_AT_ONCE = 4  # so that whoever connects is heard before others are let in
_BACKLOG = 1024
_REST = 3.0  # times the processor time of a page, in which no other one is made: pages take a quarter of a core at most
_CLOSE_TURNS = 5  # of the loop, in which what was accepted last is connected, aborted and closed
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(r"([A-Z]{1,20}) ([!-~]+) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)")
LOG = logging.getLogger("jellybean.pages")
Page = tuple[str, list[tuple[str, str]], bytes]  # status, headers, body


def serve_pages(
    at: tuple[str, int],
    app: WSGIApplication,
    port: ListeningPort,
    refused: Counter[tuple[ListeningPort, str]] | None = None,
) -> Callable[[], None]:
    """Serve `app` at host and port; returns a function that stops it. OSError if the port is not to be had.

    `port`: whose limits apply. `refused`: counts the connections that were ended.
    """
    server = _PageServer(listening_sockets(*at, _BACKLOG), app, port, refused)
    server.start()
    return server.stop


class _PageServer:
    """The two threads, and the open connections."""

    def __init__(
        self,
        listening: list[socket.socket],
        app: WSGIApplication,
        port: ListeningPort,
        refused: Counter[tuple[ListeningPort, str]] | None,
    ) -> None:
        self._listening, self._app, self._port = listening, app, port
        self._admission = Admission(request_bytes=0)  # of this thread alone: shares are not for several threads
        if refused is not None:
            self._admission.refused = refused
        self._limits = PORT_LIMITS[port]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=f"pages {port}", daemon=True)
        self._pages = ThreadPoolExecutor(1, f"pages of {port}")
        self.requests = _RequestQueue()
        self._is_up = threading.Event()
        self.open: set[_PageConnection] = set()

    def start(self) -> None:
        self._thread.start()
        self._is_up.wait()

    def stop(self) -> None:
        """Close the port and all connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self.gate = ConnectionGate(self._port, self._limits, self._admission)
        servers = []
        for listening in self._listening:
            servers.append(
                await self._loop.create_server(lambda: _PageConnection(self), sock=listening, backlog=_ACCEPTED_AT_ONCE)
            )
            listening.listen(_BACKLOG)  # more may wait
        self._is_up.set()
        pages = asyncio.create_task(self._answer_in_turn())
        try:
            await self._stopped.wait()
        finally:
            pages.cancel()
            for listening in self._listening:
                self._loop.remove_reader(listening)
            for _ in range(_CLOSE_TURNS):
                for connection in list(self.open):
                    connection.abort()
                await asyncio.sleep(0)
            for server in servers:
                server.close()  # once nothing is being accepted: asyncio would leave such sockets open
            self._pages.shutdown(wait=False, cancel_futures=True)

    async def _answer_in_turn(self) -> None:
        while True:
            request = await self.requests.next()
            if request.connection not in self.open:  # it was ended for another one
                continue
            page, processor_s = await self._loop.run_in_executor(self._pages, self._make, request.environ)
            request.connection.answer(page)
            await asyncio.sleep(_REST * processor_s)

    def _make(self, environ: dict[str, Any]) -> tuple[Page, float]:
        """What the application answers, and the processor seconds it took."""
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
            started.append((status, headers))

        before_s = time.thread_time()
        try:
            body = b"".join(self._app(environ, cast(Any, start_response)))
            page = *started[-1], body
        except Exception:  # a boundary: this request fails, the next one may not
            LOG.exception("a page failed unexpectedly: %s", environ["PATH_INFO"][:80])
            page = refusal("500 Internal Server Error", "failed unexpectedly: the process's log says why")
        return page, time.thread_time() - before_s


@dataclass(frozen=True, slots=True)
class _PageRequest:
    """A page to make, and the connection that waits for it."""

    connection: _PageConnection
    environ: dict[str, Any]


class _RequestQueue:
    """Requests that wait for their pages: addresses take turns (round robin), however many requests each has."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_PageRequest]] = {}  # by address, the next one to be served first
        self._is_filled = asyncio.Event()

    def add(self, address: str, request: _PageRequest) -> None:
        """Queue a request behind those of its address."""
        self._waiting.setdefault(address, deque()).append(request)
        self._is_filled.set()

    async def next(self) -> _PageRequest:
        """Remove and return the request whose turn it is; wait for one if there is none."""
        while not self._waiting:
            self._is_filled.clear()
            await self._is_filled.wait()
        address = next(iter(self._waiting))
        requests = self._waiting.pop(address)
        request = requests.popleft()
        if requests:
            self._waiting[address] = requests
        return request


class _PageConnection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, server: _PageServer) -> None:
        self._server = server
        self._head = bytearray()
        self._entry: Entry | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = peer_network(peer_name(transport))
        self._entry = self._server.gate.enter(self._address, lambda reason: self.abort())
        if self._entry is None:
            self.abort()
        self._server.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open.discard(self)
        if self._entry is not None:
            self._entry.leave()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._head += data
        end = _END_OF_HEAD.search(self._head)
        is_http = self._head[:1].isupper()  # TLS is not, and would never get to the end of its head
        if self._entry is None or self._entry.has_called or (is_http and not end and len(self._head) <= HEAD_BYTES):
            return
        self._transport.pause_reading()
        self._entry.call_began()
        head = bytes(self._head[: end.start() if end else HEAD_BYTES + 1])
        request = read_head(head)
        if isinstance(request, dict):
            self._server.requests.add(self._address, _PageRequest(self, request))
        else:
            self.answer(request)

    def answer(self, page: Page) -> None:
        """Send a page, then close. From here on the connection is an idle one: the gate ends it if nobody reads."""
        status, headers, body = page
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        if self._entry is not None and not self._transport.is_closing():
            self._entry.call_ended()
            self._transport.write("\r\n".join(lines).encode("latin-1") + body)
            self._transport.close()


def read_head(head: bytes) -> dict[str, Any] | Page:
    """The WSGI environment of a request; where it is refused, the page that says so."""
    if len(head) > HEAD_BYTES:
        return refusal("431 Request Header Fields Too Large", f"a request has at most {HEAD_BYTES} bytes")
    line, *lines = re.split("\r?\n", head.decode("latin-1"))
    request, headers = _REQUEST_LINE.fullmatch(line), [_HEADER.fullmatch(header) for header in lines]
    fields = {found[1].lower(): found[2] for found in headers if found}
    if request is None or None in headers:
        return refusal("400 Bad Request", "this is no HTTP/1.1 request")
    if request[1] != "GET":
        return refusal("405 Method Not Allowed", "ask by GET", ("Allow", "GET"))
    if fields.get("content-length", "0") != "0" or "transfer-encoding" in fields:
        return refusal("400 Bad Request", "a GET has no body here")
    path, _, query = request[2].partition("?")
    return {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "HTTP_ACCEPT": fields.get("accept", ""),
        "HTTP_ACCEPT_ENCODING": fields.get("accept-encoding", ""),
    }


def refusal(status: str, reason: str, *headers: tuple[str, str]) -> Page:
    """A page of one line."""
    return status, [("Content-Type", "text/plain; charset=utf-8"), *headers], f"{reason}\n".encode()
