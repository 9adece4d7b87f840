"""A gRPC server in this process's event loop, with the part of grpc.aio.Server's interface that is used.

It serves handlers, health and reflection made for grpc.aio. A method may also be served raw: its handler gets requests
as bytes, without an asyncio task per call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jellybean_agent.admission.limits import PORT_LIMITS, ListeningPort, PortLimits
from jellybean_agent.admission.process import Admission
from jellybean_agent.rpc.calls import Method, OpenConnection, RawStream, RawUnary
from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.rpc.http2 import Http2Connection
from jellybean_agent.rpc.port import RpcPort
from jellybean_agent.rpc.tls.listener import TlsLimits, TlsListener
from jellybean_agent.system.addresses import listening_sockets, parse_address
from jellybean_agent.system.private_files import is_in_private_folder

LOG = logging.getLogger("jellybean.rpc")
_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 4  # connections that asyncio accepts in one turn, before the port's limits are applied
_POLL_S = 0.005
_PATHS_S = 0.5  # between looks whether the files of Unix sockets are there: a caller waits as long for a removed one
Guard = Callable[[Any, str], Any]  # handler, path of its method -> handler that checks the policy first
Check = Callable[[str, Any], bool]  # path of a method, context; StatusError if refused; True: for the whole connection


@dataclass(frozen=True, slots=True)
class _HandlerCallDetails:
    """A minimal `grpc.HandlerCallDetails`, for looking up a method's handler."""

    method: str
    invocation_metadata: tuple[()] = ()


