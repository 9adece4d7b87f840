"""The TLS connections of a server in memory: which handshakes count as unfinished, and when a connection ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from collections.abc import Callable

import pytest

from jellybean.serving import open_authority
from jellybean_agent import CertificateFolder, ListeningPort
from jellybean_agent.admission.turns import TURN_S, PeerTurns
from jellybean_agent.rpc.frames import PREFACE, frame
from jellybean_agent.rpc.tls import listener as tls_listener
from jellybean_agent.rpc.tls.listener import TlsLimits
from jellybean_agent.rpc.tls.transport import READ_BYTES, TlsTransport
from jellybean_agent.rpc.unix_socket_frames import STREAMS_ALPN
from jellybean_agent.security.identity import identities
from jellybean_agent.security.tls_context import client_context
from tests.support.http2_client import (
    BIDI,
    INITIAL_WINDOW,
    MAX_FRAME,
    SLOW,
    content,
    goaway,
    message,
    open_call,
    settings,
    settle,
    split_frames,
    unary_call,
)
from tests.support.memory_connection import MemoryTransport
from tests.unit.agent.rpc.tls_client import ALICE, GATEWAY, Client, Listener, in_simulated_time

LARGE = random.Random(1).randbytes(300_000)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[CertificateFolder, CertificateFolder]:
    """The certificates of a server and of a client."""
    root = tmp_path_factory.mktemp("certificates")
    authority = open_authority(root / "ca")
    authority.equip(root / "gateway", GATEWAY)
    authority.equip(root / "client", ALICE)
    return CertificateFolder(root / "gateway"), CertificateFolder(root / "client")


def test_handshakes_that_are_finished_or_failed_do_not_count_as_unfinished(
    folders: tuple[CertificateFolder, CertificateFolder], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jellybean.tls")

    async def test(listener: Listener) -> None:
        clients = [listener.client().shake_hands() for _ in range(5)]
        listener.accept().receive(b"plain text")
        listener.accept().lose()
        other = listener.client("http/1.1").shake_hands()
        assert other.connection.is_closing(), "the server refuses after the handshake"
        waiting = [listener.accept() for _ in range(3)]
        await settle()
        assert not any(connection.is_closing() for connection in waiting)
        latest = listener.accept()
        assert [connection.is_aborted for connection in waiting] == [True, False, False], "the oldest is given up"
        assert not latest.is_closing()
        assert listener.calls.server.open_connections == 5
        for client in clients:
            client.send(PREFACE + settings() + unary_call(1, b"x"))
            assert message(b"x") in await client.read()

    in_simulated_time(folders, TlsLimits(handshakes=3), test)
    reasons = [text.removeprefix("refused at the handshake: ").rpartition(" (")[0] for text in caplog.messages]
    assert reasons == [
        "it does not speak TLS",
        f"it offers none of the protocols {STREAMS_ALPN}, h2 (ALPN)",
        "too many unfinished handshakes",
    ]


@pytest.mark.parametrize("crowd", ["10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1", "2001:db8::{:x}"])
def test_silent_connections_of_one_address_end_no_handshake_of_another(
    folders: tuple[CertificateFolder, CertificateFolder], crowd: str
) -> None:
    async def test(listener: Listener) -> None:
        connection = listener.accept("10.0.0.2")
        for number in range(40):
            listener.accept(crowd.format(number))  # the last: each from another address of one IPv6 network
            await settle()
        client = Client(connection, client_context(listener.client_files, ("h2",))).shake_hands()
        client.send(PREFACE + settings() + unary_call(1, b"x"))
        assert message(b"x") in await client.read()
        refused = listener.calls.server.admission.refused
        assert refused[ListeningPort.CLIENTS, "too many handshakes"] >= 32

    in_simulated_time(folders, TlsLimits(handshakes=8), test)


@pytest.mark.parametrize("pieces", [0, 7])
def test_a_client_is_known_by_its_certificate_and_served_by_what_it_offers(
    folders: tuple[CertificateFolder, CertificateFolder], pieces: int
) -> None:
    async def test(listener: Listener) -> None:
        client = listener.client("h2").shake_hands(pieces)
        client.send(PREFACE + settings((INITIAL_WINDOW, 2**30)) + unary_call(1, LARGE[:1000]), pieces)
        assert content(split_frames(await client.read()), 1) == message(LARGE[:1000])
        (context,) = listener.calls.contexts
        assert identities(context.auth_context()) == [ALICE]
        assert context.peer() == "ipv4:127.0.0.1:40000"
        other = listener.client(STREAMS_ALPN).shake_hands()
        assert other.tls.selected_alpn_protocol() == STREAMS_ALPN
        assert (await other.read()).startswith(b""), "there is no greeting over TLS"

    in_simulated_time(folders, TlsLimits(), test)


def test_large_answers_pass_whole_and_are_held_back_with_their_reader(
    folders: tuple[CertificateFolder, CertificateFolder],
) -> None:
    async def test(listener: Listener) -> None:
        client = listener.client().shake_hands()
        wide = settings((INITIAL_WINDOW, 2**30), (MAX_FRAME, 2**20)) + frame(8, 0, 0, (2**29).to_bytes(4, "big"))
        client.send(PREFACE + wide)
        await client.read()
        client.connection.is_blocked = True
        for number in range(1, 11, 2):
            client.send(unary_call(number, LARGE))
            await settle()
        assert not client.connection.is_reading
        assert client.connection.get_write_buffer_size() < 2**20 + 2 * len(LARGE)
        client.connection.unblock()
        answers = split_frames(await client.read())
        assert [content(answers, number) for number in range(1, 11, 2)] == [message(LARGE)] * 5
        assert client.connection.is_reading

    in_simulated_time(folders, TlsLimits(), test)


def test_a_handshake_that_does_not_end_is_given_up_and_a_finished_one_is_not(
    folders: tuple[CertificateFolder, CertificateFolder], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jellybean.tls")

    async def test(listener: Listener) -> None:
        silent, done = listener.accept(), listener.client().shake_hands()
        done.send(PREFACE + settings() + unary_call(1, b"x"))
        await asyncio.sleep(2.9)
        assert not silent.is_closing()
        await asyncio.sleep(0.2)
        assert silent.is_aborted
        await asyncio.sleep(60.0)
        assert not done.connection.is_closing()

    in_simulated_time(folders, TlsLimits(handshake_s=3.0), test)
    assert caplog.messages == ["refused at the handshake: no TLS handshake within 3 s (127.0.0.1)"]


def test_a_connection_retires_at_its_age_and_ends_after_the_grace(
    folders: tuple[CertificateFolder, CertificateFolder],
) -> None:
    async def test(listener: Listener) -> None:
        client, lost, stuck = (listener.client().shake_hands() for _ in range(3))
        for one in (client, lost, stuck):
            one.send(PREFACE + settings() + unary_call(1, b"", SLOW))
            await one.read()
        lost.connection.lose()
        await asyncio.sleep(89.9)
        assert await client.read() == b""
        waited_s = 0.0
        while not (first := await client.read()):  # ages differ by a tenth
            await asyncio.sleep(0.1)
            waited_s += 0.1
        assert waited_s < 20.3
        assert goaway(split_frames(first))[0] == 2**31 - 1
        await asyncio.sleep(1.1)
        client.send(unary_call(3, b"refused"))
        assert [found.kind for found in split_frames(await client.read())] == [7, 3]
        await asyncio.sleep(8.7)
        assert await client.read() == b"", "the grace has not ended"
        await asyncio.sleep(0.3)
        last = await client.read()
        assert b"the connection has reached its maximum age" in last
        assert client.has_been_closed()
        await asyncio.sleep(60.0)
        assert listener.calls.server.calls_in_progress == 0
        assert not lost.connection.is_aborted, "its timers have ended with it"

    in_simulated_time(folders, TlsLimits(age_s=100.0, grace_s=10.0), test)


def test_a_client_that_does_not_read_the_end_is_aborted(
    folders: tuple[CertificateFolder, CertificateFolder],
) -> None:
    async def test(listener: Listener) -> None:
        connection = StuckTransport(listener.tls.accept())
        connection.connect()
        client = Client(connection, client_context(folders[1].current(), ("h2",))).shake_hands()
        client.send(PREFACE + settings())
        await asyncio.sleep(9.0 + 1.0 + 4.9)
        assert not connection.is_aborted
        await asyncio.sleep(2.2)  # ages differ by a tenth
        assert connection.is_aborted

    in_simulated_time(folders, TlsLimits(age_s=10.0, grace_s=1.0), test)


class StuckTransport(MemoryTransport):
    """Its last bytes do not leave, so that only `abort` ends it."""

    def close(self) -> None:
        pass


def test_the_end_of_a_listener_aborts_handshakes_and_waits_for_connections(
    folders: tuple[CertificateFolder, CertificateFolder],
) -> None:
    async def test(listener: Listener) -> None:
        beginner, client = listener.accept(), listener.client().shake_hands()
        stuck = StuckTransport(listener.tls.accept())
        stuck.connect()
        Client(stuck, client_context(folders[1].current(), ("h2",))).shake_hands()
        closing = asyncio.create_task(listener.tls.close())
        await settle()
        assert beginner.is_aborted
        assert not client.connection.is_aborted
        client.connection.close()
        await closing
        assert not client.connection.is_aborted
        assert stuck.is_aborted

    in_simulated_time(folders, TlsLimits(), test)


def test_a_certificate_that_expired_after_its_check_is_refused(
    folders: tuple[CertificateFolder, CertificateFolder],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As of a session that TLS 1.2 resumes, for which OpenSSL does not look again."""
    caplog.set_level("INFO", "jellybean.tls")
    end_s = folders[1].current().expires_unix_s

    async def test(listener: Listener) -> None:
        for now_s, is_refused in ((end_s - 10.0, False), (end_s + 10.0, True)):
            monkeypatch.setattr(tls_listener.time, "time", lambda now_s=now_s: now_s)
            assert listener.client().shake_hands().connection.is_closing() == is_refused

    in_simulated_time(folders, TlsLimits(), test)
    assert caplog.messages == ["refused at the handshake: certificate has expired (127.0.0.1)"]


