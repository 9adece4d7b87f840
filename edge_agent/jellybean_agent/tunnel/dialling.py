"""Dials the relay: one TLS connection, whose certificate must be the relay's or gateway's of the own workflow."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.connector import dial_failure
from jellybean_agent.relay.endpoints import Endpoint, Sink, TlsEndpoint
from jellybean_agent.relay.wire import RELAY_ALPN
from jellybean_agent.security.certificates import CertificateFolder, Credentials
from jellybean_agent.security.identity import Role, identities, tls_auth_context
from jellybean_agent.security.tls_context import client_context, tls_error_text
from jellybean_protos.addresses import join_address

_RELAY_ROLES = (Role.RELAY, Role.GATEWAY)


class Dialler:
    """Makes connections to a relay. Its host name is resolved, and a renewed certificate used, at each of them."""

    def __init__(
        self, relay: tuple[str, int], certificate: CertificateFolder, timeout_s: float, buffer: memoryview
    ) -> None:
        self.certificate = certificate
        self._relay, self._timeout_s, self._buffer = relay, timeout_s, buffer
        self._made_of: Credentials | None = None
        self._context: ssl.SSLContext

    async def dial(self) -> TlsEndpoint:
        """A secured connection, whose events still go nowhere. TransientError with the reason if there is none."""
        host, port = self._relay
        at = join_address(host, port)
        handshake = _Handshake()
        try:
            context = self._newest_context()
            async with asyncio.timeout(self._timeout_s):

                def make() -> TlsEndpoint:
                    def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
                        return context.wrap_bio(incoming, outgoing)

                    return TlsEndpoint(wrap, handshake, self._buffer)

                _, endpoint = await asyncio.get_running_loop().create_connection(make, host, port)
                try:
                    await handshake.done
                    self._check_relay(endpoint)
                except BaseException:
                    endpoint.reset("it was given up")
                    raise
        except (ssl.SSLError, ValueError) as error:  # of the own certificate; UnicodeError: of the host name
            reason = tls_error_text(error) if isinstance(error, ssl.SSLError) else dial_failure(error)
            raise TransientError(f"{at}: {reason}") from error
        except OSError as error:  # TimeoutError is an OSError
            raise TransientError(f"{at}: {dial_failure(error)}") from error
        except _HandshakeError as error:
            raise TransientError(f"{at}: {error}") from error
        return endpoint

    def _newest_context(self) -> ssl.SSLContext:
        credentials = self.certificate.current()
        if credentials is not self._made_of:
            self._context = client_context(credentials, (RELAY_ALPN,))
            self._context.check_hostname = False  # `_check_relay` compares the identity
            self._made_of = credentials
        return self._context

    def _check_relay(self, endpoint: TlsEndpoint) -> None:
        """_HandshakeError unless the certificate, which the authority has signed, is a relay's of this workflow."""
        certificate: Any = endpoint.tls.getpeercert() or {}
        names = (str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI")
        found = identities(tls_auth_context(names))
        workflow = self.certificate.current().identity.plan
        if len(found) != 1 or found[0].role not in _RELAY_ROLES or found[0].workflow != workflow:
            who = found[0].uri if len(found) == 1 else "without an identity"
            raise _HandshakeError(f"its certificate is {who}, not a relay's of workflow {workflow}")
        if endpoint.tls.selected_alpn_protocol() != RELAY_ALPN:
            raise _HandshakeError(f"it does not speak {RELAY_ALPN}: is this the relay's --listen port?")


class _HandshakeError(Exception):
    pass


class _Handshake(Sink):
    """Waits for the end of a handshake."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def opened(self, endpoint: Endpoint) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def lost(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(_HandshakeError(reason))
            self.done.exception()  # retrieved: a dial that was cancelled does not wait for it
