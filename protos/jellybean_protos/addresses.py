"""Addresses as people write them, HOST:PORT or [IPV6]:PORT: read and written in one form."""

from __future__ import annotations

import ipaddress

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_MAX_PORT = 65535
_NOT_IN_HOSTS = "/@[]"


def parse_address(text: str, *, least_port: int = 1) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT; an IP address in its shortest form. ValueError if it is none.

    `least_port`: 0 where any free port may be meant.
    """
    host, _, port = text.rpartition(":")
    number = _port_number(port)
    if host and not host.startswith("[") and ":" in host:
        ip = ip_address(host)
        example = join_address(host, number) if ip and number is not None else "[2001:db8::1]:7001"
        raise ValueError(f"{text!r} is no address: an IPv6 address stands in brackets, as in {example}")
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_host = bool(name) and not any(c.isspace() or c in _NOT_IN_HOSTS for c in name)
    if host != name:
        is_host = ":" in name and ip_address(name) is not None
    if not is_host or number is None or not least_port <= number <= _MAX_PORT:
        raise ValueError(
            f"{text!r} is no address: write HOST:PORT, or [IPV6]:PORT, with a port from {least_port} to {_MAX_PORT}"
        )
    return plain_host(name), number


def _port_number(text: str) -> int | None:
    """The number of a port; None for what is none, such as one of more digits than Python converts."""
    digits = text.lstrip("0") or "0"
    is_number = bool(text) and text.isascii() and text.isdigit() and len(digits) <= len(str(_MAX_PORT))
    return int(digits) if is_number else None


def join_address(host: str, port: int | str) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    name = plain_host(host)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def plain_host(host: str) -> str:
    """A host without brackets; an IP address in its shortest form, an IPv4-mapped one as IPv4."""
    name = host.removeprefix("[").removesuffix("]")
    ip = ip_address(name)
    return name if ip is None else str(ip)


def ip_address(host: str) -> IpAddress | None:
    """The IP address that a host is, an IPv4-mapped one as IPv4; None for a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped) or ip
