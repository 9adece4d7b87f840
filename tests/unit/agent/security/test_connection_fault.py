"""Why a process cannot be reached: each kind of wrong server, address and certificate has its sentence."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jellybean.serving import Authority, open_authority
from jellybean_agent import CertificateFolder, ConnectionFault, Identity, Role, connection_fault
from jellybean_agent.security import connection_fault as faults
from jellybean_agent.security.connection_fault import enrolment_fault

GATEWAY, AGENT = Identity("w", Role.GATEWAY), Identity("w", Role.AGENT, "edge-1")
Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def listening(serve: Serve) -> Iterator[str]:
    """The address of a server that serves each connection by `serve`, in a thread."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with certificates: of a gateway and of an admin, and of others that do not fit."""
    found = tmp_path_factory.mktemp("certificates")
    authority, other = open_authority(found / "ca"), open_authority(found / "other-ca")
    authority.equip(found / "gateway", GATEWAY)
    authority.equip(found / "agent", AGENT)
    authority.equip(found / "admin/admin", Identity("w", Role.ADMIN, "admin"))
    authority.equip(found / "old", GATEWAY, life_s=-60.0)
    other.equip(found / "foreign", GATEWAY)
    return found


def authority_of(root: Path) -> Authority:
    return open_authority(root / "ca")


