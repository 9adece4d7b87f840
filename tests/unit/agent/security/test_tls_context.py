"""TLS of an HTTP server by real sockets: every handshake by the files as they are, the authority's too."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from jellybean.serving import Authority, open_authority
from jellybean_agent import (
    CERTIFICATE_FILE,
    PRIVATE_KEY_FILE,
    CertificateFolder,
    Identity,
    PlanViewError,
    Role,
)
from jellybean_agent.security.tls_context import ReloadingTlsContext, TlsSettings

ALICE = Identity("tiny", Role.CLIENT, "alice")


def equipped(authority: Authority, folder: Path, me: Identity = ALICE) -> Path:
    authority.equip(folder, me, hosts=["127.0.0.1"])
    return folder


def test_a_renewed_authority_counts_at_the_next_handshake_and_the_one_before_no_more(
    tmp_path: Path,
) -> None:
    old, new = open_authority(tmp_path / "old"), open_authority(tmp_path / "new")
    gateway, me = tmp_path / "gateway", Identity("tiny", Role.GATEWAY)
    equipped(old, gateway, me)
    of_old, of_new = equipped(old, tmp_path / "a"), equipped(new, tmp_path / "b")

    async def said(port: int, believed: Authority, folder: Path) -> bytes:
        """What the server sends; nothing when it lets nobody in."""
        context = ssl.create_default_context(cadata=believed.bundle.decode())
        context.load_cert_chain(folder / CERTIFICATE_FILE, folder / PRIVATE_KEY_FILE)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            found = await reader.read()
        except (ssl.SSLError, ConnectionError):
            return b""
        writer.close()
        return found

    sessions: list[ssl.SSLObject] = []

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sessions.append(writer.get_extra_info("ssl_object"))
        writer.write(b"in")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(
            answer,
            "127.0.0.1",
            0,
            ssl=ReloadingTlsContext.of(CertificateFolder(gateway), TlsSettings()),
        )
        port = server.sockets[0].getsockname()[1]
        assert [await said(port, old, of_old), await said(port, old, of_new)] == [b"in", b""]
        equipped(new, gateway, me)
        assert [await said(port, new, of_old), await said(port, new, of_new)] == [b"", b"in"]
        equipped(old, tmp_path / "half")
        (tmp_path / "half" / PRIVATE_KEY_FILE).replace(
            gateway / PRIVATE_KEY_FILE
        )  # of another pair: the last good one stays in use
        assert await said(port, new, of_new) == b"in"
        server.close()

    asyncio.run(run())
    assert {session.version() for session in sessions} == {"TLSv1.3"}
    assert not any(session.session_reused for session in sessions)


def test_a_bundle_that_tls_cannot_use_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CertificateFolder(equipped(open_authority(tmp_path / "ca"), tmp_path / "gateway"))

    def refuse(*_arguments: object, **_more: object) -> None:
        raise ssl.SSLError("ca md too weak")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", refuse)
    with pytest.raises(PlanViewError, match=r"TLS cannot use this certificate: .*too weak"):
        ReloadingTlsContext.of(folder, TlsSettings())
