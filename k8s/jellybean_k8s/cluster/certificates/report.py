"""The certificates of the pods that serve: which end first, are late, have expired, and which could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from jellybean_k8s.cluster.certificates.expiry import (
    SecretCertificate,
    certificate_of_pod,
    certificates_in,
    mounted_certificates,
)
from jellybean_k8s.objects import KubeObjectView

_MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """Certificates at a time, those that end first at the front.

    `damaged`: what is no certificate. `unread`: Secrets that this user may not read. `is_operated`: the deployment
    is of a custom resource.
    """

    at_unix_s: float
    certificates: tuple[SecretCertificate, ...] = ()
    damaged: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    is_operated: bool = False

    @property
    def expired(self) -> tuple[SecretCertificate, ...]:
        """Those that processes refuse in every new connection."""
        return tuple(item for item in self.certificates if item.has_expired(self.at_unix_s))

    @property
    def late(self) -> tuple[SecretCertificate, ...]:
        """Those that have not expired, with less than a third of their lifetime left."""
        late = (item for item in self.certificates if item.is_late(self.at_unix_s))
        return tuple(item for item in late if not item.has_expired(self.at_unix_s))

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each certificate that pods cannot use, but for most of many that have expired."""
        return (*self._lines(self.expired, "have expired"), *self.damaged)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not wrong yet: certificates that are late, Secrets that were not read, else which ends first."""
        found = list(self._lines(self.late, "have less than a third of their lifetime left"))
        if self.unread:
            names = ", ".join(self.unread[:_MOST_LINES])
            more = f" and {len(self.unread) - _MOST_LINES} more" if len(self.unread) > _MOST_LINES else ""
            found.append(f"certificates were not checked: this user may not get the Secrets {names}{more}")
        if self.certificates and not self.late and not self.expired:
            found.append(f"{self.certificates[0].words(self.at_unix_s)}, before all others")
        return tuple(found)

    def pod_reasons(self, pods: Iterable[KubeObjectView]) -> dict[str, str]:
        """Pod -> that its certificate has expired, for the pods whose has."""
        expired = {(item.secret, item.key): item for item in self.expired}
        mounted = ((pod["metadata"]["name"], certificate_of_pod(pod)) for pod in pods)
        return {name: expired[key].words(self.at_unix_s) for name, key in mounted if key is not None and key in expired}

    def _advice(self, item: SecretCertificate) -> str:
        if self.is_operated:
            return "the operator renews what it has issued (its log says why not), you what you have given"
        return f"`{item.renewal}` renews it"

    def _lines(self, items: tuple[SecretCertificate, ...], have: str) -> Iterator[str]:
        for item in items[:_MOST_LINES]:
            share = "" if item.has_expired(self.at_unix_s) else ", less than a third of its lifetime"
            yield f"{item.words(self.at_unix_s)}{share}: {self._advice(item)}"
        if len(items) > _MOST_LINES:
            yield f"{len(items) - _MOST_LINES} more certificates {have}"


def report_certificates(
    objects: Iterable[KubeObjectView],
    secrets: Mapping[str, KubeObjectView],
    at_unix_s: float,
    unread: Iterable[str] = (),
    *,
    is_operated: bool = False,
) -> CertificateReport:
    """The certificates that pods of rendered objects mount from these Secrets; a Secret that is missing is left out."""
    found: list[SecretCertificate] = []
    damaged: list[str] = []
    mounted = mounted_certificates(objects)
    for name, keys in sorted(mounted.items()):
        if name in secrets:
            own, none = certificates_in(secrets[name], keys)
            found += own
            damaged += none
    found.sort(key=lambda item: (item.expires_unix_s, item.secret, item.key))
    unread = tuple(sorted(set(unread) & set(mounted)))
    return CertificateReport(at_unix_s, tuple(found), tuple(damaged), unread, is_operated)
