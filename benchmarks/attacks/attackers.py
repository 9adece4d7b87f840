"""The attackers: `python -m benchmarks.attacks.attackers NAME PORT CERTIFICATE SECONDS`.

Each uses one kind of limit up, as cheaply as it can, and goes on until its time is over.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.overhead.processes import client_context
from jellybean_agent.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTING,
    SETTINGS,
    frame,
)
from jellybean_agent.rpc.hpack import encode_headers
from jellybean_agent.rpc.unix_socket_frames import AFTER_LENGTH, FRAME, HEAD, OPEN, STREAMS_ALPN

_INFER, _HEALTH = "/inference.GRPCInferenceService/ModelInfer", "/grpc.health.v1.Health/Check"
_DELIVER = b"/jellybean.agent.v1.Agent/Deliver"
_INITIAL_WINDOW = 4  # identifier of the setting
_MIB = 2**20


def silent(port: int, folder: Path) -> Iterator[None]:
    """1,100 connections that say nothing."""
    connections = []
    for _ in range(1100):
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(("127.0.0.1", port), timeout=5.0))
    while True:
        yield


def calls_without_requests(port: int, folder: Path) -> Iterator[None]:
    """5,000 calls on two connections whose requests never come, and new ones in place of those that end."""
    connections = [_connect(port, folder) for _ in range(2)]
    numbers = [1, 1]
    for at, connection in enumerate(connections):
        connection.sendall(b"".join(_open(2 * number + 1, _INFER) for number in range(2500)))
        numbers[at] = 5001
    while True:
        connections[1].sendall(b"".join(_open(numbers[1] + 2 * number, _INFER) for number in range(20)))
        numbers[1] += 40
        yield


def unfinished_requests(port: int, folder: Path) -> Iterator[None]:
    """Ten requests of 64 MiB, of each of which 60 MiB come."""
    connection = _connect(port, folder)
    streams = range(1, 20, 2)
    prefix = b"\0" + (64 * _MIB).to_bytes(4, "big")
    connection.sendall(b"".join(_open(number, _INFER) + frame(DATA, 0, number, prefix) for number in streams))
    for _ in range(60 * 64):
        for number in streams:
            connection.sendall(frame(DATA, 0, number, bytes(2**14)))
        yield
    while True:
        yield


def compressed_requests(port: int, folder: Path) -> Iterator[None]:
    """Requests of 65 KB that are 64 MiB unpacked, forty at a time."""
    packed = gzip.compress(bytes(64 * _MIB - 2**12))
    message = b"\1" + len(packed).to_bytes(4, "big") + packed
    parts = [message[at : at + 2**14] for at in range(0, len(message), 2**14)]
    while True:
        connection = _connect(port, folder)
        for number in range(1, 80, 2):
            connection.sendall(_open(number, _INFER, (b"grpc-encoding", b"gzip")))
            for part in parts:
                connection.sendall(frame(DATA, END_STREAM if part is parts[-1] else 0, number, part))
        yield
        time.sleep(2.0)
        connection.close()


def answers_unread(port: int, folder: Path) -> Iterator[None]:
    """Health checks by the thousand, whose answers nobody reads."""
    connection = _connect(port, folder, window=0)
    number = 1
    while True:
        request = frame(DATA, END_STREAM, 0, bytes(5))
        calls = b""
        for at in range(number, number + 40, 2):
            calls += _open(at, _HEALTH) + request[:5] + at.to_bytes(4, "big") + request[9:]
        connection.sendall(calls)
        number += 40
        yield


def long_texts(port: int, folder: Path) -> Iterator[None]:
    """JSON of 1 MB: a long text and many short ones, which as an array of texts would be gigabytes."""
    values = ["x" * 700_000, *[""] * 60_000]
    item = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    body = json.dumps({"inputs": [item]}).encode()
    while True:
        yield from _post(port, folder, body)


def large_json(port: int, folder: Path) -> Iterator[None]:
    """JSON of 15 MiB."""
    count = 5_000_000
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%d], "data": [' % count
    body += b"1, " * (count - 1) + b"1]}]}"
    while True:
        yield from _post(port, folder, body)


def slow_bodies(port: int, folder: Path) -> Iterator[None]:
    """Forty bodies of 60 MiB, of each of which all but the last byte come."""
    connections = []
    for _ in range(40):
        with contextlib.suppress(OSError):
            connection = _secured(port, folder, "http/1.1")
            connection.sendall(_head(60 * _MIB))
            connections.append(connection)
    for _ in range(60 * 4 - 1):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(bytes(2**18))
        yield
    while True:
        yield


def tiny_chunks(port: int, folder: Path) -> Iterator[None]:
    """Ten bodies of chunks of one byte each."""
    connections = []
    for _ in range(10):
        connection = _secured(port, folder, "http/1.1")
        connection.sendall(b"POST /v2/models/row/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.settimeout(0.05)
        connections.append(connection)
    chunks = b"1\r\n \r\n" * 10_000
    while connections:
        for connection in list(connections):
            try:
                connection.sendall(chunks)
            except TimeoutError:  # as much as it takes: what is cut off is no chunk any more, which is refused
                pass
            except OSError:
                connections.remove(connection)
        yield


def small_parts(port: int, folder: Path) -> Iterator[None]:
    """Requests of 60 MiB that are empty tensors by the million."""
    connection = _connect(port, folder)
    message = b"\x2a\x00" * 30 * _MIB
    body = b"\0" + len(message).to_bytes(4, "big") + message
    for number in itertools.count(1, 2):
        connection.sendall(_open(number, _INFER))
        for at in range(0, len(body), 2**14):
            connection.sendall(frame(DATA, 0, number, body[at : at + 2**14]))
        connection.sendall(frame(DATA, END_STREAM, number, b""))
        yield


def denied_streams(port: int, folder: Path) -> Iterator[None]:
    """Streams by the protocol of gateway and workers, on twenty connections, which no client may open."""
    head = HEAD.pack(0.0, len(_DELIVER), 0) + _DELIVER
    frames = b"".join(FRAME.pack(len(head) + AFTER_LENGTH, number, OPEN) + head for number in range(1, 2000))
    connections = [_secured(port, folder, STREAMS_ALPN) for _ in range(20)]
    for connection in connections:
        connection.settimeout(0.05)
    while True:
        for connection in connections:
            with contextlib.suppress(TimeoutError):
                connection.sendall(frames)
            with contextlib.suppress(TimeoutError):
                connection.recv(2**18)
        yield


def watches(port: int, folder: Path) -> Iterator[None]:
    """Watches of the health, without a certificate, on as many connections as the port has, and again."""
    connections = []
    while True:
        connection = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        request = frame(DATA, END_STREAM, 1, bytes(5))
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + _open(1, "/grpc.health.v1.Health/Watch") + request)
        connections.append(connection)
        if len(connections) > 80:
            connections.pop(0).close()
        yield


ATTACKS: dict[str, Callable[[int, Path], Iterator[None]]] = {
    attack.__name__: attack
    for attack in (
        silent,
        calls_without_requests,
        unfinished_requests,
        compressed_requests,
        answers_unread,
        long_texts,
        large_json,
        slow_bodies,
        tiny_chunks,
        small_parts,
        denied_streams,
        watches,
    )
}


def _open(number: int, path: str, *more: tuple[bytes, bytes]) -> bytes:
    headers = (
        *((b":method", b"POST"), (b":scheme", b"https"), (b":path", path.encode()), (b":authority", b"x")),
        *((b"te", b"trailers"), (b"content-type", b"application/grpc"), *more),
    )
    return frame(HEADERS, END_HEADERS, number, encode_headers(headers))


def _connect(port: int, folder: Path, window: int = 65_535) -> ssl.SSLSocket:
    connection = _secured(port, folder, "h2")
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, SETTING.pack(_INITIAL_WINDOW, window)))
    return connection


def _secured(port: int, folder: Path, protocol: str) -> ssl.SSLSocket:
    context = client_context(folder)
    context.check_hostname = False
    context.set_alpn_protocols([protocol])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10.0))


def _head(size: int) -> bytes:
    return f"POST /v2/models/row/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()


def _post(port: int, folder: Path, body: bytes) -> Iterator[None]:
    with contextlib.suppress(OSError), _secured(port, folder, "http/1.1") as connection:
        connection.sendall(_head(len(body)) + body)
        connection.recv(2**16)
    yield


def main(name: str, port: str, folder: str, seconds: str) -> None:
    """Attack for so many seconds; a connection that the server closes is made again."""
    until_s = time.monotonic() + float(seconds)
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            for _ in ATTACKS[name](int(port), Path(folder)):
                if time.monotonic() > until_s:
                    return
                time.sleep(0.002)
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
