"""How each of several gateways of a plan makes itself known to workers, so that answers reach the one that asked.

A gateway states its key and its address once, in the metadata of each stream to a worker. The ids of its attempts begin
with the key, so every message between workers says which gateway is to be answered. The only gateway of a plan states
nothing: workers answer it at its address in the peers file.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

import grpc

from jellybean_agent.errors import PlanViewError, StatusError
from jellybean_agent.security.identity import REPLY_ADDRESS_KEY, REPLY_KEY, Role
from jellybean_agent.transport.channels import Transport, caller_identity
from jellybean_protos.addresses import join_address

_SEPARATOR = "."  # between a gateway's key and the rest of an attempt's id
_KEY_DIGITS = 8
_KEY = re.compile(rf"[0-9a-f]{{{_KEY_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """Where one of several gateways takes answers, and the key by which messages name it."""

    key: str
    address: str

    @classmethod
    def of(cls, address: str, transport: Transport) -> ReplyAddress:
        """That of this process, with a key of its own. PlanViewError if workers cannot call the address.

        `address`: as of `Transport.check`; an IPv6 address needs no brackets.
        """
        host, _, port = address.rpartition(":")
        if not address.startswith("unix:") and ":" in host:
            address = join_address(host, port)
        return cls(uuid.uuid4().hex[:_KEY_DIGITS], transport.check(address))

    @property
    def request_prefix(self) -> str:
        """What the ids of its attempts begin with."""
        return self.key + _SEPARATOR

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of its streams to workers."""
        return ((REPLY_KEY, self.key), (REPLY_ADDRESS_KEY, self.address))


def gateway_key(request: str) -> str:
    """The key of the gateway that an attempt's id names; empty: the only one."""
    key, separator, _ = request.partition(_SEPARATOR)
    return key if separator else ""


def read_reply_address(context: Any, transport: Transport) -> ReplyAddress | None:
    """The reply address that the caller of a stream states; None if it states none.

    StatusError unless the caller may choose where this process connects to: with TLS it must have a gateway's
    certificate, and only a caller on a Unix socket may name a Unix socket.
    """
    metadata = dict(context.invocation_metadata() or ())
    key, address = (str(metadata.get(name, "")) for name in (REPLY_KEY, REPLY_ADDRESS_KEY))
    if not key:
        return None
    is_local = context.peer().startswith("unix:")
    caller = caller_identity(context)
    if not is_local and transport.certificate is not None and (caller is None or caller.role is not Role.GATEWAY):
        reason = f"{caller or 'a caller without a certificate'} is no gateway: it cannot say where answers go"
        raise StatusError(grpc.StatusCode.PERMISSION_DENIED, reason)
    if not _KEY.fullmatch(key):
        reason = f"{key[:60]!r} is no key of a gateway: {_KEY_DIGITS} hexadecimal digits"
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, reason)
    if address.startswith("unix:") and not is_local:
        reason = f"{address[:60]!r} is a socket of this machine: a gateway elsewhere takes answers at HOST:PORT"
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, reason)
    try:
        return ReplyAddress(key, transport.check(address))
    except PlanViewError as error:
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, f"answers cannot go there: {error}") from error