def test_close_notify_and_a_lost_connection_end_the_calls(
    folders: tuple[CertificateFolder, CertificateFolder],
) -> None:
    async def test(listener: Listener) -> None:
        for how in ("close_notify", "lost", "garbage"):
            client = listener.client().shake_hands()
            client.send(PREFACE + settings() + unary_call(1, b"", SLOW) + open_call(3, BIDI))
            await client.read()
            assert listener.calls.server.calls_in_progress == 2
            if how == "close_notify":
                with pytest.raises(ssl.SSLWantReadError):
                    client.tls.unwrap()
                client._exchange()
                await settle()
                assert client.connection.is_closing()
            elif how == "lost":
                client.connection.lose(ConnectionResetError())
            else:
                client.connection.receive(b"\x17\x03\x03\x00\x20" + bytes(32))
            await settle()
            assert listener.calls.server.calls_in_progress == 0, how
            assert listener.calls.server.open_connections == 0, how

    in_simulated_time(folders, TlsLimits(), test)


def test_a_peer_that_ends_before_the_handshake_is_told_of_once(
    folders: tuple[CertificateFolder, CertificateFolder], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jellybean.tls")

    async def test(listener: Listener) -> None:
        connection = listener.accept()
        transport = connection.protocol
        assert isinstance(transport, TlsTransport)
        transport.eof_received()
        transport.eof_received()
        await settle()
        assert connection.is_closing()
        client = listener.client().shake_hands()
        secured = client.connection.protocol
        assert isinstance(secured, TlsTransport)
        secured.eof_received()
        assert not client.connection.is_closing(), "its own transport closes it"
        assert not secured.is_closing()
        secured.abort()
        assert secured.is_closing()
        secured.write(b"after the end")
        assert client.connection.take() == b""
        early = TlsTransport(secured_by(listener), listener.tls, memoryview(bytearray(10)), 1.0)
        early.abort()
        late = MemoryTransport(early)
        late.connect()
        assert late.is_aborted, "it was given up before it was connected"

    in_simulated_time(folders, TlsLimits(), test)
    assert caplog.messages == ["refused at the handshake: it closed the connection (127.0.0.1)"]


def test_a_lost_connection_takes_nothing_more(folders: tuple[CertificateFolder, CertificateFolder]) -> None:
    async def test(listener: Listener) -> None:
        client = listener.client().shake_hands()
        secured = client.connection.protocol
        assert isinstance(secured, TlsTransport)
        assert secured.get_extra_info("peername") == ("127.0.0.1", 40_000)
        client.connection.lose()
        assert secured.is_closing()
        secured.pause_reading()
        secured.resume_reading()
        secured.set_write_buffer_limits(5)
        secured.write(b"x")
        secured.close()
        secured.abort()
        assert (secured.get_write_buffer_size(), secured.get_extra_info("peername", "gone")) == (0, "gone")
        assert client.connection.take() == b""

    in_simulated_time(folders, TlsLimits(), test)


def secured_by(listener: Listener) -> Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]:
    """What makes the TLS of one more connection of a listener."""
    return lambda incoming, outgoing: listener.client().connection.protocol.tls.context.wrap_bio(  # type: ignore[attr-defined]
        incoming, outgoing, server_side=True
    )


