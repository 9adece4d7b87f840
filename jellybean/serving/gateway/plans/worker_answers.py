"""Answers of workers to calls of the gateway, which may be as large and as odd as a compromised box makes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from jellybean_agent import StatusError, has_large_overhead, protocol_metadata

MAX_DESCRIPTION_BYTES = 2**19
_SERVICE = "/jellybean.agent.v1.Agent/"

Answer = TypeVar("Answer", bound=Message)


async def call_worker(
    channel: grpc.aio.Channel, method: str, request: Message, kind: type[Answer], timeout_s: float
) -> Answer:
    """Call a method of a worker. AioRpcError if it fails, StatusError if its answer is none, or has too many parts."""
    unary_unary: Callable[[str], Callable[..., Awaitable[bytes]]] = channel.unary_unary  # type: ignore[assignment]
    call = unary_unary(f"{_SERVICE}{method}")  # without serialisers, which its stub asks for
    data = await call(request.SerializeToString(), timeout=timeout_s, metadata=protocol_metadata())
    if has_large_overhead(kind.DESCRIPTOR, data):
        reason = f"its answer of {len(data)} bytes has too many small parts"
        raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise StatusError(grpc.StatusCode.INTERNAL, f"its answer is no {kind.DESCRIPTOR.name}") from error
