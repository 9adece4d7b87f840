"""`certs --renew`: new certificates for a deployment in Kubernetes, written into its Secrets."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.errors import InputError
from jellybean_agent import CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role, parse_identity

if TYPE_CHECKING:
    from jellybean.serving.enrolment.authority import Authority
    from jellybean_k8s import Cluster, DeployedCertificates

GATEWAY_FOLDER = "gateway"
_PROCESSES = (Role.AGENT, Role.GATEWAY, Role.RELAY)


@dataclass(frozen=True, slots=True)
class SecretRenewal:
    """A deployment, in one cluster or several, and the identities of its certificates by the path of their folder."""

    deployed: tuple[tuple[Cluster, DeployedCertificates], ...]
    identities: dict[str, Identity]

    @classmethod
    def of(cls, app: str, workflow: str, clusters: Iterable[Cluster]) -> SecretRenewal:
        """Read the deployment's certificates. DeployError if there are none, InputError if they are of others."""
        from jellybean_k8s import read_deployed_certificates

        deployed = tuple((cluster, read_deployed_certificates(cluster, app)) for cluster in clusters)
        found = {}
        for uri in sorted({uri for _, own in deployed for uri in own.identities}):
            identity = parse_identity(uri)
            if identity is None or identity.plan != workflow or identity.role not in _PROCESSES:
                raise InputError(f"{app} has a certificate of {uri}, which is no process of workflow {workflow}")
            path = GATEWAY_FOLDER if identity.role is Role.GATEWAY else f"{identity.role.value}/{identity.name}"
            found[path] = identity
        return cls(deployed, found)

    @property
    def namespace(self) -> str:
        """The namespace of the gateway, whose cluster is the first."""
        return self.deployed[0][0].namespace

    def may_sign(self, authority: Authority) -> bool:
        """True if all pods accept what the authority signs. DeployError if some could not even learn to."""
        now = datetime.datetime.now(datetime.UTC)
        accepted = [own.trusts(authority.certificate, authority.bundle, now) for _, own in self.deployed]
        return all(accepted)

    def write(self, authority: Authority, folder: Path, *, signs: bool) -> tuple[str, ...]:
        """Write the certificates in `folder` (if `signs`) and the trusted authorities; returns the Secrets' names."""
        from jellybean_k8s import renew_certificates

        pairs = {identity.uri: _pair(folder / path) for path, identity in self.identities.items() if signs}
        written = (renew_certificates(cluster, own, authority.bundle, pairs) for cluster, own in self.deployed)
        return tuple(name for names in written for name in names)

    def outcome(self, secrets: tuple[str, ...], *, signs: bool) -> str:
        """What was written, and what to do next, as a sentence."""
        where = self.namespace if len(self.deployed) == 1 else f"{len(self.deployed)} clusters"
        at = f"{len(secrets)} Secrets of {self.deployed[0][1].app} in {where}"
        if signs:
            return f"{at} have new certificates: their pods reload them within two minutes, without a restart"
        return (
            f"{at} trust the new authority from now on, and keep their certificates: run the same command again in two "
            "minutes, when all pods know it"
        )


def _pair(folder: Path) -> tuple[bytes, bytes]:
    return (folder / CERTIFICATE_FILE).read_bytes(), (folder / PRIVATE_KEY_FILE).read_bytes()
