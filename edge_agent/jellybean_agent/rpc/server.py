"""A gRPC server without TLS in this process' event loop; what it offers of grpc.aio.Server is what is used of it.

Handlers, health and reflection made for grpc.aio are served as they are. A method may also be served raw: its requests
are handed over as bytes, without a task for each.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean_agent.errors import StatusError
from jellybean_agent.rpc.calls import Connected, Method, Raw, RawStream, RpcCall
from jellybean_agent.rpc.http2 import Connection

_BACKLOG = 1024
_POLL_S = 0.005
Guard = Callable[[Any, str], Any]  # a handler and its method's path -> the handler behind the policy
Check = Callable[[str, Any], None]  # a method's path and a context; StatusError when the policy refuses


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[()] = ()


class RpcServer:
    """Serves what is added to it until `stop`. Made in a running event loop."""

    def __init__(
        self, guard: Guard, check: Check, *, most_calls: int, most_streams: int, most_message_bytes: int
    ) -> None:
        self._guard, self._check = guard, check
        self._most_calls = most_calls
        self.most_streams, self.most_message_bytes = most_streams, most_message_bytes
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self._raw: dict[str, Raw] = {}
        self._raw_streams: dict[str, RawStream] = {}
        self.methods: Mapping[str, Method] = _Methods(self._method)
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []
        self._connections: set[Connected] = set()
        self._calls: set[RpcCall] = set()
        self._stopped = asyncio.Event()

    # -- as grpc.aio.Server -------------------------------------------------------------------------------------------

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._registered |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_raw(self, path: str, raw: Raw) -> None:
        """Serve a unary method, which has a handler too, raw where the policy's answer depends on no certificate."""
        self._raw[path] = raw

    def add_raw_stream(self, path: str, raw: RawStream) -> None:
        """The same of a method whose requests and responses are streams."""
        self._raw_streams[path] = raw

    def add_insecure_port(self, address: str) -> int:
        """Bind to unix:/path or HOST:PORT; the port. RuntimeError when that cannot be."""
        try:
            if address.startswith("unix:"):
                self._sockets.append(_unix_socket(address.removeprefix("unix:")))
                return 1
            found = _tcp_socket(address)
        except OSError as error:
            raise RuntimeError(f"cannot bind to {address}: {error}") from error
        self._sockets.append(found)
        return int(found.getsockname()[1])

    async def start(self) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            made = lambda: Connection(self)  # noqa: E731
            if bound.family == socket.AF_UNIX:
                self._listeners.append(await loop.create_unix_server(made, sock=bound, backlog=_BACKLOG))
            else:
                self._listeners.append(await loop.create_server(made, sock=bound, backlog=_BACKLOG))

    async def stop(self, grace_s: float | None) -> None:
        """Take nothing new, let what is under way end within the grace, then end it."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.close()
        for bound in self._sockets:
            bound.close()
        for connection in self._connections:
            connection.leave()
        until_s = loop.time() + (grace_s or 0.0)
        while self._calls and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
        tasks = [call.task for call in self._calls if call.task is not None]
        for connection in list(self._connections):
            connection.close()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        while self._connections and loop.time() < until_s:  # what was said leaves
            await asyncio.sleep(_POLL_S)
        self._stopped.set()

    async def wait_for_termination(self) -> None:
        await self._stopped.wait()

    # -- for connections ----------------------------------------------------------------------------------------------

    def opened(self, connection: Connected) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connected) -> None:
        self._connections.discard(connection)

    def refusal(self) -> str:
        most = self._most_calls
        return f"{most} calls are under way, which is the most" if len(self._calls) > most else ""

    def began(self, call: RpcCall) -> None:
        self._calls.add(call)

    def ended(self, call: RpcCall) -> None:
        self._calls.discard(call)

    def allow(self, call: RpcCall) -> None:
        try:
            self._check(call.method.path, call)
        except StatusError as error:
            call.end(error.status, str(error))
        else:
            call.head.is_allowed = True

    def _method(self, path: str) -> Method | None:
        details = _Details(path)
        handler = self._registered.get(path)
        for service in self._generic:
            handler = handler or service.service(details)
        if handler is None:
            return None
        return Method(path, self._guard(handler, path), self._raw.get(path), self._raw_streams.get(path))


class _Methods(dict[str, Method]):
    """Methods by path, found when they are first asked for. Paths that are none are not remembered."""

    def __init__(self, find: Callable[[str], Method | None]) -> None:
        super().__init__()
        self._find = find

    def get(self, path: str, default: Any = None) -> Any:
        found = super().get(path)
        if found is None:
            found = self._find(path)
            if found is not None:
                self[path] = found
        return default if found is None else found


def _unix_socket(path: str) -> socket.socket:
    if Path(path).is_socket():
        Path(path).unlink()  # of a process before this one
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(path)
    except BaseException:
        found.close()
        raise
    return found


def _tcp_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    kinds = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = kinds[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # never REUSEPORT: two must not share in silence
        found.bind(where)
        found.listen(_BACKLOG)  # at once: or another could bind too
    except BaseException:
        found.close()
        raise
    return found
