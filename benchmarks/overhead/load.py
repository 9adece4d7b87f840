"""A closed-loop load generator: N clients, each with one connection and one request in flight.

It implements just enough of each protocol over plain sockets to cost little beside the measured servers: requests are
serialised once, and answers are only compared with the expected bytes. One process, one thread, the same for all.
"""

from __future__ import annotations

import itertools
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

Connect = Callable[[], "Connection"]
_READ_BYTES = 2**18
_RECORD_BYTES = 2**14  # largest plaintext of a TLS record
_SEND_BYTES = 2**17  # of ciphertext that is sent before more is encrypted, so that it stays in the cache
_FRAME = struct.Struct(">BHBBI")  # length (3 bytes, the first apart), type, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_LARGEST_WINDOW = 2**31 - 1


class LoadError(Exception):
    """A server's answer differs from the expected one."""


class SlowError(Exception):
    """No answer arrived in the measured time."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Latencies and throughput over all clients."""

    p50_s: float
    p99_s: float
    rate_per_s: float


class Connection(Protocol):
    """One client. `start` sends a request; `receive` reads available data and returns True once it is answered."""

    socket: socket.socket
    is_watched: bool

    @property
    def is_sending(self) -> bool: ...
    def start(self) -> None: ...
    def receive(self) -> bool: ...
    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Mutual TLS of a client, for a server whose certificate has that DNS name."""

    context: ssl.SSLContext
    server_name: str


class _BufferedSocket:
    """A non-blocking connection with a send buffer."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)  # as the product's own client does
        self.socket.connect(address)
        self.socket.setblocking(False)
        self._tls: ssl.SSLObject | None = None
        self._unsent: list[memoryview] = []
        self._plain: deque[memoryview] = deque()  # plaintext, encrypted once it can be sent
        self.is_watched = False

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent or self._plain)

    def _secure(self, tls: ClientTls) -> None:
        """Complete a handshake; what is sent and read is encrypted from then on."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = tls.context.wrap_bio(self._incoming, self._outgoing, server_hostname=tls.server_name)
        self.socket.setblocking(True)
        is_done = False
        while not is_done:
            try:
                session.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            self.socket.sendall(self._outgoing.read())
            if not is_done:
                self._incoming.write(self.socket.recv(_READ_BYTES) or _closed())
        self.socket.setblocking(False)
        self._tls = session

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._tls is None:
            self._unsent += map(memoryview, parts)
        else:
            self._plain += (memoryview(part) for part in _joined(parts) if part)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. Only what is sent next is encrypted, while earlier records are on their way."""
        while self._unsent or self._plain:
            if not self._unsent:
                self._encrypt()
            try:
                sent = self.socket.sendmsg(self._unsent[:64])
            except BlockingIOError:
                return
            while sent:
                first = self._unsent[0]
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                    break
                sent -= len(first)
                del self._unsent[0]

    def _encrypt(self) -> None:
        """Encrypt about `_SEND_BYTES` of the plaintext that is due."""
        if self._tls is None:
            return
        while self._plain and self._outgoing.pending < _SEND_BYTES:
            first = self._plain.popleft()
            self._tls.write(first[:_RECORD_BYTES])
            if len(first) > _RECORD_BYTES:
                self._plain.appendleft(first[_RECORD_BYTES:])
        self._unsent.append(memoryview(self._outgoing.read()))

    def _read(self) -> bytes:
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            _closed()
        return data if self._tls is None else self._decrypted(self._tls, data)

    def _decrypted(self, tls: ssl.SSLObject, data: bytes) -> bytes:
        self._incoming.write(data)
        found = []
        try:
            while self._incoming.pending or tls.pending():
                found.append(tls.read(_RECORD_BYTES) or _closed())
        except ssl.SSLWantReadError:  # the rest is an incomplete record
            pass
        return b"".join(found)


