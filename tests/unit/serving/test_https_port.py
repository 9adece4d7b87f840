"""The HTTP port with TLS: unfinished handshakes are limited, and shares are those of identities."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.skips import NotInstalled

pytest.importorskip("aiohttp", reason=NotInstalled.AIOHTTP)

from jellybean.serving import Authority, open_authority
from jellybean.serving.http import connections
from jellybean.serving.http.calls import TOO_MANY_CALLS
from jellybean_agent import CertificateFolder, Identity, Role
from jellybean_agent.admission.turns import PeerTurns
from jellybean_agent.security.tls_context import client_context
from tests.unit.serving.http_port import WORKFLOW, Connection, Served, request, served, tensor

GATEWAY = Identity(WORKFLOW, Role.GATEWAY)


class Clients:
    """The port, and who may ask it."""

    def __init__(self, port: Served, authority: Authority, root: Path) -> None:
        self.port, self._authority, self._root = port, authority, root

    async def connect(self, name: str, role: Role = Role.CLIENT) -> Connection:
        folder = self._root / f"{role}-{name}"
        if not folder.exists():
            self._authority.equip(folder, Identity(WORKFLOW, role, name))
        self.port.context = client_context(CertificateFolder(folder).current(), ())
        self.port.server_name = GATEWAY.tls_name
        return await self.port.connect()

    async def ask(self, name: str, role: Role = Role.CLIENT, **more: Any) -> int:
        connection = await self.connect(name, role)
        await connection.send(request(**more))
        status = (await connection.answer()).status
        await connection.close()
        return status

    async def say_nothing(self, source: str = "127.0.0.1") -> Connection:
        """A connection without a handshake."""
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port.port, local_addr=(source, 0)))


def run(root: Path, test: Callable[[Clients], Awaitable[None]], **limits: Any) -> None:
    authority = open_authority(root / "ca")
    authority.equip(root / "gateway", GATEWAY, hosts=("127.0.0.1",))

    async def body() -> None:
        async with served(tls=root / "gateway", **limits) as port, asyncio.timeout(60):
            await test(Clients(port, authority, root))

    asyncio.run(body())


def test_unfinished_handshakes_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HANDSHAKES", 8)

    async def test(clients: Clients) -> None:
        silent = [await clients.say_nothing() for _ in range(40)]
        assert await clients.ask("alice", body=tensor([1.0])) == 200
        ended = [await connection.is_ended() for connection in silent[:32]]
        assert all(ended)
        assert clients.port.refused("too many handshakes") >= 32
        for connection in silent:
            await connection.close()

    run(tmp_path, test)


def test_silent_connections_of_one_address_end_no_handshake_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_HANDSHAKES", 8)
    caplog.set_level("INFO", "jellybean.tls")

    async def test(clients: Clients) -> None:
        other = await clients.say_nothing("127.0.0.2")
        await asyncio.sleep(0.01)
        crowd = [await clients.say_nothing() for _ in range(40)]
        assert all([await connection.is_ended() for connection in crowd[:32]])
        other.writer.write(b"no TLS")
        assert await other.is_ended()
        for connection in (other, *crowd):
            await connection.close()

    run(tmp_path, test)
    reasons = [text for text in caplog.messages if "127.0.0.2" in text]
    assert reasons == ["refused at the handshake: it does not speak TLS (ipv4:127.0.0.2)"]


def test_a_handshake_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HANDSHAKE_S", 0.2)

    async def test(clients: Clients) -> None:
        connection = await clients.say_nothing()
        connection.writer.write(b"\x16\x03\x01")
        assert await connection.is_ended()
        await connection.close()

    run(tmp_path, test)


def test_connections_are_counted_by_identity(tmp_path: Path) -> None:
    """Alice has many that make no request, from the address of all others."""

    async def test(clients: Clients) -> None:
        hers = [await clients.connect("alice") for _ in range(30)]
        for name in ("bob", "carol"):
            assert await clients.ask(name, body=tensor([1.0])) == 200
        assert await clients.ask("alice", body=tensor([1.0])) == 200
        assert clients.port.refused("to make room") >= 16
        for connection in hers:
            await connection.close()

    run(tmp_path, test, connections=16)


def test_requests_are_counted_by_identity_and_administrators_have_a_reserve(tmp_path: Path) -> None:
    async def test(clients: Clients) -> None:
        port = clients.port
        port.backend.may_answer.clear()
        names = [name for name in ("alice", "bob", "carol", "dan") for _ in range(4)]
        busy = [asyncio.create_task(clients.ask(name, body=tensor([1.0]))) for name in names]
        while port.backend.asked + port.refused(TOO_MANY_CALLS) < len(names):
            await asyncio.sleep(0.01)
        assert port.backend.asked == 8
        admin = asyncio.create_task(clients.ask("root", Role.ADMIN, body=tensor([1.0])))
        assert await clients.ask("dan", path="/v2/health/ready") == 200
        while port.backend.asked < 9:
            await asyncio.sleep(0.01)
        port.backend.may_answer.set()
        assert await admin == 200
        assert sorted(await asyncio.gather(*busy))[:8] == [200] * 8

    run(tmp_path, test, calls=8, reserved_calls=2)


def test_a_connection_ends_after_an_answer_when_it_is_old(tmp_path: Path) -> None:
    """So that a certificate that was replaced or withdrawn stops working."""

    async def test(clients: Clients) -> None:
        connection = await clients.connect("alice")
        await connection.send(request(body=tensor([1.0])))
        assert (await connection.answer()).headers["connection"] == "close"
        assert await connection.is_ended()
        await connection.close()

    run(tmp_path, test, renew_s=0.0)


def test_the_requests_of_a_client_without_time_wait_and_are_answered(tmp_path: Path) -> None:
    """Of many connections at once, and of its handshakes; another client's request is answered meanwhile."""

    async def test(clients: Clients) -> None:
        clock = itertools.count()  # seconds, so each request takes all the time of a turn
        clients.port.admission.turns = PeerTurns(lambda: next(clock))
        flood = [await clients.connect("alice") for _ in range(8)]
        for connection in flood:
            await connection.send(request(body=tensor([1.0])))
        assert await clients.ask("bob", body=tensor([1.0])) == 200
        assert [(await connection.answer()).status for connection in flood] == [200] * len(flood)
        for connection in flood:
            await connection.close()

    run(tmp_path, test)
