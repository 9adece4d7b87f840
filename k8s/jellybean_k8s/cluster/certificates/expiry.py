"""When the certificates that pods mount end, from the Secrets that have them. Pure."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from jellybean_k8s.objects import KubeObjectView

SHARE_LEFT = 1 / 3  # share of the lifetime left below which a certificate is late: the operator renews its own then
CA_KEY = "ca.crt"
_TLS_VOLUME = "tls"  # of every pod of a plan
_SUFFIX = ".crt"
_AUTHORITY = "the authority"


class DamagedCertificateError(ValueError):
    """A key of a Secret is no certificate."""


@dataclass(frozen=True, slots=True)
class SecretCertificate:
    """A certificate in a Secret, or its authorities' (`ca.crt`), which end with the last of them.

    `identity`: the URI that it states. `hosts`: its DNS names.
    """

    secret: str
    key: str
    identity: str
    began_unix_s: float
    expires_unix_s: float
    hosts: tuple[str, ...] = ()

    def has_expired(self, now_unix_s: float) -> bool:
        """True from its end on: processes refuse it in every new connection."""
        return self.expires_unix_s <= now_unix_s

    def is_late(self, now_unix_s: float) -> bool:
        """True if less than a third of its lifetime is left, or it has expired."""
        return self.expires_unix_s - now_unix_s < SHARE_LEFT * (self.expires_unix_s - self.began_unix_s)

    def words(self, now_unix_s: float) -> str:
        """Whose it is, where, and when it ends, as a sentence."""
        whose = f"the certificate of {self.identity} (Secret {self.secret}, {self.key})"
        when = f"{datetime.datetime.fromtimestamp(self.expires_unix_s, datetime.UTC):%Y-%m-%d %H:%M} UTC"
        left_s = self.expires_unix_s - now_unix_s
        if left_s <= 0.0:
            return f"{whose} expired on {when}, {_span(-left_s)} ago"
        return f"{whose} ends on {when}, in {_span(left_s)}"

    @property
    def renewal(self) -> str:
        """The command that renews it in the cluster."""
        return f"jellybean certs DIR --renew{' --new-ca' if self.key == CA_KEY else ''}"


def mounted_certificates(objects: Iterable[KubeObjectView]) -> dict[str, frozenset[str]]:
    """Secret -> keys of the certificates that the pods of rendered objects read from it."""
    items = list(objects)
    most = {
        item["spec"]["scaleTargetRef"]["name"]: item["spec"]["maxReplicas"]
        for item in items
        if item["kind"] == "HorizontalPodAutoscaler"
    }
    found: dict[str, frozenset[str]] = {}
    for item in items:
        secret = _tls_secret(item)
        if secret is None:
            continue
        keys = {"tls.crt"}
        if item["kind"] == "StatefulSet":
            first = item["spec"].get("ordinals", {}).get("start", 0)
            count = most.get(item["metadata"]["name"], item["spec"].get("replicas", 1))
            keys = {f"{number}{_SUFFIX}" for number in range(first, first + count)}
        found[secret] = found.get(secret, frozenset()) | keys | {CA_KEY}
    return found


def certificate_of_pod(pod: KubeObjectView) -> tuple[str, str] | None:
    """Secret and key of a pod's certificate; None if it mounts none. Pods of a set end with their worker's number."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    secret = next((v["secret"]["secretName"] for v in volumes if v["name"] == _TLS_VOLUME and "secret" in v), None)
    owners = pod["metadata"].get("ownerReferences") or ()
    if secret is None or not owners:
        return None
    number = pod["metadata"]["name"].rpartition("-")[2]
    return secret, f"{number if owners[0]['kind'] == 'StatefulSet' else 'tls'}{_SUFFIX}"


def certificates_in(
    secret: KubeObjectView, keys: Iterable[str] | None = None
) -> tuple[list[SecretCertificate], list[str]]:
    """The certificates of a Secret, and a message for each key that is none. `keys`: default all `*.crt`.

    A key that is missing is left out.
    """
    data, name = secret.get("data") or {}, secret["metadata"]["name"]
    found, damaged = [], []
    for key in sorted(data if keys is None else set(keys) & set(data)):
        if not key.endswith(_SUFFIX):
            continue
        try:
            found.append(_certificate(name, key, data[key]))
        except DamagedCertificateError as error:
            damaged.append(str(error))
    return found, damaged


def _certificate(secret: str, key: str, text: str) -> SecretCertificate:
    try:
        chain = x509.load_pem_x509_certificates(base64.b64decode(text))
    except (ValueError, binascii.Error) as error:
        raise DamagedCertificateError(f"Secret {secret}: {key} is no certificate (PEM)") from error
    own = max(chain, key=lambda item: item.not_valid_after_utc) if key == CA_KEY else chain[0]
    uris, hosts = _names(own)
    identity = _AUTHORITY if key == CA_KEY else next(iter(uris), own.subject.rfc4514_string() or "nobody")
    times = own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()
    return SecretCertificate(secret, key, identity, *times, hosts)


def _names(certificate: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """URIs and DNS names of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return (), ()
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return tuple(uris), tuple(names.get_values_for_type(x509.DNSName))


def _tls_secret(item: KubeObjectView) -> str | None:
    spec: Mapping[str, Any] = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
    volumes = spec.get("volumes") or ()
    return next((v["secret"]["secretName"] for v in volumes if v["name"] == _TLS_VOLUME and "secret" in v), None)


def _span(seconds: float) -> str:
    """A length of time in its two largest units of days, hours and minutes."""
    minutes = int(seconds // 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
