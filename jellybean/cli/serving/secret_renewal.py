"""`certs --renew`: new certificates for a deployment in Kubernetes, written into its Secrets."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.cli.kubernetes.options import connect_to
from jellybean.errors import InputError
from jellybean_agent import CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role, parse_identity

if TYPE_CHECKING:
    from jellybean.serving.enrolment.authority import Authority
    from jellybean_k8s import Cluster, DeployedCertificates

GATEWAY_FOLDER = "gateway"
_PROCESSES = (Role.AGENT, Role.GATEWAY, Role.RELAY)


@dataclass(frozen=True, slots=True)
class SecretRenewal:
    """A deployment, and the identities of its certificates by the path of their folder."""

    cluster: Cluster
    deployed: DeployedCertificates
    identities: dict[str, Identity]

    @classmethod
    def of(
        cls, app: str, workflow: str, kubeconfig: Path | None, context: str | None, namespace: str | None
    ) -> SecretRenewal:
        """Read the deployment's certificates. DeployError if there are none, InputError if they are of others."""
        from jellybean_k8s import read_deployed_certificates

        cluster = connect_to(kubeconfig, context, namespace)
        deployed = read_deployed_certificates(cluster, app)
        found = {}
        for uri in sorted(deployed.identities):
            identity = parse_identity(uri)
            if identity is None or identity.plan != workflow or identity.role not in _PROCESSES:
                raise InputError(f"{app} has a certificate of {uri}, which is no process of workflow {workflow}")
            own = GATEWAY_FOLDER if identity.role is Role.GATEWAY else f"{identity.role.value}/{identity.name}"
            found[own] = identity
        return cls(cluster, deployed, found)

    def may_sign(self, authority: Authority) -> bool:
        """True if pods accept what the authority signs. DeployError if they could not even learn to."""
        return self.deployed.trusts(authority.certificate, authority.bundle, datetime.datetime.now(datetime.UTC))

    def write(self, authority: Authority, folder: Path, *, signs: bool) -> tuple[str, ...]:
        """Write the certificates in `folder` (if `signs`) and the trusted authorities; returns the Secrets' names."""
        from jellybean_k8s import renew_certificates

        pairs = {identity.uri: _pair(folder / path) for path, identity in self.identities.items() if signs}
        return renew_certificates(self.cluster, self.deployed, authority.bundle, pairs)

    def outcome(self, secrets: tuple[str, ...], *, signs: bool) -> str:
        """What was written, and what to do next, as a sentence."""
        at = f"{len(secrets)} Secrets of {self.deployed.app} in {self.cluster.namespace}"
        if signs:
            return f"{at} have new certificates: their pods reload them within two minutes, without a restart"
        return (
            f"{at} trust the new authority from now on, and keep their certificates: run the same command again in two "
            "minutes, when all pods know it"
        )


def _pair(folder: Path) -> tuple[bytes, bytes]:
    return (folder / CERTIFICATE_FILE).read_bytes(), (folder / PRIVATE_KEY_FILE).read_bytes()
