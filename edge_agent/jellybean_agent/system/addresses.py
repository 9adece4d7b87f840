"""Addresses of ports: how they are written, listened on, and counted for one client."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any

from jellybean_agent.errors import PlanViewError
from jellybean_protos import addresses
from jellybean_protos.addresses import ip_address, join_address, plain_host

_EVERY_IPV4, _EVERY_IPV6 = "0.0.0.0", "::"
EVERY_ADDRESS = f"[{_EVERY_IPV6}]"  # of both families; without IPv6, of IPv4
_BACKLOG = 1024
_CLIENT_PREFIX = 64  # bits: the smallest IPv6 network that a site gets, all of whose addresses are one client's
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the client's IPv4 address
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # of a machine without this family, or without the address


def parse_address(text: str, *, least_port: int = 1) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT; an IP address in its shortest form. PlanViewError if it is none.

    `least_port`: 0 where any free port may be meant.
    """
    try:
        return addresses.parse_address(text, least_port=least_port)
    except ValueError as error:
        raise PlanViewError(str(error)) from None


def is_loopback(host: str) -> bool:
    """True if a host is this machine by its name: localhost, or an address of the loopback interface."""
    name = plain_host(host)
    ip = ip_address(name)
    return name == "localhost" if ip is None else ip.is_loopback


def is_every_address(host: str) -> bool:
    """True if who listens there listens on all addresses of the machine."""
    name = plain_host(host)
    return name in ("", _EVERY_IPV4, _EVERY_IPV6)


def listening_sockets(host: str, port: int, backlog: int = _BACKLOG) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host. OSError if there is none; none then stays open.

    Of a name with several addresses, port 0 is on the first of them. They listen at once, as until then another
    process could bind to the address too.
    """
    name = plain_host(host) or _EVERY_IPV6
    if name == _EVERY_IPV6:
        try:
            return [_listening((socket.AF_INET6, (name, port)), backlog, is_dual=True)]
        except OSError as error:
            if error.errno not in _NO_FAMILY:
                raise
            name = _EVERY_IPV4
    entries = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list(dict.fromkeys((family, at) for family, _, _, _, at in entries))
    with contextlib.ExitStack() as unused:
        sockets: list[socket.socket] = []
        for place in places[: None if port else 1]:
            try:
                sockets.append(unused.enter_context(_listening(place, backlog)))
            except OSError as error:
                if error.errno not in _NO_FAMILY or (place is places[-1] and not sockets):
                    raise
        unused.pop_all()
        return sockets


def _listening(place: tuple[int, Any], backlog: int, *, is_dual: bool = False) -> socket.socket:
    family, at = place
    with contextlib.ExitStack() as unused:
        # With its protocol, by which asyncio knows that TCP_NODELAY is to be set: small answers would wait 40 ms.
        listening = unused.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        # Not REUSEPORT: two servers must not share a port unnoticed.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        listening.bind(at)
        listening.listen(backlog)
        unused.pop_all()
        return listening


UNIX_PEER = "unix:"


def peer_name(transport: Any) -> str:
    """Who is at the other end of an asyncio transport, as gRPC writes it: `ipv4:HOST:PORT`, `ipv6:[HOST]:PORT`."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return UNIX_PEER
    host = plain_host(str(name[0]))
    return f"{'ipv6' if ':' in host else 'ipv4'}:{join_address(host, name[1])}"


def peer_host(peer: str) -> str:
    """A `peer_name` without its port."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


def peer_network(peer: str) -> str:
    """By what name the shares of a limit count a `peer_name`: with `client_network` for its address."""
    kind, _, address = peer_host(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    network = client_network(address)
    return f"{'ipv6' if ':' in network else 'ipv4'}:{network}"


def client_network(host: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 network of an IPv6 address.

    Each host of such a network may use 2^64 addresses, which must not have a share each.
    """
    name = plain_host(host)
    ip = ip_address(name)
    if not isinstance(ip, ipaddress.IPv6Address):
        return name
    if ip in _NAT64:
        return str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    bits = 128 - _CLIENT_PREFIX
    network = ipaddress.IPv6Address(int(ip) >> bits << bits)
    return f"{network}{f'%{ip.scope_id}' if ip.scope_id else ''}/{_CLIENT_PREFIX}"
