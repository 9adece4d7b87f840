"""Renders the certificates that `jellybean certs` wrote as the Secrets that pods mount."""

from __future__ import annotations

import base64
from pathlib import Path

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.labels import plan_independent_labels
from jellybean_k8s.manifests.pods.commands import relay_secret, tls_secret
from jellybean_k8s.objects import KubeObject, kube_object


def certificate_secrets(deployed: DeployedPlan, folder: Path) -> tuple[KubeObject, ...]:
    """One Secret for gateway and relay, one per pool and site. DeployError if a worker has no certificate."""
    data: dict[str, dict[str, str]] = {}
    gateway = folder / "gateway"
    folders = {tls_secret(deployed, None): gateway} if deployed.has_gateway else {}
    folders |= {relay_secret(deployed.app): folder / "relay" / "relay"} if deployed.has_relay else {}
    for secret, own_folder in folders.items():
        data[secret] = {name: _read(own_folder / name) for name in ("tls.crt", "tls.key", "ca.crt")}
    for group in deployed.groups:
        own = data.setdefault(tls_secret(deployed, group), {"ca.crt": _read(gateway / "ca.crt")})
        for number, worker in enumerate(group.workers, group.first or 0):
            for part in ("crt", "key"):
                own[f"{number}.{part}"] = _read(folder / "agent" / worker / f"tls.{part}")
    return tuple(_secret(deployed, name, dict(sorted(found.items()))) for name, found in data.items())


def _secret(deployed: DeployedPlan, name: str, data: dict[str, str]) -> KubeObject:
    own = plan_independent_labels(deployed, "certificates")
    return kube_object("v1", "Secret", name, own, type="Opaque", data=data)


def _read(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise DeployError(
            f"{path}: {error.strerror}: make certificates for this plan with `jellybean certs`"
        ) from error
