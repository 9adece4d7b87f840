"""`certs --renew`: new certificates for a deployment in Kubernetes, written into its Secrets."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.errors import InputError
from jellybean_agent import CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role, parse_identity
from jellybean_k8s import DeployError, NoCertificatesError, NotDeployedError

if TYPE_CHECKING:
    from jellybean.serving.enrolment.authority import Authority
    from jellybean_k8s import Cluster, DeployedCertificates

GATEWAY_FOLDER = "gateway"
_NOTHING_THERE = (NotDeployedError, NoCertificatesError)  # of one of several clusters: it has nothing to renew
_PROCESSES = (Role.AGENT, Role.GATEWAY, Role.RELAY)


@dataclass(frozen=True, slots=True)
class SecretRenewal:
    """A deployment, in one cluster or several, and the identities of its certificates by the path of their folder.

    `missed`: why clusters were not renewed. One that is away does not keep the others from being renewed.
    """

    clusters: dict[str, tuple[Cluster, DeployedCertificates]]
    identities: dict[str, Identity]
    missed: dict[str, str]
    namespace: str  # of the gateway

    @classmethod
    def of(cls, app: str, workflow: str, clusters: Mapping[str, Cluster]) -> SecretRenewal:
        """Read the deployment's certificates. DeployError if there are none, InputError if they are of others."""
        with ThreadPoolExecutor(len(clusters), thread_name_prefix="cluster") as pool:
            read = dict(zip(clusters, pool.map(partial(_read, app), clusters.values()), strict=True))
        missed = {name: one for name, one in read.items() if isinstance(one, DeployError)}
        known = {name: (clusters[name], one) for name, one in read.items() if not isinstance(one, DeployError)}
        if not known:
            raise next(iter(missed.values()))
        found = {}
        for uri in sorted({uri for _, certificates in known.values() for uri in certificates.identities}):
            identity = parse_identity(uri)
            if identity is None or identity.plan != workflow or identity.role not in _PROCESSES:
                raise InputError(f"{app} has a certificate of {uri}, which is no process of workflow {workflow}")
            path = GATEWAY_FOLDER if identity.role is Role.GATEWAY else f"{identity.role.value}/{identity.name}"
            found[path] = identity
        away = {name: str(error) for name, error in missed.items() if not isinstance(error, _NOTHING_THERE)}
        return cls(known, found, away, next(iter(clusters.values())).namespace)

    def may_sign(self, authority: Authority) -> bool:
        """True if all pods accept what the authority signs. DeployError if some could not even learn to.

        Of pods in clusters that were missed that is known only while no authority is being replaced.
        """
        now = datetime.datetime.now(datetime.UTC)
        known = [certificates for _, certificates in self.clusters.values()]
        accepted = [one.trusts(authority.certificate, authority.bundle, now) for one in known]
        return all(accepted) and (not self.missed or all(one.is_settled(now) for one in known))

    def write(self, authority: Authority, folder: Path, *, signs: bool) -> tuple[str, ...]:
        """Write the certificates in `folder` (if `signs`) and the trusted authorities; returns the Secrets' names."""
        from jellybean_k8s import renew_certificates

        pairs = {identity.uri: _pair(folder / path) for path, identity in self.identities.items() if signs}
        written: list[str] = []
        for name, (cluster, certificates) in self.clusters.items():
            try:
                written += renew_certificates(cluster, certificates, authority.bundle, pairs)
            except DeployError as error:
                if not name:
                    raise
                self.missed[name] = str(error)
        return tuple(written)

    def outcome(self, app: str, secrets: tuple[str, ...], *, signs: bool) -> str:
        """What was written, and what to do next, as a sentence."""
        count = len(self.clusters.keys() - self.missed.keys())
        where = self.namespace if "" in self.clusters else f"{count} cluster{'s' if count != 1 else ''}"
        at = f"{len(secrets)} Secrets of {app} in {where}"
        if signs:
            return f"{at} have new certificates: their pods reload them within two minutes, without a restart"
        waiting = "when all clusters answer" if self.missed else "in two minutes, when all pods know it"
        return (
            f"{at} trust the new authority from now on, and keep their certificates: run the same command again "
            f"{waiting}"
        )


def _read(app: str, cluster: Cluster) -> DeployedCertificates | DeployError:
    """The certificates in a cluster, or why they cannot be read."""
    from jellybean_k8s import read_deployed_certificates

    try:
        return read_deployed_certificates(cluster, app)
    except DeployError as error:
        return error


def _pair(folder: Path) -> tuple[bytes, bytes]:
    return (folder / CERTIFICATE_FILE).read_bytes(), (folder / PRIVATE_KEY_FILE).read_bytes()
