"""A plan as deployed: object names, worker addresses, and the files that its pods mount."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.clusters import cluster_of
from jellybean_k8s.manifests.devices import provider_of
from jellybean_k8s.manifests.relay_names import relay_name
from jellybean_k8s.manifests.settings import OWN_STEPS, DeploymentSettings
from jellybean_k8s.manifests.worker_groups import WorkerGroup, worker_groups
from jellybean_k8s.names import MAX_SET_NAME_LENGTH, dns_name
from jellybean_solver import Deliver, Plan, to_document

AGENT_PORT = 7001
CLIENT_PORT = 8001
METRICS_PORT = 9090
RELAY_PORT = 7443
TUNNEL_HEALTH_PORT, TUNNEL_METRICS_PORT = 7003, 9091  # beside the agent's, in one pod
REMOTE_PORT = 20_000  # first local port of relay and tunnels for a process in another cluster, one each
MAX_REMOTE = 12_000  # of them; beyond are the ports that the kernel gives to outgoing connections
HEALTH_PORT = 7002  # plaintext, as the kubelet's probes have no TLS; serves nothing but health checks
LIVENESS_SERVICE = "live"  # the health service that is up as long as the process answers
MAX_CONFIG_BYTES = 1_000_000  # limit of a ConfigMap: the API server takes 1 MiB of data
ID_DIGITS = 8
_MAX_APP_LENGTH = 24
_GATEWAY = ""  # key of the gateway in the agents' address book


@dataclass(frozen=True)
class DeployedPlan:
    """A plan with its settings, and all names by which its objects refer to each other; `deployed_plan` makes it.

    `id`: short hash in object names. `service_monitor`: metrics are found by a ServiceMonitor, not by annotations; in
    several clusters beside them, as pods are the same in all, whatever each of them knows.
    `cluster`: the one of several clusters that this is a view of; only its groups, addresses and files differ.
    """

    plan: Plan
    settings: DeploymentSettings
    id: str
    service_monitor: bool = False
    cluster: str | None = None

    def in_cluster(self, name: str, *, service_monitor: bool = False) -> DeployedPlan:
        """What of this plan runs in one of its clusters. `service_monitor`: beside the annotations, where it can be."""
        return dataclasses.replace(self, cluster=name, service_monitor=service_monitor)

    @cached_property
    def clusters(self) -> tuple[str, ...]:
        """Names of its clusters, the gateway's first; none if it is deployed to one."""
        first = self._gateway_cluster
        return () if first is None else (first, *(name for name in self.settings.clusters if name != first))

    @cached_property
    def _gateway_cluster(self) -> str | None:
        return cluster_of(self.settings.clusters, self.gateway_tier) if self.settings.clusters else None

    @cached_property
    def has_gateway(self) -> bool:
        """True if the gateway runs here."""
        return self.cluster is None or self.cluster == self._gateway_cluster

    @cached_property
    def has_relay(self) -> bool:
        """True if a relay runs here, as workers run in other clusters than the gateway."""
        return self.cluster is not None and self.has_gateway and bool(self.remote_peers)

    @cached_property
    def has_tunnels(self) -> bool:
        """True if agents here reach others through tunnels."""
        return not self.has_gateway

    @cached_property
    def app(self) -> str:
        """Name of the deployment, shared by all its plans."""
        return app_name(self.settings, self.plan.name)

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The plan as served: links and devices are real, so nothing is emulated, and a pod's GPU is its number 0."""
        links = tuple(dataclasses.replace(link, bandwidth_bytes_per_s=None, latency_s=0.0) for link in self.plan.links)
        workers = tuple(
            dataclasses.replace(worker, speed=1.0, device=provider_of(worker.device)) for worker in self.plan.workers
        )
        return to_document(dataclasses.replace(self.plan, links=links, workers=workers))

    @cached_property
    def prefix(self) -> str:
        """Prefix of the names of all objects of this plan."""
        return f"{self.app}-{self.id}"

    @cached_property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """Groups of workers that become StatefulSets here. DeployError if an operator has no model file."""
        if self.cluster is None:
            return self.all_groups
        return tuple(group for group in self.all_groups if self._cluster_of(group) == self.cluster)

    def _cluster_of(self, group: WorkerGroup) -> str:
        return cluster_of(self.settings.clusters, group.tier, group.site)

    @cached_property
    def all_groups(self) -> tuple[WorkerGroup, ...]:
        """The groups of all clusters."""
        missing = [f"{o.name}/{o.variant}" for o in self.plan.variants if o.model is None]
        if missing:
            raise DeployError(
                f"{self.plan.name} can be planned and simulated, not served: no model file for {', '.join(missing)}; "
                "give these variants `model:` and `sha256:`, or `python:`, in workflow.yaml"
            )
        self._require_allowed()
        return worker_groups(self.plan)

    def _require_allowed(self) -> None:
        for operator in self.plan.variants:
            python = operator.model.python if operator.model is not None else None
            if python is None or python.function.partition(":")[0] == OWN_STEPS:
                continue
            if python.function not in self.settings.allow_python:
                raise DeployError(
                    f"{operator.name}/{operator.variant}: python {python.function} is not allowed in the agents' pods: "
                    f"if it may run there, write allow_python: [{python.function}] into kubernetes.yaml, and name an "
                    "agent image that has it"
                )

    def set_name(self, group: WorkerGroup) -> str:
        """Name of the group's StatefulSet."""
        return self._set_names[group.pool, group.prefix, group.first]

    @cached_property
    def _set_names(self) -> dict[tuple[str, str, int | None], str]:
        most = MAX_SET_NAME_LENGTH - len(self.prefix) - 1
        rows = Counter((group.pool, group.site) for group in self.all_groups)
        found = {}
        for group in self.all_groups:
            row = f".{group.first}" if rows[group.pool, group.site] > 1 else ""
            own = f"{group.pool}{f'.{group.site}' if group.site else ''}{row}"
            own = f"{group.prefix}.one" if group.first is None else own
            found[group.pool, group.prefix, group.first] = f"{self.prefix}-{dns_name(own, most)}"
        return found

    @cached_property
    def gateway(self) -> str:
        """Name of the gateway's Deployment, and of the Service by which agents reach it."""
        return f"{self.prefix}-gateway"

    @cached_property
    def spools(self) -> bool:
        """True if requests of some source are kept on disk until they are answered."""
        return any(source.deliver is Deliver.EVENTUALLY for source in self.plan.sources)

    @cached_property
    def agents(self) -> str:
        """Name of the headless Service that gives every agent an address."""
        return f"{self.prefix}-agents"

    @cached_property
    def gateway_tier(self) -> str:
        """Tier of the gateway: the first source's; with several sites the last tier, as all sites share it."""
        if self.settings.gateway_tier is not None:
            return self.settings.gateway_tier
        return self.plan.tiers[-1] if self.plan.sites else self.plan.sources[0].tier

    @cached_property
    def edge_tiers(self) -> tuple[str, ...]:
        """Tiers whose nodes may be unreachable for long."""
        return self.plan.tiers[:1] if self.settings.edge_tiers is None else self.settings.edge_tiers

    @cached_property
    def relay(self) -> str:
        """Name of the relay's Deployment, and of the Service by which gateway and agents beside it reach it."""
        return relay_name(self.prefix)

    @cached_property
    def relay_front(self) -> str:
        """Name of the Service by which other clusters reach the relays of all plans of this deployment."""
        return relay_name(self.app)

    @cached_property
    def local_addresses(self) -> dict[str, str]:
        """Worker -> address, of those that run here; the gateway's is empty. Resolvable in the namespace."""
        found = {_GATEWAY: f"{self.gateway}:{AGENT_PORT}"} if self.has_gateway else {}
        for group in self.groups:
            start = group.first or 0
            for number, worker in enumerate(group.workers, start):
                found[worker] = f"{self.set_name(group)}-{number}.{self.agents}:{AGENT_PORT}"
        return found

    @cached_property
    def remote_peers(self) -> dict[int, str]:
        """Local port -> worker of another cluster, of the relay, or of each tunnel; the gateway's name is empty.

        Workers of different sites never exchange messages; those of no site do with all. DeployError if there
        are too many.
        """
        here = {group.site for group in self.groups}
        names = [] if self.has_gateway else [_GATEWAY]
        for group in self.all_groups:
            is_peer = self.has_gateway or None in here or group.site is None or group.site in here
            if self.cluster is not None and is_peer and self._cluster_of(group) != self.cluster:
                names += group.workers
        if len(names) > MAX_REMOTE:
            raise DeployError(
                f"cluster {self.cluster}: {len(names):,} workers run in other clusters, a relay has ports for "
                f"{MAX_REMOTE:,}: deploy fewer sites at once (--set sites.TIER=N)"
            )
        return dict(enumerate(names, REMOTE_PORT))

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Worker -> address at which processes here reach it, directly or through relay or tunnel."""
        host = self.relay if self.has_gateway else "127.0.0.1"
        return self.local_addresses | {name: f"{host}:{port}" for port, name in self.remote_peers.items()}

    @cached_property
    def files(self) -> dict[str, str]:
        """Files of the ConfigMap that all pods mount. DeployError if they exceed its limit."""
        found = {
            "plan.json": json.dumps(self.document, separators=(",", ":"), sort_keys=True),
            "peers.json": json.dumps(self.addresses, separators=(",", ":")),
            "prepare.py": _script("prepare.py"),
        }
        if self.has_relay:
            found["workers.json"] = json.dumps(self.remote_peers, separators=(",", ":"))
            found["targets.json"] = json.dumps(self.local_addresses, separators=(",", ":"))
        elif self.has_tunnels:
            found["tunnel.json"] = json.dumps(self.remote_peers, separators=(",", ":"))
        size = sum(len(name) + len(text.encode()) for name, text in found.items())
        if size > MAX_CONFIG_BYTES:
            raise DeployError(
                f"plan and addresses of {len(self.addresses) - 1:,} workers take {size:,} bytes, a ConfigMap holds "
                f"{MAX_CONFIG_BYTES:,}: deploy fewer sites at once (--set sites.TIER=N)"
            )
        return found

    @cached_property
    def config(self) -> str:
        """Name of that ConfigMap, with the hash of its content, so that a pod never reads files of another version."""
        return f"{self.prefix}-files-{json_sha256(self.files)[:ID_DIGITS]}"


def app_name(settings: DeploymentSettings, workflow: str) -> str:
    """Name of the deployment of a workflow."""
    return deployment_name(settings.name or workflow)


def deployment_name(name: str) -> str:
    """The Kubernetes name of a deployment from its name in documents."""
    return dns_name(name, _MAX_APP_LENGTH)


def json_sha256(value: Any) -> str:
    """sha256 (hex) of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _script(name: str) -> str:
    return (resources.files("jellybean_k8s") / name).read_text(encoding="utf-8")
