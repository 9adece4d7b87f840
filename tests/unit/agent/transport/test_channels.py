"""Where a process may listen and call, and with which identities; and what its server checks first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean.serving import open_authority
from jellybean_agent import (
    CertificateFolder,
    Identity,
    PlanViewError,
    Policy,
    Role,
    StatusError,
    Transport,
    caller_identity,
    check_caller,
    make_server,
    make_transport,
    tls_auth_context,
)
from jellybean_agent.transport import channels
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.http2_client import Http2Client, content, message, unary_call
from tests.support.simulated_time import run_in_simulated_time

AGENT = Identity("w", Role.AGENT, "edge-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an agent's certificate."""
    root = tmp_path_factory.mktemp("certificates")
    open_authority(root / "ca").equip(root / "edge-1", AGENT)
    return root / "edge-1"


@pytest.mark.parametrize(
    ("address", "plain", "insecure", "secure"),
    [
        ("unix:/run/x", "", "", ""),
        ("unix:/" + "x" * 99, "must be shorter than 100", "must be shorter than 100", "must be shorter than 100"),
        ("unix:/" + "x" * 98, "", "", ""),
        ("127.0.0.1:7001", "TCP needs a certificate", "", ""),
        ("localhost:7001", "TCP needs a certificate", "", ""),
        ("[::1]:7001", "TCP needs a certificate", "", ""),
        ("::1:7001", "stands in brackets, as in", "stands in brackets", "stands in brackets"),
        ("[2001:db8::7]:7001", "TCP needs a certificate", "--insecure works on 127.0.0.1 and", ""),
        ("10.0.0.7:7001", "TCP needs a certificate", "--insecure works on 127.0.0.1 and", ""),
        ("10.0.0.7:65535", "TCP needs a certificate", "--insecure works on 127.0.0.1 and", ""),
        ("10.0.0.7:65536", "is no address", "is no address", "is no address"),
        ("10.0.0.7", "is no address", "is no address", "is no address"),
        (":7001", "is no address", "is no address", "is no address"),
        ("host:x", "is no address", "is no address", "is no address"),
    ],
)
def test_addresses_that_a_process_may_use(folder: Path, address: str, plain: str, insecure: str, secure: str) -> None:
    transports = (Transport("w"), Transport("w", insecure=True), Transport("w", CertificateFolder(folder)))
    for transport, reason in zip(transports, (plain, insecure, secure), strict=True):
        if not reason:
            assert transport.check(address) == address
        else:
            with pytest.raises(PlanViewError, match=reason):
                transport.check(address)


def test_a_transport_has_the_certificate_of_its_process(folder: Path) -> None:
    found = make_transport("w", (Role.AGENT, "edge-1"), folder, insecure=False, renew_s=5.0)
    assert (found.workflow, found.renew_s, found.stream_age_s, found.insecure) == ("w", 5.0, 5.0, False)
    assert found.certificate is not None
    plain = make_transport("w", (Role.AGENT, "edge-1"), None, insecure=True)
    assert (plain.certificate, plain.stream_age_s, plain.insecure, plain.expiry_reason) == (None, None, True, "")
    with pytest.raises(PlanViewError, match="exclude each other"):
        make_transport("w", (Role.AGENT, "edge-1"), folder, insecure=True)
    for me in ((Role.AGENT, "edge-2"), (Role.CLIENT, "edge-1")):
        with pytest.raises(PlanViewError, match="the certificate is of jellybean://w/agent/edge-1, this is "):
            make_transport("w", me, folder, insecure=False)
    with pytest.raises(PlanViewError, match="this is jellybean://other/agent/edge-1"):
        make_transport("other", (Role.AGENT, "edge-1"), folder, insecure=False)


def test_who_must_answer(folder: Path) -> None:
    secure = Transport("w", CertificateFolder(folder))
    assert secure.expected()[0] == Identity("w", Role.GATEWAY)
    assert secure.expected("cloud-1")[0] == Identity("w", Role.AGENT, "cloud-1")
    assert Transport("w").expected("cloud-1") == (None, None)
    tls = secure.stream_tls("cloud-1")
    assert tls is not None
    assert tls[1] == Identity("w", Role.AGENT, "cloud-1").tls_name
    assert Transport("w").stream_tls("cloud-1") is None
    assert Transport("w").http_context() is None
    assert secure.http_context() is not None


def test_an_expired_certificate_is_told_with_what_renews_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = Transport("w", CertificateFolder(folder))
    assert secure.certificate is not None
    expires_s = secure.certificate.current().expires_unix_s
    monkeypatch.setattr(channels.time, "time", lambda: expires_s - 1.0)
    assert secure.expiry_reason == ""
    monkeypatch.setattr(channels.time, "time", lambda: expires_s + 1.0)
    assert secure.expiry_reason.startswith(f"the certificate of this process, in {folder}, expired on ")


