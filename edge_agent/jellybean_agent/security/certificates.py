"""The credentials of a process: a folder with ca.crt, tls.crt and tls.key, as Kubernetes mounts a secret.

The folder is read again at a handshake if its files have changed, so a certificate is renewed by replacing files. While
key and certificate do not match, as during a replacement, the last valid credentials stay in use.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.security.identity import Identity, parse_identity
from jellybean_agent.security.renewal import ExpiredCertificateError
from jellybean_protos.extras import install_command

LOG = logging.getLogger("jellybean.tls")
CREDENTIAL_FILES = CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE = "ca.crt", "tls.crt", "tls.key"
_MAX_FILE_BYTES = 2**20
_READABLE_BY_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Credentials:
    """CA certificates, own certificate chain and key (PEM), with identity, expiry and lifetime of the certificate."""

    ca: bytes
    chain: bytes
    key: bytes
    identity: Identity
    expires_unix_s: float
    lifetime_s: float


class CertificateFolder:
    """The credentials in a folder, reread when its files change. PlanViewError when they are invalid at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._stamp()
        self._current = read_credentials(path)
        if self._current.expires_unix_s < time.time():
            raise ExpiredCertificateError(path, path / CERTIFICATE_FILE, self._current.identity)

    def current(self) -> Credentials:
        """The newest valid credentials."""
        stamp = self._stamp()
        if stamp != self._seen:
            try:
                self._current = read_credentials(self.path)
                self._seen = stamp
                LOG.info("certificate of %s renewed", self._current.identity)
            except PlanViewError as error:  # the replacement may be incomplete: read again at the next handshake
                LOG.warning("the last valid certificate stays in use: %s", error)
        return self._current

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [(self.path / name).stat() for name in CREDENTIAL_FILES]
        except OSError:
            return ()
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in found)


def read_credentials(folder: Path) -> Credentials:
    """Read a folder's credentials. PlanViewError unless the key matches the certificate, which has one identity."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise PlanViewError(f"TLS needs cryptography: {install_command('agent')}") from error
    ca, chain, key = (_read(folder / name) for name in CREDENTIAL_FILES)
    if (folder / PRIVATE_KEY_FILE).stat().st_mode & _READABLE_BY_OTHERS and not (
        folder / PRIVATE_KEY_FILE
    ).is_symlink():
        raise PlanViewError(f"{folder / PRIVATE_KEY_FILE}: others may read the key; chmod 600 it")
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
        x509.load_pem_x509_certificates(ca)
        fits = load_pem_private_key(key, None).public_key() == certificate.public_key()
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, TypeError, IndexError, x509.ExtensionNotFound) as error:
        raise PlanViewError(f"{folder}: not a certificate, its CA and its key: {describe_error(error)}") from error
    if not fits:
        raise PlanViewError(f"{folder}: {PRIVATE_KEY_FILE} is not the key of {CERTIFICATE_FILE}")
    found = [identity for identity in map(parse_identity, uris) if identity is not None]
    if len(found) != 1:
        raise PlanViewError(
            f"{folder / CERTIFICATE_FILE}: states no identity of JellyBean; make one with `jellybean certs`"
        )
    lifetime_s = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).total_seconds()
    return Credentials(ca, chain, key, found[0], certificate.not_valid_after_utc.timestamp(), lifetime_s)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PlanViewError(f"{path}: {describe_error(error)}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise PlanViewError(f"{path}: above {_MAX_FILE_BYTES} bytes: that is no certificate")
    return data
