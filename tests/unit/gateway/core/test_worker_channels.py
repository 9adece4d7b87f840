"""Channels to workers: one each, and another once the certificate that it was made with is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import grpc.aio
import pytest

from jellybean.serving import open_authority
from jellybean.serving.gateway.plans.worker_channels import WorkerChannels
from jellybean_agent import CertificateFolder, Identity, PlanViewError, Role, Transport

ADDRESSES = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


def is_closed(channel: grpc.aio.Channel) -> bool:
    return channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


def test_a_worker_has_one_channel() -> None:
    async def test() -> None:
        channels = WorkerChannels(Transport("w", insecure=True), ADDRESSES)
        first = channels.of("a")
        assert channels.of("a") is first
        assert channels.of("b") is not first
        await channels.close()
        assert is_closed(first)
        assert is_closed(channels.of("b"))

    run(test())


def test_a_worker_has_another_channel_once_the_certificate_is_replaced(tmp_path: Path) -> None:
    authority, own = open_authority(tmp_path / "ca"), Identity("w", Role.GATEWAY)
    authority.equip(tmp_path / "own", own)

    async def test() -> None:
        channels = WorkerChannels(Transport("w", CertificateFolder(tmp_path / "own")), ADDRESSES)
        first, other = channels.of("a"), channels.of("b")
        assert channels.of("a") is first
        authority.equip(tmp_path / "own", own)
        second = channels.of("a")
        assert second is not first
        assert channels.of("a") is second
        assert not is_closed(second)
        async with asyncio.timeout(30.0):
            while not is_closed(first):
                await asyncio.sleep(0.002)
        assert channels.of("b") is not other
        await channels.close()
        assert is_closed(second)
        assert is_closed(other)

    run(test())


def test_an_address_that_is_not_allowed_is_refused() -> None:
    async def test() -> None:
        channels = WorkerChannels(Transport("w", insecure=True), {"a": "10.0.0.7:1"})
        with pytest.raises(PlanViewError, match=r"127\.0\.0\.1 and \[::1\] only"):
            channels.of("a")
        await channels.close()

    run(test())