class RpcServer:
    """Serves the handlers added to it, from `start` to `stop`. Made in a running event loop.

    `guard` wraps a handler so that it checks the access policy; `check` does this check for a raw handler, and is true
    if the next call with the same headers on the same connection need not be checked.
    """

    def __init__(
        self, guard: Guard, check: Check, admission: Admission | None = None, limits: PortLimits | None = None
    ) -> None:
        """`admission`: of the process; its own if there is none. `limits`: of all ports instead of the table's."""
        self._guard, self.check = guard, check
        self.admission = admission or Admission()
        self._limits = limits
        self.flood_limits = FloodLimits()
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self._raw: dict[str, RawUnary] = {}
        self._raw_streams: dict[str, RawStream] = {}
        self.methods: Mapping[str, Method] = _Methods(self._method)
        self._sockets: list[tuple[socket.socket, RpcPort, TlsListener | None]] = []
        self._listeners: list[asyncio.Server] = []  # of the sockets, in their order
        self._paths_task: asyncio.Task[None] | None = None
        self.ports: list[RpcPort] = []
        self._stopped = asyncio.Event()

    # -- as grpc.aio.Server -------------------------------------------------------------------------------------------

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._registered |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_raw(self, path: str, raw: RawUnary) -> None:
        """Serve a unary method by `raw`; requests for which it returns False go to the method's handler."""
        self._raw[path] = raw

    def add_raw_stream(self, path: str, raw: RawStream) -> None:
        """Serve a method with streams of requests and responses raw."""
        self._raw_streams[path] = raw

    def add_insecure_port(self, address: str, port: ListeningPort = ListeningPort.CLIENTS) -> int:
        """Bind to unix:/path or HOST:PORT; returns the port. RuntimeError if that is impossible.

        `port`: whose limits apply.
        """
        return self._bind(address, self.open_port(port), None)

    def add_secure_port(
        self, address: str, context: ssl.SSLContext, limits: TlsLimits, port: ListeningPort = ListeningPort.CLIENTS
    ) -> int:
        """Bind to HOST:PORT with TLS, whose `context` is asked for every connection. RuntimeError as above."""
        rpc_port = self.open_port(port)
        return self._bind(address, rpc_port, TlsListener(rpc_port, context, limits))

    def open_port(self, port: ListeningPort = ListeningPort.CLIENTS) -> RpcPort:
        """The connections and calls of one more socket."""
        opened = RpcPort(self, port, self._limits or PORT_LIMITS[port], self.admission)
        self.ports.append(opened)
        return opened

    def _bind(self, address: str, port: RpcPort, listener: TlsListener | None) -> int:
        is_unix = address.startswith("unix:")
        try:
            if is_unix:
                sockets = [_unix_socket(address.removeprefix("unix:"))]
            else:
                sockets = listening_sockets(*parse_address(address, least_port=0), _BACKLOG)
        except (OSError, UnicodeError) as error:
            raise RuntimeError(f"cannot bind to {address}: {error}") from error
        for bound in sockets:
            self._sockets.append((bound, port, listener))
            # A server that is dropped before it is started closes its sockets too.
            weakref.finalize(self, bound.close).atexit = False
        return 1 if is_unix else int(sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Accept connections."""
        for bound, port, secure in self._sockets:
            self._listeners.append(await _listen(bound, port, secure))
        if any(bound.family == socket.AF_UNIX for bound, _, _ in self._sockets):
            self._paths_task = asyncio.create_task(self._keep_paths())

    async def _keep_paths(self) -> None:
        """Bind Unix sockets again whose files are removed: connections last, but nobody could open another one.

        Not where other users could reach them: they may have made the folder where a private one was.
        """
        while True:
            await asyncio.sleep(_PATHS_S)
            for index, (bound, port, secure) in enumerate(self._sockets):
                path = bound.getsockname() if bound.family == socket.AF_UNIX else ""
                if not path or os.path.lexists(path) or not is_in_private_folder(Path(path)):
                    continue
                with contextlib.suppress(OSError):  # its folder is gone too, or its disk full: tried again
                    again = _unix_socket(path)
                    weakref.finalize(self, again.close).atexit = False
                    listener, self._listeners[index] = self._listeners[index], await _listen(again, port, secure)
                    self._sockets[index] = (again, port, secure)
                    listener.close()
                    LOG.warning("%s was removed: it is bound again", path)

    def retire(self) -> None:
        """Have all clients connect again: behind a Service to another server. Calls until they know are accepted."""
        for connection in self._connections():
            connection.retire()

    async def stop(self, grace_s: float | None) -> None:
        """Accept no further call, wait up to `grace_s` for those in progress, then end them."""
        loop = asyncio.get_running_loop()
        self._stop_listening()
        for connection in self._connections():
            connection.drain()
        until_s = loop.time() + (grace_s or 0.0)
        while self.calls_in_progress and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
        tasks = [call.task for port in self.ports for call in port.calls if call.task is not None]
        for connection in self._connections():
            connection.close()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        while self.open_connections and loop.time() < until_s:  # until all answers have left
            await asyncio.sleep(_POLL_S)
        for _, _, secure in self._sockets:
            if secure is not None:
                await secure.close()
        self._stopped.set()

    def _stop_listening(self) -> None:
        if self._paths_task is not None:
            self._paths_task.cancel()
        for listener in self._listeners:
            listener.close()
        for bound, _, _ in self._sockets:
            bound.close()

    async def wait_for_termination(self) -> None:
        await self._stopped.wait()

    @property
    def calls_in_progress(self) -> int:
        """Number of calls that are not over, those with unread answers included."""
        return sum(len(port.calls) for port in self.ports)

    @property
    def open_connections(self) -> int:
        """Number of connections; with TLS, whose handshake is complete."""
        return sum(len(port.connections) for port in self.ports)

    def _connections(self) -> list[OpenConnection]:
        return [connection for port in self.ports for connection in port.connections]

    def _method(self, path: str) -> Method | None:
        details = _HandlerCallDetails(path)
        handler = self._registered.get(path)
        for service in self._generic:
            handler = handler or service.service(details)
        if handler is None:
            return None
        return Method(path, self._guard(handler, path), self._raw.get(path), self._raw_streams.get(path))


class _Methods(dict[str, Method]):
    """Methods by path, looked up on first use. Unknown paths are not cached."""

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


async def _listen(bound: socket.socket, port: RpcPort, secure: TlsListener | None) -> asyncio.Server:
    """Accept connections at a bound socket."""
    loop = asyncio.get_running_loop()
    make: Callable[[], asyncio.BufferedProtocol] = partial(Http2Connection, port) if secure is None else secure.accept
    create: Any = loop.create_unix_server if bound.family == socket.AF_UNIX else loop.create_server
    listener: asyncio.Server = await create(make, sock=bound, backlog=_ACCEPTED_AT_ONCE)
    bound.listen(_BACKLOG)  # more may wait
    return listener


def _unix_socket(path: str) -> socket.socket:
    if Path(path).is_socket():
        Path(path).unlink()  # socket file left by an earlier process
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(path)
    except BaseException:
        found.close()
        raise
    return found
