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
from jellybean_k8s.manifests.devices import provider_of
from jellybean_k8s.manifests.settings import OWN_STEPS, DeploymentSettings
from jellybean_k8s.manifests.worker_groups import WorkerGroup, worker_groups
from jellybean_k8s.names import MAX_SET_NAME_LENGTH, dns_name
from jellybean_solver import Deliver, Plan, to_document

AGENT_PORT = 7001
CLIENT_PORT = 8001
METRICS_PORT = 9090
HEALTH_PORT = 7002  # plaintext, as the kubelet's probes have no TLS; serves nothing but health checks
LIVENESS_SERVICE = "live"  # the health service that is up as long as the process answers
MAX_CONFIG_BYTES = 1_000_000  # limit of a ConfigMap: the API server takes 1 MiB of data
ID_DIGITS = 8
_MAX_APP_LENGTH = 24
_GATEWAY = ""  # key of the gateway in the agents' address book


@dataclass(frozen=True)
class DeployedPlan:
    """A plan with its settings, and all names by which its objects refer to each other; `deployed_plan` makes it.

    `id`: short hash in object names. `service_monitor`: metrics are found by a ServiceMonitor, not by annotations.
    """

    plan: Plan
    settings: DeploymentSettings
    id: str
    service_monitor: bool = False

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
        """Groups of workers that become StatefulSets. DeployError if an operator has no model file."""
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
        rows = Counter((group.pool, group.site) for group in self.groups)
        found = {}
        for group in self.groups:
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
    def addresses(self) -> dict[str, str]:
        """Worker -> address, resolvable in the namespace."""
        found = {_GATEWAY: f"{self.gateway}:{AGENT_PORT}"}
        for group in self.groups:
            start = group.first or 0
            for number, worker in enumerate(group.workers, start):
                found[worker] = f"{self.set_name(group)}-{number}.{self.agents}:{AGENT_PORT}"
        return found

    @cached_property
    def files(self) -> dict[str, str]:
        """Files of the ConfigMap that all pods mount. DeployError if they exceed its limit."""
        found = {
            "plan.json": json.dumps(self.document, separators=(",", ":"), sort_keys=True),
            "peers.json": json.dumps(self.addresses, separators=(",", ":")),
            "prepare.py": _script("prepare.py"),
        }
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
