"""Channels to workers for calls now and then, which outlive the certificate that they were made with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc.aio

from jellybean_agent import Credentials, Transport

_GRACE_S = 5.0  # for calls in progress on a channel that is replaced


class WorkerChannels:
    """One channel per worker, made at the first call, and again once the certificate is replaced.

    gRPC keeps the certificate of a channel: after its expiry the channel could not connect again.
    """

    def __init__(self, transport: Transport, addresses: Mapping[str, str]) -> None:
        self._transport, self._addresses = transport, addresses
        self._channels: dict[str, tuple[Credentials | None, grpc.aio.Channel]] = {}
        self._closing: dict[asyncio.Task[None], grpc.aio.Channel] = {}  # that were replaced

    def of(self, worker: str) -> grpc.aio.Channel:
        """The channel to a worker. PlanViewError if its address is not allowed."""
        folder = self._transport.certificate
        credentials = None if folder is None else folder.current()
        found = self._channels.get(worker)
        if found is not None and found[0] is credentials:
            return found[1]
        channel = self._transport.channel(self._addresses[worker], worker)
        self._channels[worker] = credentials, channel
        if found is not None:
            task = asyncio.create_task(found[1].close(_GRACE_S))
            self._closing[task] = found[1]
            task.add_done_callback(self._closing.pop)
        return channel

    async def close(self) -> None:
        """Close all channels at once; their calls end with UsageError or CancelledError."""
        replaced = dict(self._closing)
        for task in replaced:
            task.cancel()  # its grace
        await asyncio.gather(*replaced, return_exceptions=True)
        for channel in (*replaced.values(), *(channel for _, channel in self._channels.values())):
            await channel.close(None)