def tls(root: Path, folder: str = "gateway", alpn: str | None = "h2", *, answer: bytes = b"settings") -> Serve:
    """A server with a certificate that answers the client's first bytes, or with none closes the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root / folder / "tls.crt", root / folder / "tls.key")
    if alpn is not None:
        context.set_alpn_protocols([alpn])

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(100)
            secured.sendall(answer)

    return serve


def fault(address: str, root: Path, wanted: Identity = GATEWAY) -> ConnectionFault | None:
    return connection_fault(address, wanted, CertificateFolder(root / "admin/admin"))


def test_a_server_that_answers_has_no_fault(root: Path) -> None:
    with listening(tls(root)) as address:
        assert fault(address, root) is None
        assert enrolment_fault(address, GATEWAY, authority_of(root).bundle) is None


@pytest.mark.parametrize("address", ["nonsense", "host:port", ":1", "127.0.0.1:65536", "127.0.0.1:", "host:²"])
def test_what_is_no_address(root: Path, address: str) -> None:
    form = "write HOST:PORT, or [IPV6]:PORT, with a port from 1 to 65535"
    assert fault(address, root) == ConnectionFault(f"{address!r} is no address: {form}", False)


def test_a_host_that_is_unknown_or_where_nothing_listens(root: Path) -> None:
    assert fault("..:1", root) == ConnectionFault("..:1: the host name .. is unknown", False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        for wanted, who in ((GATEWAY, "the gateway"), (AGENT, "the agent of edge-1")):
            reason = f"nothing listens at {address}: is {who} up, and is this its port?"
            assert fault(address, root, wanted) == ConnectionFault(reason, False)
        reason = f"nothing listens at {address}: is the gateway up, and is this its port for boxes that join (--enrol)?"
        assert enrolment_fault(address, GATEWAY, authority_of(root).bundle) == ConnectionFault(reason, False)
        assert connection_fault(address, None, None) is not None


def test_a_host_that_does_not_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def times_out(_address: object, _timeout_s: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(faults.socket, "create_connection", times_out)
    reason = "10.0.0.1:7001 does not answer: is the host up, and the port open?"
    assert fault("10.0.0.1:7001", root) == ConnectionFault(reason, False)


def test_a_server_that_says_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_CONNECT_S", 0.05)
    with listening(lambda connection: bool(connection.recv(1000)) and connection.recv(1000) and None) as address:
        reason = f"{address} takes connections, but does not answer: is this the port of the gateway?"
        assert fault(address, root) == ConnectionFault(reason, False)
        assert connection_fault(address, None, None) == ConnectionFault(reason, False)


def http(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_port_for_http(root: Path, is_plain: bool) -> None:
    with listening(http) as address:
        found = connection_fault(address, None, None) if is_plain else fault(address, root)
        assert found is not None
        assert found.of_certificate
        assert found.reason.startswith(f"{address} speaks HTTP, not gRPC: this may be the gateway's port for metrics")


def test_a_port_for_https(root: Path) -> None:
    with listening(tls(root, alpn=None)) as address:
        reason = f"{address} speaks HTTPS, not gRPC: this may be the gateway's --http-port; use its "
        assert fault(address, root) == ConnectionFault(f"{reason}port for clients (--port)", True)
        found = enrolment_fault(address, GATEWAY, authority_of(root).bundle)
        assert found == ConnectionFault(f"{reason}port for boxes that join (--enrol)", True)


def test_a_server_without_tls(root: Path) -> None:
    def plain(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"\0\0\0\4\0\0\0\0\0 some other protocol")

    with listening(plain) as address:
        found = fault(address, root)
        assert found is not None
        assert found.of_certificate
        assert found.reason.startswith(f"what listens at {address} speaks no TLS: a gateway started with --insecure is")
        joining = enrolment_fault(address, GATEWAY, authority_of(root).bundle)
        assert joining is not None
        assert not joining.of_certificate
        assert joining.reason.endswith("speaks no TLS: is this the gateway's port for boxes that join (--enrol)?")
        assert connection_fault(address, None, None) is None, "it is not known to be wrong"


def test_a_server_that_closes_at_once(root: Path) -> None:
    with listening(lambda _: None) as address:
        found = fault(address, root)
        assert found is not None
        assert not found.of_certificate
        assert found.reason.startswith(f"{address} closes connections at once: nothing may serve behind it now")


def test_a_server_that_takes_tls_only(root: Path) -> None:
    with listening(tls(root)) as address:
        reason = f"{address} takes TLS only: give the folder of a certificate (--tls FOLDER)"
        assert connection_fault(address, None, None) == ConnectionFault(reason, True)


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("agent", r"at {address} answers jellybean://w/agent/edge-1, not jellybean://w/gateway: check the address"),
        (
            "old",
            r"the certificate of the gateway at {address} expired on [0-9-]+ .* UTC: run `jellybean certs DIR` there",
        ),
        ("foreign", r"is signed by the authority '.*'; .*/admin/admin trusts '.*': `jellybean certs` made another"),
    ],
)
def test_a_server_with_another_certificate(root: Path, folder: str, reason: str) -> None:
    with listening(tls(root, folder)) as address:
        found = fault(address, root)
        assert found is not None
        assert found.of_certificate
        assert re.search(reason.format(address=re.escape(address)), found.reason), found.reason


def test_a_token_of_another_gateway(root: Path) -> None:
    with listening(tls(root, "foreign")) as address:
        found = enrolment_fault(address, GATEWAY, authority_of(root).bundle)
        assert found is not None
        assert "this is another gateway, or its authority is new; make a token there" in found.reason


def test_a_server_that_refuses_the_callers_certificate(root: Path) -> None:
    with listening(tls(root, answer=b"")) as address:
        found = fault(address, root)
        assert found is not None
        assert found.of_certificate
        expected = rf"the gateway at {address} refuses the certificate in {root}/admin/admin, which the authority '.*' "
        assert re.match(expected + r"signed \(.*\): it does not know this authority; copy the folder", found.reason)


def test_a_caller_whose_certificate_has_expired_since(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(tls(root, answer=b"")) as address:
        folder = CertificateFolder(root / "admin/admin")
        expires_s = folder.current().expires_unix_s
        monkeypatch.setattr(faults.time, "time", lambda: expires_s + 1.0)
        found = connection_fault(address, GATEWAY, folder)
        assert found is not None
        assert re.match(rf"the certificate in {root}/admin/admin expired on \d{{4}}-.* UTC; ", found.reason)


def test_a_server_that_waits_has_no_fault(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_ANSWER_S", 0.05)
    done = threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root / "gateway/tls.crt", root / "gateway/tls.key")
    context.set_alpn_protocols(["h2"])

    def silent(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True):
            done.wait(10)

    with listening(silent) as address:
        assert fault(address, root) is None
        done.set()
