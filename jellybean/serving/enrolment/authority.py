"""A certificate authority for development: a key and a certificate in a folder, which sign a workflow's certificates.

Keys are P-256 and readable by their owner only. Certificates live briefly instead of being revoked: without a renewal
they expire. A team's own authority signs the same names (docs/security.md).
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jellybean.serving.errors import ServingError
from jellybean_agent import (
    CA_FILE,
    CERTIFICATE_FILE,
    PRIVATE_KEY_FILE,
    Identity,
    describe_error,
    is_tls_name,
    write_private_file,
)
from jellybean_protos.addresses import plain_host

LIFE_S = 7 * 86400.0
_NEXT = "next.key"  # key of an authority that is trusted already but does not sign yet
_CA_LIFE_S = 365 * 86400.0
_SKEW_S = 300.0  # tolerance for clocks that are behind


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates. `bundle` (PEM): trusted authorities, the newest first; one of them signs."""

    key: Any
    certificate: Any
    bundle: bytes

    def sign(self, identity: Identity, public_key: Any, *, hosts: Iterable[str] = (), life_s: float = LIFE_S) -> bytes:
        """A certificate (PEM) for one identity; `hosts`: its DNS names and IP addresses, for other TLS clients."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), x509.DNSName(identity.tls_name)]
        names += [_general_name(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        found = (
            _builder(_name(str(identity)), self.certificate.subject, public_key, life_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        pem: bytes = found.public_bytes(serialization.Encoding.PEM)
        return pem

    def equip(self, folder: Path, identity: Identity, *, hosts: Iterable[str] = (), life_s: float = LIFE_S) -> None:
        """Write a new key and its certificate into a process's folder; a running process continues with them."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.sign(identity, key.public_key(), hosts=hosts, life_s=life_s)
        for name, data in (
            (CA_FILE, self.bundle),
            (PRIVATE_KEY_FILE, _private_pem(key)),
            (CERTIFICATE_FILE, certificate),
        ):
            write_private_file(folder / name, data)


def certificate_hosts(folder: Path) -> tuple[str, ...]:
    """The hosts (`Authority.sign`) of the certificate in a process's folder; none if there is no valid certificate."""
    with contextlib.suppress(OSError, ValueError, x509.ExtensionNotFound):
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE_FILE).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [name for name in names.get_values_for_type(x509.DNSName) if not is_tls_name(name)]
        return (*hosts, *map(str, names.get_values_for_type(x509.IPAddress)))
    return ()


def open_authority(folder: Path, *, renew: bool = False) -> Authority:
    """The authority in a folder, made where there is none. ServingError when it is damaged or expired.

    `renew`: add a new authority to the trusted ones while the old one still signs. Once all processes trust the new
    one it may sign, which it does from the next call without `renew`. The old one is trusted until it expires.
    """
    if not (folder / PRIVATE_KEY_FILE).exists():
        return _make(folder, signs=True)
    if renew:
        found = _read(folder)
        if _is_expired(found):
            return _make(folder, signs=True)
        return read_authority(folder) if _is_trusted(folder, _NEXT) else _make(folder, signs=False)
    if _is_trusted(folder, _NEXT):
        (folder / _NEXT).replace(folder / PRIVATE_KEY_FILE)
    return read_authority(folder)


def read_authority(folder: Path) -> Authority:
    """The authority that signs now; creates and promotes none. ServingError if it is missing, damaged or expired."""
    if not (folder / PRIVATE_KEY_FILE).exists():
        raise ServingError(f"{folder}: no certificate authority found; `jellybean certs` makes one")
    found = _read(folder)
    if _is_expired(found):
        raise ServingError(f"{folder}: the authority has expired; give `jellybean certs` --new-ca")
    return found


def _is_trusted(folder: Path, name: str) -> bool:
    """True if a key exists and its certificate is trusted; false for a leftover of an interrupted `_make`."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        key = serialization.load_pem_private_key((folder / name).read_bytes(), None).public_key()
        trusted = x509.load_pem_x509_certificates((folder / CA_FILE).read_bytes())
        return any(found.public_key() == key for found in trusted)
    return False


def _is_expired(authority: Authority) -> bool:
    return bool(authority.certificate.not_valid_after_utc <= _now())


def _read(folder: Path) -> Authority:
    try:
        bundle = (folder / CA_FILE).read_bytes()
        key = serialization.load_pem_private_key((folder / PRIVATE_KEY_FILE).read_bytes(), None)
        trusted = x509.load_pem_x509_certificates(bundle)
        certificate = next((found for found in trusted if found.public_key() == key.public_key()), None)
    except OSError as error:
        raise ServingError(f"{folder}: {describe_error(error, name=True)}") from error
    except (ValueError, TypeError) as error:
        raise ServingError(
            f"{folder}: no certificate authority: {describe_error(error)}; remove it, and a new one is made"
        ) from error
    if certificate is None:
        raise ServingError(
            f"{folder}: {PRIVATE_KEY_FILE} is not the key of {CA_FILE}; remove the folder, and a new one is made"
        )
    return Authority(key, certificate, bundle)


def _make(folder: Path, *, signs: bool) -> Authority:
    """Create a trusted authority. `signs`: it signs at once (set in the last step, so that a crash is harmless)."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    before: Sequence[x509.Certificate] = ()
    if (folder / CA_FILE).exists():
        before = x509.load_pem_x509_certificates((folder / CA_FILE).read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"JellyBean development CA {_now():%Y-%m-%d %H:%M:%S}")
    certificate = (
        _builder(name, name, key.public_key(), _CA_LIFE_S)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    kept = [certificate, *(old for old in before if old.not_valid_after_utc > _now())]
    bundle = b"".join(item.public_bytes(serialization.Encoding.PEM) for item in kept)
    write_private_file(folder / _NEXT, _private_pem(key))
    write_private_file(folder / CA_FILE, bundle)
    if signs:
        (folder / _NEXT).replace(folder / PRIVATE_KEY_FILE)
    return _read(folder)


def _builder(subject: x509.Name, issuer: x509.Name, public_key: Any, life_s: float) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(seconds=_SKEW_S))
        .not_valid_after(now + datetime.timedelta(seconds=life_s))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **others,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(plain_host(host).partition("%")[0]))  # no zone: it is of one machine
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ServingError(f"host {host!r}: neither an IP address nor a DNS name") from error


def _private_pem(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, *form)
    return pem


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
