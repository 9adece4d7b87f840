"""The token with which an agent enrols: a one-time secret, the identity it gets, and the CA certificate to trust.

Its form is jbt1.SECRET.IDENTITY.CA, with parts in base64url. As it contains the CA certificate, the agent can verify
the gateway from its first connection on.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from jellybean_agent.errors import PlanViewError
from jellybean_agent.security.identity import Identity, Role, parse_identity

_KIND = "jbt1"
_MAX_CHARACTERS = 64 * 2**10
TOKEN_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A parsed token. `ca`: the CA certificate (PEM)."""

    secret: bytes
    identity: Identity
    ca: bytes

    def __str__(self) -> str:
        parts = (self.secret, self.identity.uri.encode(), self.ca)
        return ".".join([_KIND, *(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)])


def parse_token(text: str) -> JoinToken:
    """Parse a token. PlanViewError if it is damaged or of an unknown version."""
    if not text.strip():
        raise PlanViewError("the token is empty: make one with `jellybean token`")
    kind, *parts = text.strip()[:_MAX_CHARACTERS].split(".")
    if kind != _KIND or len(parts) != 3:
        raise PlanViewError(f"not a token of this version ({_KIND}...): make one with `jellybean token`")
    try:
        secret, uri, ca = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts)
    except (binascii.Error, ValueError) as error:
        raise PlanViewError("the token is damaged: copy it whole") from error
    identity = parse_identity(uri.decode("utf-8", "replace"))
    whole = len(secret) == TOKEN_SECRET_BYTES and ca.rstrip().endswith(b"-----END CERTIFICATE-----")
    if identity is None or identity.role is not Role.AGENT or not whole:
        raise PlanViewError("the token is damaged: copy it whole")
    return JoinToken(secret, identity, ca)
