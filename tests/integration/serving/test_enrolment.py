"""Enrolment over real TLS in one process: what a token is good for, and what leaves it as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from serving_models import chain

from jellybean.serving.authority import open_authority
from jellybean.serving.enrolment import Enrolment, make_token, serve_enrolment
from jellybean_agent import join
from jellybean_agent.certificates import CertificateFolder, read_credentials
from jellybean_agent.channels import CHANNEL_OPTIONS, Transport
from jellybean_agent.identity import Identity, Role
from jellybean_agent.join_token import Token
from jellybean_agent.plan_view import plan_view
from jellybean_protos.enrol.v1 import enrol_pb2, enrol_pb2_grpc

GATEWAY = Identity("tiny", Role.GATEWAY)
EDGE = Identity("tiny", Role.AGENT, "edge-1")
Use = Callable[[str], Awaitable[None]]


def serving(root: Path, use: Use, ca: str = "ca") -> None:
    open_authority(root / "ca").equip(root / "gateway", GATEWAY, hosts=("127.0.0.1",))

    async def served() -> None:
        view = plan_view(chain(root))
        enrolment = Enrolment(view, root / ca, root / "tokens", root, root, root, {"": "127.0.0.1:1"})
        transport = Transport("tiny", CertificateFolder(root / "gateway"))
        address = f"unix:{root / 's'}"
        server = await serve_enrolment(enrolment, transport, address)
        try:
            await use(address)
        finally:
            await server.stop(None)

    asyncio.run(served())


async def enrol(address: str, token: Token, request: bytes) -> Any:
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", GATEWAY.tls_name)]
    credentials = grpc.ssl_channel_credentials(token.ca)
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        stub: Any = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
        return await stub.Enrol(enrol_pb2.EnrolRequest(secret=token.secret, request=request), timeout=10)


async def refused(address: str, token: Token, request: bytes) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enrol(address, token, request)
    return f"{caught.value.code().name}: {caught.value.details()}"


def token(root: Path, identity: Identity = EDGE) -> Token:
    return make_token(root / "tokens", open_authority(root / "ca"), identity, life_s=60.0)


def test_a_token_outlives_a_lost_answer_but_is_one_keys(tmp_path: Path) -> None:
    mine, request = token(tmp_path), join._key_and_request(EDGE)[1]

    async def use(address: str) -> None:
        assert (await enrol(address, mine, request)).chain
        assert (await enrol(address, mine, request)).chain  # the first answer was lost
        assert "PERMISSION_DENIED" in await refused(address, mine, join._key_and_request(EDGE)[1])

    serving(tmp_path, use)


def test_a_box_that_stops_before_it_kept_its_certificate_joins_with_the_same_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, box = token(tmp_path), tmp_path / "box"
    box.mkdir()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    async def use(address: str) -> None:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(join, "write_credentials", full)
            await join._enrol(address, mine, box)
        await join._enrol(address, mine, box)

    serving(tmp_path, use)
    assert read_credentials(box / "tls").identity == EDGE
    assert {path.name for path in box.iterdir()} == {"gateway", "tls"}


def test_a_wrong_worker_is_told_before_the_token_is_taken(tmp_path: Path) -> None:
    moon, request = token(tmp_path, Identity("tiny", Role.AGENT, "moon-1")), join._key_and_request(EDGE)[1]

    async def use(address: str) -> None:
        assert "no worker of the plan" in await refused(address, moon, request)
        assert "no worker of the plan" in await refused(address, moon, join._key_and_request(EDGE)[1])

    serving(tmp_path, use)
    assert len(list((tmp_path / "tokens").iterdir())) == 1  # nobody's


def test_the_gateway_makes_no_authority_and_keeps_the_token(tmp_path: Path) -> None:
    mine, request = token(tmp_path), join._key_and_request(EDGE)[1]

    async def use(address: str) -> None:
        assert "no authority is there" in await refused(address, mine, request)

    serving(tmp_path, use, ca="mistyped")
    assert not (tmp_path / "mistyped").exists()
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_tokens_whose_time_is_over_are_removed(tmp_path: Path) -> None:
    make_token(tmp_path / "tokens", open_authority(tmp_path / "ca"), EDGE, life_s=-1.0)
    assert len(list((tmp_path / "tokens").iterdir())) == 1
    token(tmp_path)
    assert len(list((tmp_path / "tokens").iterdir())) == 1
