"""Mutual TLS for servers based on Python's `ssl` (the HTTP server); grpc has its own."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import time
from collections.abc import Iterator
from typing import Any

from jellybean_agent.errors import PlanViewError
from jellybean_agent.security.certificates import CertificateFolder, Credentials

LOG = logging.getLogger("jellybean.tls")


class TlsConnection(ssl.SSLObject):
    """The TLS of one connection. `began_s`: when it was accepted, by the monotonic clock."""

    began_s = 0.0

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:  # asyncio closes the connection without logging the reason
            LOG.info("refused at the handshake: %s", _why(error))
            raise


class ReloadingTlsContext(ssl.SSLContext):
    """A server's TLS context that reloads its credentials at each handshake. Clients need a certificate.

    PlanViewError when the first credentials are unusable.
    """

    _folder: CertificateFolder
    _given: Credentials
    _newest: ssl.SSLContext

    @classmethod
    def of(cls, folder: CertificateFolder) -> ReloadingTlsContext:
        found = cls(ssl.PROTOCOL_TLS_SERVER)
        found._folder, found._given = folder, folder.current()
        try:
            found._newest = _context(found._given)
        except (ssl.SSLError, ValueError) as error:
            raise PlanViewError(f"{folder.path}: TLS cannot use this certificate: {_why(error)}") from error
        return found

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """Called by asyncio for each connection; uses a context with the newest credentials."""
        current = self._folder.current()
        if current is not self._given:
            self._given = current
            try:
                self._newest = _context(current)
            except (ssl.SSLError, ValueError) as error:
                LOG.warning("the last valid certificate stays in use: %s", _why(error))
        found = self._newest.wrap_bio(*arguments, **more)
        if isinstance(found, TlsConnection):
            found.began_s = time.monotonic()
        return found


def _context(found: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session resumption: every connection shows a certificate
    context.verify_mode = ssl.CERT_REQUIRED
    context.sslobject_class = TlsConnection
    context.load_verify_locations(cadata=found.ca.decode("ascii", "replace"))
    with path_of_bytes(found.chain + b"\n" + found.key) as path:
        context.load_cert_chain(path)
    return context


def _why(error: ssl.SSLError | ValueError) -> str:
    """OpenSSL's reason text (the error numbers of OpenSSL are not errno values)."""
    reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")


@contextlib.contextmanager
def path_of_bytes(data: bytes) -> Iterator[str]:
    """Path of an in-memory file with these bytes: OpenSSL loads from paths only, and files on disk may change."""
    descriptor = os.memfd_create("certificate")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
