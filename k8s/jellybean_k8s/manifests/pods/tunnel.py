"""The container beside an agent that only dials out: its tunnel to the relay in the gateway's cluster."""

from __future__ import annotations

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import TUNNEL_HEALTH_PORT, TUNNEL_METRICS_PORT, DeployedPlan
from jellybean_k8s.manifests.pods import commands
from jellybean_k8s.manifests.pods.parts import container, container_resources, mounts, probes, worker_number_env
from jellybean_k8s.manifests.settings import MIB
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.objects import KubeObject

TUNNEL = "tunnel"
_CPU, _MEMORY_BYTES, _MOST_BYTES = 0.1, 96 * MIB, 256 * MIB


def tunnel_container(deployed: DeployedPlan, group: WorkerGroup, image: str) -> KubeObject:
    """A sidecar, which begins before the agent and ends after it (Kubernetes 1.29). A pod is ready once it is reached.

    An agent begins without the relay: it serves the workers beside it. So nothing waits for the tunnel's start.
    """
    relay = deployed.settings.relay
    if relay is None:
        raise DeployError("a tunnel without a relay: a fault of JellyBean")
    ports = {"tunnel-health": TUNNEL_HEALTH_PORT, "tunnel-metrics": TUNNEL_METRICS_PORT}
    needed = container_resources(_CPU, _MEMORY_BYTES, _MOST_BYTES)
    found = container(TUNNEL, image, commands.tunnel(deployed, group, relay.address), ports, needed)
    checks = probes(deployed.settings.start_s, loads=False, port=TUNNEL_HEALTH_PORT)
    return {
        **found,
        "restartPolicy": "Always",
        "env": worker_number_env(group),
        "volumeMounts": mounts(),
        **{name: checks[name] for name in ("readinessProbe", "livenessProbe")},
    }