def test_handshakes_of_an_address_without_time_wait_and_hold_up_no_other_address(
    folders: tuple[CertificateFolder, CertificateFolder],
) -> None:
    async def test(listener: Listener) -> None:
        clock = itertools.count()  # turns, so each step of a handshake takes all the time of a turn
        listener.calls.port.turns = PeerTurns(lambda: next(clock) * TURN_S)
        flood = [listener.client(address="10.0.0.1") for _ in range(3)]
        clients = [*flood, listener.client(address="10.0.0.2")]
        for client in clients:
            client.step()
        assert [client.connection.is_reading for client in clients] == [True, False, False, True]
        for _ in range(10):
            await settle()
            for client in clients:
                client.step()
        assert [client.step() for client in clients] == [True] * 4
        assert all(client.connection.is_reading for client in clients)

    in_simulated_time(folders, TlsLimits(), test)


def test_records_wait_for_the_turn_of_their_client(folders: tuple[CertificateFolder, CertificateFolder]) -> None:
    """However many records there are, and however small: decryption is work of the client."""

    async def test(listener: Listener) -> None:
        client = listener.client().shake_hands()
        client.send(PREFACE + settings())
        await client.read()
        listener.calls.port.turns.of(ALICE.uri)
        ticks = itertools.count()
        transport = client.connection.protocol
        transport.turn = PeerTurns(lambda: next(ticks) * TURN_S / 4).of("flood")  # type: ignore[attr-defined]
        transport.memory = memory = listener.calls.server.admission.waiting.share_of("flood")  # type: ignore[attr-defined]
        client.connection.holds_back = True
        for octet in unary_call(1, b"x" * 300):
            client.tls.write(bytes([octet]))
        client._exchange()
        assert not client.connection.is_reading
        assert memory.held == READ_BYTES
        for _ in range(100):
            await settle()
        assert content(split_frames(await client.read()), 1) == message(b"x" * 300)
        assert client.connection.is_reading
        assert memory.held == 0

    in_simulated_time(folders, TlsLimits(), test)