def _joined(parts: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    """Parts in order, small ones joined with their neighbours, so that records are full."""
    joined: list[bytes | memoryview] = []
    for is_small, run in itertools.groupby(parts, lambda part: len(part) < _RECORD_BYTES):
        neighbours = list(run)
        joined += [b"".join(neighbours)] if is_small else neighbours
    return joined


def _closed() -> NoReturn:
    raise LoadError("the server closed the connection")


class Http1(_BufferedSocket):
    """HTTP/1.1 with keep-alive. `ends`: expected end of the response body."""

    def __init__(self, address: tuple[str, int] | str, head: bytes, body: bytes, ends: bytes) -> None:
        super().__init__(address)
        self._request, self._ends, self._data = (head, body), ends, b""

    def start(self) -> None:
        self._data = b""
        self._send(self._request)

    def receive(self) -> bool:
        self._data += self._read()
        head, gap, body = self._data.partition(b"\r\n\r\n")
        if not gap:
            return False
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if length is None or not lines[0].startswith(b"http/1.1 200"):
            raise LoadError(f"answered {self._data[:300]!r}")
        if len(body) < length:
            return False
        if not body.endswith(self._ends):
            raise LoadError(f"the answer ends with {body[-60:]!r}")
        return True


class UnixSocketRpc(_BufferedSocket):
    """The agents' Unix-socket RPC: one length-prefixed frame out, one in."""

    def __init__(self, address: str, greeting: bytes, request: bytes, ends: bytes) -> None:
        super().__init__(address)
        self._request, self._ends, self._data = request, ends, b""
        self.socket.setblocking(True)
        self.socket.sendall(greeting)
        if self.socket.recv(len(greeting), socket.MSG_WAITALL) != greeting:
            raise LoadError("the server does not speak Unix-socket RPC")
        self.socket.setblocking(False)

    def start(self) -> None:
        self._data = b""
        self._send([self._request])

    def receive(self) -> bool:
        self._data += self._read()
        if len(self._data) < 4 or len(self._data) < 4 + int.from_bytes(self._data[:4], "little"):
            return False
        if not self._data.endswith(self._ends):
            raise LoadError(f"answered {self._data[:300]!r}")
        return True


class Grpc(_BufferedSocket):
    """Unary gRPC over HTTP/2. `ends`: expected end of the response message."""

    def __init__(
        self, address: tuple[str, int] | str, path: str, message: bytes, ends: bytes, tls: ClientTls | None = None
    ) -> None:
        super().__init__(address)
        if tls is not None:
            self._secure(tls)
        self._ends, self._stream = ends, -1
        self._body = b"\0" + len(message).to_bytes(4, "big") + message
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        headers |= {"content-type": "application/grpc", "te": "trailers", "user-agent": "load"}
        self._block = b"".join(_literal(name) + _literal(value, b"") for name, value in headers.items())
        self._data, self._answer = b"", b""
        self._frame_bytes, self._initial, self._connection_window = 2**14, 2**16 - 1, 2**16 - 1
        self._window = self._at = 0
        settings = struct.pack(">HIHI", 1, 0, 4, _LARGEST_WINDOW)  # no dynamic header table, the largest window
        grown = (_LARGEST_WINDOW - 2**16 + 1).to_bytes(4, "big")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        self._send([preface, _head(_SETTINGS, 0, 0, len(settings)), settings, _head(_WINDOW, 0, 0, 4), grown])
        self._at = len(self._body)

    def start(self) -> None:
        self._stream += 2
        self._answer, self._at, self._window = b"", 0, self._initial
        self._pump([_head(_HEADERS, 4, self._stream, len(self._block)), self._block])

    def _pump(self, parts: list[bytes | memoryview]) -> None:
        body = memoryview(self._body)
        while self._at < len(body):
            size = min(self._frame_bytes, self._window, self._connection_window, len(body) - self._at)
            if size <= 0:
                break
            last = self._at + size == len(body)
            parts += [_head(_DATA, int(last), self._stream, size), body[self._at : self._at + size]]
            self._at += size
            self._window -= size
            self._connection_window -= size
        if parts:
            self._send(parts)

    def receive(self) -> bool:
        data, at, over = self._data + self._read(), 0, False
        while len(data) - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
            end = at + 9 + (high << 16 | low)
            if len(data) < end:
                break
            over |= self._frame(kind, flags, stream, data[at + 9 : end])
            at = end
        self._data = data[at:]
        return over

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        if kind == _DATA:
            self._answer += payload
        elif kind == _HEADERS and flags & 1:
            if not self._answer.endswith(self._ends):
                raise LoadError(f"answered {self._answer[:300]!r} {payload[:300]!r}")
            return True
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._connection_window += more
            elif stream == self._stream:
                self._window += more
            self._pump([])
        elif kind == _SETTINGS and not flags & 1:
            self._apply_settings(payload)
        elif kind == _PING and not flags & 1:
            self._send([_head(_PING, 1, 0, 8), payload])
        elif kind in (_GOAWAY, _RESET):
            raise LoadError(f"the server ended the {'stream' if kind == _RESET else 'connection'}: {payload!r}")
        return False

    def _apply_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == 4:
                self._window += value - self._initial
                self._initial = value
            elif name == 5:
                self._frame_bytes = value
        self._send([_head(_SETTINGS, 1, 0, 0)])
        self._pump([])


def _head(kind: int, flags: int, stream: int, size: int) -> bytes:
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def _literal(text: str, lead: bytes = b"\0") -> bytes:
    """A header name (with the prefix of a literal without indexing) or value, HPACK-encoded."""
    if len(text) >= 127:
        raise ValueError(f"too long for one byte of length: {text}")
    return lead + bytes([len(text)]) + text.encode()


def measure(connect: Connect, clients: int, duration_s: float, warmup_s: float) -> LoadResult:
    """Results over `duration_s`, after `warmup_s` that is not counted."""
    connections = {found.socket.fileno(): found for found in (connect() for _ in range(clients))}
    began: dict[int, float] = {}
    latencies: list[float] = []
    with select.epoll() as poll:
        for file, connection in connections.items():
            poll.register(file, select.EPOLLIN)
            began[file] = time.perf_counter()
            connection.start()
            _watch(poll, connection)
        from_s = time.perf_counter() + warmup_s
        until_s = from_s + duration_s
        waiting = len(connections)
        while waiting:  # for all answers, so that the next measurement starts with idle servers
            for file in _answered(poll, connections):
                now_s = time.perf_counter()
                if from_s <= now_s < until_s:
                    latencies.append(now_s - began[file])
                if now_s < until_s:
                    began[file] = now_s
                    connections[file].start()
                    _watch(poll, connections[file])
                else:
                    waiting -= 1
    for connection in connections.values():
        connection.socket.close()
    if not latencies:
        raise SlowError(f"no answer within {duration_s} s")
    latencies.sort()
    return LoadResult(
        latencies[len(latencies) // 2], latencies[int(0.99 * len(latencies))], len(latencies) / duration_s
    )


def _answered(poll: select.epoll, connections: dict[int, Connection]) -> Iterator[int]:
    """Files of the connections whose answer is complete, after reading available data and sending what fits."""
    events = poll.poll(10.0)
    if not events:
        raise LoadError("no answer within 10 s")
    for file, event in events:
        connection = connections[file]
        if event & ~select.EPOLLOUT and connection.receive():
            yield file
        elif event & select.EPOLLOUT:
            connection.flush()
        _watch(poll, connection)


def _watch(poll: select.epoll, connection: Connection) -> None:
    """Poll for writability only while the connection has unsent data."""
    if connection.is_sending != connection.is_watched:
        connection.is_watched = connection.is_sending
        poll.modify(connection.socket, select.EPOLLIN | (select.EPOLLOUT if connection.is_sending else 0))
