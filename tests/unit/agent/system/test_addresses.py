"""Addresses: how they are written, what is listened on, and what counts as one client."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from jellybean_agent.errors import PlanViewError
from jellybean_agent.system import addresses
from jellybean_agent.system.addresses import (
    client_network,
    is_every_address,
    is_loopback,
    listening_sockets,
    parse_address,
    peer_host,
    peer_name,
    peer_network,
)
from jellybean_protos.addresses import join_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("gateway.example:7001", "gateway.example", 7001),
        ("10.0.0.7:1", "10.0.0.7", 1),
        ("[::1]:7001", "::1", 7001),
        ("[2001:0DB8:0:0::7]:65535", "2001:db8::7", 65535),
        ("[::ffff:10.0.0.7]:7001", "10.0.0.7", 7001),
        ("[fe80::1%eth0]:7001", "fe80::1%eth0", 7001),
        ("[::]:7001", "::", 7001),
        ("gateway.example:0007001", "gateway.example", 7001),
    ],
)
def test_an_address_is_read_and_written_in_its_shortest_form(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert parse_address(join_address(host, port)) == (host, port)
    assert join_address(f"[{host}]", port) == join_address(host, port)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("::1:7001", r"an IPv6 address stands in brackets, as in \[::1\]:7001"),
        ("2001:db8::7", r"stands in brackets"),
        ("[::1]", "write HOST:PORT"),
        ("[::1]7001", "write HOST:PORT"),
        ("[gateway.example]:7001", r"or \[IPV6\]:PORT"),
        ("[10.0.0.7]:7001", r"or \[IPV6\]:PORT"),
        ("[]:7001", "write HOST:PORT"),
        (":7001", "write HOST:PORT"),
        ("http://gateway.example:7001", "stands in brackets|write HOST:PORT"),
        ("a b:7001", "write HOST:PORT"),
        ("gateway.example:0", "a port from 1 to 65535"),
        ("gateway.example:65536", "a port from 1 to 65535"),
        (f"gateway.example:{'9' * 5000}", "a port from 1 to 65535"),  # more digits than Python converts
        (f"1:2:{'9' * 5000}", "stands in brackets"),
        (f"::1:{'9' * 5000}", r"stands in brackets, as in \[2001:db8::1\]:7001"),
        ("gateway.example:٧٠", "write HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused_with_the_form_that_is_meant(text: str, reason: str) -> None:
    with pytest.raises(PlanViewError, match=reason):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", (True, False)),
        ("127.8.8.8", (True, False)),
        ("localhost", (True, False)),
        ("[::1]", (True, False)),
        ("::1", (True, False)),
        ("::ffff:127.0.0.1", (True, False)),
        ("10.0.0.7", (False, False)),
        ("::ffff:10.0.0.7", (False, False)),
        ("localhost.example", (False, False)),
        ("::", (False, True)),
        ("[::]", (False, True)),
        ("0.0.0.0", (False, True)),
        ("", (False, True)),
    ],
)
def test_which_hosts_are_this_machine_and_which_all_its_addresses(host: str, expected: tuple[bool, bool]) -> None:
    assert (is_loopback(host), is_every_address(host)) == expected


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),  # on a socket of both families
        ("64:ff9b::10.0.0.7", "10.0.0.7"),  # through NAT64
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::%eth0/64"),
        ("fe80::2%eth1", "fe80::%eth1/64"),
    ],
)
def test_what_counts_as_one_client(host: str, network: str) -> None:
    assert client_network(host) == network
    family = "ipv6" if ":" in network else "ipv4"
    assert peer_network(peer_name(Transport((host, 40_000)))) == f"{family}:{network}"


def test_a_peer_is_named_as_grpc_names_it() -> None:
    assert peer_name(Transport(("10.0.0.7", 40_000))) == "ipv4:10.0.0.7:40000"
    assert peer_name(Transport(("::ffff:10.0.0.7", 40_000, 0, 0))) == "ipv4:10.0.0.7:40000"
    assert peer_name(Transport(("2001:db8::7", 40_000, 0, 0))) == "ipv6:[2001:db8::7]:40000"
    assert peer_name(Transport("")) == peer_host("unix:") == peer_network("unix:") == "unix:"
    assert peer_host("ipv6:[2001:db8::7]:40000") == "ipv6:[2001:db8::7]"


class Transport:
    """A transport that knows the address of its peer only."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else None


@contextlib.contextmanager
def listening(host: str, port: int = 0) -> Iterator[list[socket.socket]]:
    sockets = listening_sockets(host, port)
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose kernel has no IPv6."""
    real = socket.socket

    def make(family: int = -1, *arguments: Any, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *arguments, **named)

    monkeypatch.setattr(addresses.socket, "socket", make)


@needs_ipv6
def test_all_addresses_are_those_of_both_families() -> None:
    with listening("[::]") as [both]:
        port = both.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 10).close()


def test_without_ipv6_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ipv6(monkeypatch)
    for host in ("[::]", ""):
        with listening(host) as [only]:
            assert (only.family, only.getsockname()[0]) == (socket.AF_INET, "0.0.0.0")
    with pytest.raises(OSError, match="not supported"):
        listening_sockets("::1", 0)


@needs_ipv6
def test_an_ipv6_address_is_not_that_of_ipv4() -> None:
    with listening("::1") as [only]:
        socket.create_connection(("::1", only.getsockname()[1]), 10).close()
        assert only.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def test_a_name_is_listened_on_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ("::1", "2001:db8::7", "127.0.0.1")
    entries = [(socket.AF_INET6 if ":" in host else socket.AF_INET, 1, 6, "", (host, 7001)) for host in hosts]
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: [*entries, *entries])
    opened: list[tuple[int, Any]] = []

    def listen(place: tuple[int, Any], backlog: int, *, is_dual: bool = False) -> socket.socket:
        if place[1][0].startswith("2001"):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        opened.append(place)
        return socket.socket(place[0])

    monkeypatch.setattr(addresses, "_listening", listen)
    with listening("gateway.example", 7001):
        assert [at[0] for _, at in opened] == ["::1", "127.0.0.1"]


def test_a_port_that_is_taken_leaves_no_socket_open() -> None:
    with listening("127.0.0.1") as [taken], pytest.raises(OSError, match="in use"):
        listening_sockets("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_small_answers_do_not_wait_for_the_acknowledgement_of_others(host: str) -> None:
    """asyncio sets TCP_NODELAY on the connections of a socket that says its protocol."""

    async def test() -> int:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        (listening, *others) = listening_sockets(host, 0)
        for other in others:
            other.close()
        server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), sock=listening)
        _, client = await asyncio.open_connection(*listening.getsockname()[:2])
        writer = await accepted.get()
        delay = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for end in (client, writer):
            end.close()
            await end.wait_closed()
        server.close()
        await server.wait_closed()
        return int(delay)

    assert asyncio.run(test())