@pytest.mark.parametrize(
    "invalid",
    [
        pytest.param(b"\x17\x03\x03\x00\x20" + bytes(32), id="forged"),
        pytest.param(b"\x17\x03\x03\xff\xff" + bytes(32), id="too long"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x14", id="an alert that is not encrypted"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no TLS"),
    ],
)
def test_an_invalid_record_behind_a_call_ends_the_connection_and_fails_nothing(
    folders: tuple[CertificateFolder, CertificateFolder], caplog: pytest.LogCaptureFixture, invalid: bytes
) -> None:
    """What came before it is answered at once, when nothing can be encrypted any more."""

    async def test(listener: Listener) -> None:
        client = listener.client().shake_hands()
        client.tls.write(PREFACE + settings() + unary_call(1, b"x"))
        client._outgoing.write(invalid)
        client._exchange()
        await settle()
        assert client.connection.is_closing()
        assert not listener.calls.port.calls
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            await client.read()

    in_simulated_time(folders, TlsLimits(), test)
    assert not caplog.messages


def test_a_silent_connection_has_no_tls_object(folders: tuple[CertificateFolder, CertificateFolder]) -> None:
    async def test(listener: Listener) -> None:
        silent = listener.accept()
        assert not hasattr(silent.protocol, "tls")
        silent.abort()
        client = listener.client().shake_hands()
        assert client.connection.protocol.tls is not None  # type: ignore[attr-defined]

    in_simulated_time(folders, TlsLimits(), test)
