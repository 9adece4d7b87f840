"""TLS contexts of servers and clients: mutual, without session resumption, with credentials that may be replaced."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jellybean_agent.errors import PlanViewError
from jellybean_agent.security.certificates import CertificateFolder, Credentials

_HTTP2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; HTTP/2 prohibits the others (RFC 9113, appendix A)
LOG = logging.getLogger("jellybean.tls")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What a server's TLS accepts. `clients`: whether clients need a certificate. `alpn`: its protocols, best first."""

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    clients: bool = True
    alpn: tuple[str, ...] = ()


class ReloadingTlsContext(ssl.SSLContext):
    """A server's TLS context that reloads its credentials at each handshake.

    PlanViewError when the first credentials are unusable.
    """

    _folder: CertificateFolder
    _given: Credentials
    _newest: ssl.SSLContext
    _settings: TlsSettings

    @classmethod
    def of(cls, folder: CertificateFolder, settings: TlsSettings) -> ReloadingTlsContext:
        found = cls(ssl.PROTOCOL_TLS_SERVER)
        found._folder, found._given, found._settings = folder, folder.current(), settings
        try:
            found._newest = _server_context(found._given, settings)
        except (ssl.SSLError, ValueError) as error:
            raise PlanViewError(f"{folder.path}: TLS cannot use this certificate: {tls_error_text(error)}") from error
        return found

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """Called for each connection; uses a context with the newest credentials."""
        current = self._folder.current()
        if current is not self._given:
            self._given = current
            try:
                self._newest = _server_context(current, self._settings)
            except (ssl.SSLError, ValueError) as error:
                LOG.warning("the last valid certificate stays in use: %s", tls_error_text(error))
        return self._newest.wrap_bio(*arguments, **more)


def client_context(credentials: Credentials, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """TLS 1.3 of a client with a certificate, which accepts servers of the same authority by their names."""
    context = anonymous_client_context(credentials.ca, alpn)
    _load_chain(context, credentials)
    return context


def anonymous_client_context(ca: bytes, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """TLS 1.3 of a client without a certificate, which accepts servers of an authority (PEM) by their names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(list(alpn))
    _load_authority(context, ca)
    return context


def _server_context(credentials: Credentials, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = settings.minimum
    context.set_ciphers(_HTTP2_CIPHERS)
    context.num_tickets = 0  # no session resumption in TLS 1.3: every connection shows a certificate
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION  # the same in TLS 1.2
    context.verify_mode = ssl.CERT_REQUIRED if settings.clients else ssl.CERT_NONE
    if settings.alpn:
        context.set_alpn_protocols(list(settings.alpn))
    _load_authority(context, credentials.ca)
    _load_chain(context, credentials)
    return context


def _load_authority(context: ssl.SSLContext, ca: bytes) -> None:
    context.load_verify_locations(cadata=ca.decode("ascii", "replace"))


def _load_chain(context: ssl.SSLContext, credentials: Credentials) -> None:
    with _path_of_bytes(credentials.chain + b"\n" + credentials.key) as path:
        context.load_cert_chain(path)


def tls_error_text(error: ssl.SSLError | ValueError) -> str:
    """OpenSSL's reason text (the error numbers of OpenSSL are not errno values)."""
    reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")


@contextlib.contextmanager
def _path_of_bytes(data: bytes) -> Iterator[str]:
    """Path of an in-memory file with these bytes: OpenSSL loads from paths only, and files on disk may change."""
    descriptor = os.memfd_create("certificate")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
