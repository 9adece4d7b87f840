"""What a client says when it cannot reach a gateway: real servers on real sockets, by the way each connection fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from jellybean.serving import Client, RequestError, open_authority
from jellybean.serving.errors import HandshakeError
from jellybean_agent import (
    CertificateFolder,
    Identity,
    Policy,
    Role,
    Transport,
    connection_fault,
    says_not_connected,
    serve_metrics,
)
from jellybean_agent.security import connection_fault as connection_faults
from jellybean_agent.security.connection_fault import enrolment_fault
from jellybean_agent.security.tls_context import client_context
from tests.support.ports import free_port
from tests.support.skips import NotInstalled

GATEWAY, ADMIN = Identity("scales", Role.GATEWAY), Identity("scales", Role.ADMIN, "admin")


@contextmanager
def serving(tls: Path | None) -> Iterator[str]:
    """A server as the gateway's, with the certificate in a folder or in plain text; yields its address."""
    transport = Transport("scales", None if tls is None else CertificateFolder(tls), insecure=tls is None)
    address = f"127.0.0.1:{free_port()}"
    loop, is_up, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = transport.server(Policy("scales", set()))
        transport.bind(server, address)
        await server.start()
        is_up.set()
        await stop.wait()
        await server.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_up.wait(30)
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


class Certificates:
    """Folders of certificates that one authority signed: of the gateway, and of an admin."""

    def __init__(self, root: Path) -> None:
        self.authority = open_authority(root / "ca")
        self.gateway, self.admin = root / "gateway", root / "admin"
        self.authority.equip(self.gateway, GATEWAY)
        self.authority.equip(self.admin, ADMIN)

    @property
    def name(self) -> str:
        """Name of the authority."""
        return str(self.authority.certificate.subject.rfc4514_string().removeprefix("CN="))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(certificates: Certificates) -> Iterator[str]:
    with serving(certificates.gateway) as address:
        yield address


def refusal(address: str, tls: Path | None) -> RequestError:
    """The error of a call."""
    with Client(address, tls=tls, timeout_s=20.0) as client, pytest.raises(RequestError) as caught:
        client.status()
    return caught.value


def handshake_refusal(address: str, tls: Path | None) -> str:
    """Why a call fails because of TLS; no word of OpenSSL's is in it."""
    error = refusal(address, tls)
    assert isinstance(error, HandshakeError), error
    assert not re.search(r"SSL_|ssl_|OPENSSL|error:\d", error.reason)
    return error.reason


def test_a_connection_that_works_is_not_explained(server: str, certificates: Certificates) -> None:
    error = refusal(server, certificates.admin)
    assert (type(error), error.status) == (RequestError, "UNIMPLEMENTED")  # the server has no methods
    assert f"{server} is no port of a gateway for clients or workers" in error.reason


def test_an_authority_of_a_copy_of_the_project(server: str, certificates: Certificates, tmp_path: Path) -> None:
    copy = Certificates(tmp_path)
    reason = handshake_refusal(server, copy.admin)
    assert f"signed by the authority {certificates.name!r}; {copy.admin} trusts {copy.name!r}" in reason
    assert "copy the folder .jellybean/certs/admin/admin from the project on the gateway's machine" in reason


def test_a_certificate_of_an_authority_that_the_gateway_does_not_know(
    server: str, certificates: Certificates, tmp_path: Path
) -> None:
    copy = Certificates(tmp_path)
    shutil.copy(certificates.admin / "ca.crt", copy.admin / "ca.crt")  # only the gateway finds it out
    reason = handshake_refusal(server, copy.admin)
    assert f"refuses the certificate in {copy.admin}, which the authority {copy.name!r} signed" in reason
    assert "copy the folder" in reason


