"""The one place where gRPC channels and servers are made, and where it is said which addresses may be used."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from jellybean_agent.errors import PlanViewError
from jellybean_agent.tensors import MAX_MESSAGE_BYTES

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.so_reuseport", 0),  # two servers must never share a port in silence
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", 2**20),
)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_SOCKET_PATH = 100


def check_address(address: str) -> str:
    """The address, if only this machine can reach it. PlanViewError otherwise: there is no authentication yet."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        if len(rest) >= _MAX_SOCKET_PATH:
            raise PlanViewError(f"{address}: a socket path must be shorter than {_MAX_SOCKET_PATH} characters")
        return address
    host, _, port = address.rpartition(":")
    if host in _LOOPBACK and port.isdecimal() and int(port) < 65536:
        return address
    raise PlanViewError(f"{address}: only unix:/path and 127.0.0.1:port are served, as there is no authentication yet")


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to a process of a run, for the event loop."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def open_blocking_channel(address: str) -> grpc.Channel:
    """A channel to a process of a run, for threads."""
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def make_server() -> grpc.aio.Server:
    """A server that `bind` makes listen."""
    return grpc.aio.server(options=SERVER_OPTIONS)


def bind(server: grpc.aio.Server, address: str) -> int:
    """Listen on an address; the port. PlanViewError when it is taken or not allowed."""
    try:
        return server.add_insecure_port(check_address(address))
    except RuntimeError as error:
        raise PlanViewError(f"cannot listen on {address}: it is in use or may not be used") from error
