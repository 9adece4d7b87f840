"""A closed-loop load generator: N clients with a connection each, one request at a time, the next when it is answered.

It speaks just enough of each protocol over plain sockets to cost little beside the servers that it measures: requests
are serialised once, an answer is only compared with what must come out. One process, one thread, all servers alike.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

Connect = Callable[[], "Connection"]
_READ_BYTES = 2**18
_FRAME = struct.Struct(">BHBBI")  # length (3 bytes, the first apart), type, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_LARGEST_WINDOW = 2**31 - 1


class LoadError(Exception):
    """A server answered something else than what must come out."""


class SlowError(Exception):
    """No answer came in the time that counts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What N clients saw."""

    p50_s: float
    p99_s: float
    rate_per_s: float


class Connection(Protocol):
    """One client. `start` sends a request, `receive` reads what is there and says whether it is answered."""

    socket: socket.socket
    is_watched: bool

    @property
    def is_sending(self) -> bool: ...
    def start(self) -> None: ...
    def receive(self) -> bool: ...
    def flush(self) -> None: ...


class _Base:
    """A connection that sends what the socket takes and keeps the rest."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)  # as the lane's own client has it
        self.socket.connect(address)
        self.socket.setblocking(False)
        self._left: list[memoryview] = []
        self.is_watched = False

    @property
    def is_sending(self) -> bool:
        return bool(self._left)

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        self._left += [memoryview(part) for part in parts]
        self.flush()

    def flush(self) -> None:
        while self._left:
            try:
                sent = self.socket.sendmsg(self._left[:64])
            except BlockingIOError:
                return
            while sent:
                first = self._left[0]
                if sent < len(first):
                    self._left[0] = first[sent:]
                    break
                sent -= len(first)
                del self._left[0]

    def _read(self) -> bytes:
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            raise LoadError("the server closed the connection")
        return data


class Http1(_Base):
    """HTTP/1.1 with keep-alive. `ends`: how the answer's body must end."""

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


class Lane(_Base):
    """A frame of known length out, one in (the fast lane)."""

    def __init__(self, address: str, greeting: bytes, request: bytes, ends: bytes) -> None:
        super().__init__(address)
        self._request, self._ends, self._data = request, ends, b""
        self.socket.setblocking(True)
        self.socket.sendall(greeting)
        if self.socket.recv(len(greeting), socket.MSG_WAITALL) != greeting:
            raise LoadError("there is no lane")
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


class Grpc(_Base):
    """Unary gRPC over HTTP/2 without TLS. `ends`: how the answer's message must end."""

    def __init__(self, address: tuple[str, int] | str, path: str, message: bytes, ends: bytes) -> None:
        super().__init__(address)
        self._ends, self._stream = ends, -1
        self._body = b"\0" + len(message).to_bytes(4, "big") + message
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        headers |= {"content-type": "application/grpc", "te": "trailers", "user-agent": "load"}
        self._block = b"".join(_literal(name) + _literal(value, b"") for name, value in headers.items())
        self._data, self._answer = b"", b""
        self._frame_bytes, self._initial, self._connection_window = 2**14, 2**16 - 1, 2**16 - 1
        self._window = self._at = 0
        settings = struct.pack(">HIHI", 1, 0, 4, _LARGEST_WINDOW)  # no dynamic table, as large a window as there is
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
            self._settle(payload)
        elif kind == _PING and not flags & 1:
            self._send([_head(_PING, 1, 0, 8), payload])
        elif kind in (_GOAWAY, _RESET):
            raise LoadError(f"the server ended the {'stream' if kind == _RESET else 'connection'}: {payload!r}")
        return False

    def _settle(self, payload: bytes) -> None:
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
    """A header's name (with its lead: literal, not indexed) or value."""
    if len(text) >= 127:
        raise ValueError(f"too long for one byte of length: {text}")
    return lead + bytes([len(text)]) + text.encode()


def measure(connect: Connect, clients: int, duration_s: float, warmup_s: float) -> Measured:
    """What `clients` see in `duration_s`, after `warmup_s` that does not count."""
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
        while waiting:  # to the last answer, so that the next measurement does not begin with the rest of this one
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
    return Measured(latencies[len(latencies) // 2], latencies[int(0.99 * len(latencies))], len(latencies) / duration_s)


def _answered(poll: select.epoll, connections: dict[int, Connection]) -> Iterator[int]:
    """Whose answers are there, one after another, after what is there was read and what can be sent was."""
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
    """Hear of room to send while something is left to be sent."""
    if connection.is_sending != connection.is_watched:
        connection.is_watched = connection.is_sending
        poll.modify(connection.socket, select.EPOLLIN | (select.EPOLLOUT if connection.is_sending else 0))