def test_an_expired_certificate_of_the_gateway(certificates: Certificates, tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    certificates.authority.equip(folder, GATEWAY)
    with serving(folder) as address:
        certificates.authority.equip(folder, GATEWAY, life_s=-60.0)
        reason = handshake_refusal(address, certificates.admin)
    assert re.search(r"expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC: run `jellybean certs DIR` there", reason)


def test_another_process_at_the_address(certificates: Certificates, tmp_path: Path) -> None:
    certificates.authority.equip(tmp_path, other := Identity("scales", Role.AGENT, "box-1"))
    with serving(tmp_path) as address:
        assert f"answers {other.uri}, not {GATEWAY.uri}" in handshake_refusal(address, certificates.admin)


def test_plain_text_against_tls(server: str) -> None:
    assert f"{server} takes TLS only: give the folder of a certificate" in handshake_refusal(server, None)


def test_tls_against_plain_text(certificates: Certificates) -> None:
    with serving(None) as address:
        reason = handshake_refusal(address, certificates.admin)
    assert f"what listens at {address} speaks no TLS" in reason


@contextmanager
def serving_http(tls: Path | None) -> Iterator[str]:
    """A server as the gateway's `--http-port`; yields its address."""
    from jellybean.serving.http.inference_http import serve_http

    transport = Transport("scales", None if tls is None else CertificateFolder(tls), insecure=tls is None)
    port = free_port()
    loop, is_up, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        service: Any = None  # no request gets that far
        async with serve_http(service, ("127.0.0.1", port), transport, Policy("scales", set())):
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_up.wait(30)
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def test_a_port_for_https(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """By a command, and by a client that does not ask for the protocol in its handshake."""
    pytest.importorskip("aiohttp", reason=NotInstalled.AIOHTTP)
    caplog.set_level(logging.INFO)
    with serving_http(certificates.gateway) as address:
        reason = handshake_refusal(address, certificates.admin)
        fault = enrolment_fault(address, GATEWAY, (certificates.admin / "ca.crt").read_bytes())
        context = client_context(CertificateFolder(certificates.admin).current(), ())
        host, _, port = address.partition(":")
        with (
            socket.create_connection((host, int(port)), 10.0) as connection,
            context.wrap_socket(connection, server_hostname=GATEWAY.tls_name) as secured,
        ):
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            while secured.recv(2**12):
                pass
    assert (
        reason
        == f"{address} speaks HTTPS, not gRPC: this may be the gateway's --http-port; use its port for clients (--port)"
    )
    assert fault is not None
    assert "use its port for boxes that join (--enrol)" in fault.reason
    (record,) = [record for record in caplog.records if record.name == "jellybean.http"]
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage() == "refused: a call of 127.0.0.1 at --http-port: it speaks gRPC, whose port is --port"


@pytest.mark.parametrize("has_certificate", [True, False])
def test_a_port_for_metrics(
    certificates: Certificates, has_certificate: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    stop = serve_metrics(("127.0.0.1", port), CollectorRegistry())
    assert stop is not None
    try:
        reason = handshake_refusal(f"127.0.0.1:{port}", certificates.admin if has_certificate else None)
    finally:
        stop()
    assert f"127.0.0.1:{port} speaks HTTP, not gRPC: this may be the gateway's port for metrics" in reason
    assert "Traceback" not in capfd.readouterr().err


@contextmanager
def silent_server() -> Iterator[tuple[str, socket.socket]]:
    """A server whose kernel accepts connections, and which says nothing: (address, listening socket)."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}", listening


@pytest.mark.parametrize("has_certificate", [True, False])
def test_a_server_that_says_nothing(
    has_certificate: bool, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_faults, "_CONNECT_S", 0.2)
    expected = (GATEWAY, CertificateFolder(certificates.admin)) if has_certificate else (None, None)
    with silent_server() as (address, _):
        fault = connection_fault(address, *expected)
    assert fault is not None
    assert not fault.of_certificate
    assert fault.reason.startswith(f"{address} takes connections, but does not answer")


@pytest.mark.parametrize(
    "address", ["gateway.example", "gateway.example:abc", "gateway.example:-1", "h:99999", ":7000"]
)
def test_what_is_no_address(address: str) -> None:
    fault = connection_fault(address, None, None)
    assert fault is not None
    assert fault.reason == f"{address!r} is no address: write HOST:PORT, or [IPV6]:PORT, with a port from 1 to 65535"


def test_the_calls_of_an_outage_share_one_diagnosis() -> None:
    """Each call fails at once in gRPC; only the first makes a connection of its own."""
    with silent_server() as (address, listening):
        listening.setblocking(False)
        client = Client(address, timeout_s=20.0)
        error = NoConnection()
        reasons = {client._error_of(error).reason for _ in range(3)}
        connections = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                listening.accept()[0].close()
                connections += 1
    assert (len(reasons), connections) == (1, 1)


def test_the_next_outage_has_a_reason_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_faults, "_CONNECT_S", 0.2)
    client = Client(address := f"127.0.0.1:{free_port()}")
    assert "nothing listens" in client._error_of(NoConnection()).reason
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert "nothing listens" in client._error_of(NoConnection()).reason  # of the same outage
        client._error_of(Answered())
        assert "does not answer" in client._error_of(NoConnection()).reason


class NoConnection(grpc.RpcError):
    """The error of a call that found no connection, as gRPC reports it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect to all addresses"


class Answered(grpc.RpcError):
    """The error of a call that the gateway refused."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return "overloaded"


def test_a_proxy_with_nothing_behind_it(certificates: Certificates) -> None:
    """It accepts and closes, as a load balancer or a port forwarding does: no fault of a certificate, which would end
    all attempts.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=close, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Client(address, tls=certificates.admin) as client, pytest.raises(RequestError) as caught:
            client.status()
        listener.shutdown(socket.SHUT_RDWR)
    assert not isinstance(caught.value, HandshakeError)
    assert f"{address} closes connections at once: nothing may serve behind it now" in caught.value.reason


def test_nobody_at_the_address(certificates: Certificates) -> None:
    address = f"127.0.0.1:{free_port()}"
    error = refusal(address, certificates.admin)
    assert not isinstance(error, HandshakeError)
    assert f"nothing listens at {address}" in error.reason
    assert "host name nowhere.invalid is unknown" in refusal("nowhere.invalid:1", certificates.admin).reason


@pytest.mark.parametrize(
    ("details", "is_said"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection refused", True),
        ("errors resolving nowhere.invalid:1: [field:A error:UNKNOWN]", True),
        ("DNS resolution failed for nowhere.invalid:1: C-ares status is not ARES_SUCCESS", True),
        ("edge-1: failed to connect to all addresses", False),
    ],
)
def test_what_every_grpcio_says_without_a_connection(details: str, is_said: bool) -> None:
    assert says_not_connected(details) is is_said


def test_why_a_box_cannot_enrol(server: str, certificates: Certificates, tmp_path: Path) -> None:
    """A token of another gateway, a port where nothing listens, and one without TLS; its own token needs no words."""
    copy = Certificates(tmp_path)
    ours, other = ((made.admin / "ca.crt").read_bytes() for made in (certificates, copy))
    assert enrolment_fault(server, GATEWAY, ours) is None
    fault = enrolment_fault(server, GATEWAY, other)
    assert fault is not None
    assert fault.of_certificate
    assert f"signed by the authority {certificates.name!r}; the token is of {copy.name!r}" in fault.reason
    fault = enrolment_fault(address := f"127.0.0.1:{free_port()}", GATEWAY, ours)
    assert fault is not None
    assert fault.reason.startswith(f"nothing listens at {address}")
    with serving(None) as plain:
        fault = enrolment_fault(plain, GATEWAY, ours)
    assert fault is not None
    assert fault.reason.startswith(f"what listens at {plain} speaks no TLS")
    assert not fault.of_certificate