def test_a_port_that_is_taken_and_a_folder_that_others_can_enter(tmp_path: Path) -> None:
    async def run() -> None:
        plain = Transport("w", insecure=True)
        server = plain.server(Policy("w", ()))
        port = plain.bind(server, "127.0.0.1:0")
        assert port > 0
        with pytest.raises(PlanViewError, match=f"cannot listen on 127.0.0.1:{port}: it is in use"):
            plain.bind(plain.server(Policy("w", ())), f"127.0.0.1:{port}")
        with pytest.raises(PlanViewError, match="TCP needs a certificate"):
            Transport("w").bind(server, "127.0.0.1:0")
        tmp_path.chmod(0o700)
        assert plain.bind(server, f"unix:{tmp_path}/s") == 1
        other = plain.server(Policy("w", ()))
        assert plain.bind(other, f"unix:{tmp_path}/s") == 1, "in place of a socket that a process has left"
        await other.stop(0)
        await server.stop(0)

    asyncio.run(run())


def test_a_socket_in_an_open_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run() -> None:
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o077:
                monkeypatch.setattr(channels.os, "geteuid", lambda: 54321)  # the folders are another user's
        tmp_path.chmod(0o755)
        with pytest.raises(PlanViewError, match="other users could reach it; put it into a private folder"):
            Transport("w").bind(make_server(Policy("w", ())), f"unix:{tmp_path}/s")

    asyncio.run(run())


class Call:
    """The context of a call by an identity."""

    def __init__(self, *uris: str) -> None:
        self._uris = uris

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> Any:
        return tls_auth_context(self._uris)

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"


def test_a_refusal_is_logged_and_marked(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StatusError) as refused:
        check_caller(Policy("w", ()), "/jellybean.gateway.v1.Gateway/Stop", Call(AGENT.uri))
    assert refused.value.is_logged
    assert caplog.messages == [f"refused: {refused.value}"]
    assert caplog.records[0].fields == {  # type: ignore[attr-defined]
        "method": "/jellybean.gateway.v1.Gateway/Stop",
        "status": "PERMISSION_DENIED",
    }
    assert check_caller(Policy("w", ("edge-1",)), "/grpc.health.v1.Health/Check", Call(AGENT.uri)) is False


def test_the_callers_identity() -> None:
    assert caller_identity(Call(AGENT.uri)) == AGENT
    assert caller_identity(Call()) is None
    assert caller_identity(Call(AGENT.uri, AGENT.uri)) is None


def test_a_handler_runs_after_its_policy_and_gets_a_parsed_request() -> None:
    async def run() -> None:
        seen: list[Any] = []

        async def answer(request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
            return agent_pb2.DrainResponse(left=int(request.timeout_s))

        async def count(request: agent_pb2.DrainRequest, _context: Any) -> AsyncIterator[agent_pb2.DrainResponse]:
            for number in range(int(request.timeout_s)):
                yield agent_pb2.DrainResponse(left=number)

        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(
                answer, agent_pb2.DrainRequest.FromString, agent_pb2.DrainResponse.SerializeToString
            ),
            "Some": grpc.unary_stream_rpc_method_handler(
                count, agent_pb2.DrainRequest.FromString, agent_pb2.DrainResponse.SerializeToString
            ),
        }
        server = make_server(Policy("w", (), Role.CLIENT), seen.append)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("other.Service", handlers),))
        client = Http2Client(server.open_port())
        await client.greet()
        request = agent_pb2.DrainRequest(timeout_s=3.0).SerializeToString()
        one = await client.send(unary_call(1, request, "/inference.GRPCInferenceService/One"))
        assert agent_pb2.DrainResponse.FromString(content(one, 1)[5:]).left == 3
        some = await client.send(unary_call(3, request, "/inference.GRPCInferenceService/Some"))
        assert content(some, 3) == b"".join(
            message(agent_pb2.DrainResponse(left=number).SerializeToString()) for number in range(3)
        )
        assert len(seen) == 2
        wrong = await client.send(unary_call(5, b"\xff\xff", "/inference.GRPCInferenceService/One"))
        assert client.status(wrong, 5) == (3, "the bytes are no request of /inference.GRPCInferenceService/One")
        refused = await client.send(unary_call(7, request, "/other.Service/One"))
        assert client.status(refused, 7)[0] == 7
        assert len(seen) == 3

    run_in_simulated_time(run)
