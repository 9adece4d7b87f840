"""What the pods of a deployment read: the plan as it is served, addresses, and the script that brings models."""

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
from jellybean_k8s.manifests.settings import OWN_STEPS, Settings
from jellybean_k8s.manifests.workers import Group, groups
from jellybean_k8s.names import MOST_SET_NAME, dns_name
from jellybean_solver import Deliver, Plan, to_document

AGENT_PORT = 7001
CLIENT_PORT = 8001
METRICS_PORT = 9090
HEALTH_PORT = 7002  # plaintext, as the kubelet's probes know no TLS; says nothing but whether requests are taken
LIVE = "live"  # the service there that is up as long as the process answers
MOST_CONFIG_BYTES = 1_000_000  # of a ConfigMap: etcd takes 1.5 MiB, the API server 1 MiB of data
_ID_DIGITS = 8
_MOST_APP = 24
_GATEWAY = ""  # its name in the agents' address book


@dataclass(frozen=True)
class Deployed:
    """A plan with its settings, and every name that its objects refer to each other by."""

    plan: Plan
    settings: Settings

    @cached_property
    def app(self) -> str:
        """Name of the deployment: what stays from plan to plan."""
        return app_name(self.settings, self.plan.name)

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The plan as it is served: links and devices are real here, so nothing is emulated."""
        links = tuple(dataclasses.replace(link, bandwidth_bytes_per_s=None, latency_s=0.0) for link in self.plan.links)
        workers = tuple(dataclasses.replace(worker, speed=1.0) for worker in self.plan.workers)
        return to_document(dataclasses.replace(self.plan, links=links, workers=workers))

    @cached_property
    def id(self) -> str:
        """Names the plan in objects' names: two plans of one workflow stand side by side while one takes over."""
        return str(self.document["hash"])[:_ID_DIGITS]

    @cached_property
    def prefix(self) -> str:
        """Of the names of all objects of this plan."""
        return f"{self.app}-{self.id}"

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Workers as pods. DeployError when the plan has operators without a model file."""
        missing = [f"{o.name}/{o.variant}" for o in self.plan.operators if o.model is None]
        if missing:
            raise DeployError(
                f"{self.plan.name} can be planned and simulated, not served: no model file for {', '.join(missing)}; "
                "give these variants `model:` and `sha256:`, or `python:`, in workflow.yaml"
            )
        self._require_allowed()
        return groups(self.plan)

    def _require_allowed(self) -> None:
        for operator in self.plan.operators:
            python = operator.model.python if operator.model is not None else None
            if python is None or python.function.partition(":")[0] == OWN_STEPS:
                continue
            if python.function not in self.settings.allow_python:
                raise DeployError(
                    f"{operator.name}/{operator.variant}: python {python.function} is not allowed in the agents' pods: "
                    f"if it may run there, write allow_python: [{python.function}] into kubernetes.yaml, and name an "
                    "agent image that has it"
                )

    def set_name(self, group: Group) -> str:
        """Of the group's StatefulSet."""
        return self._set_names[group.pool, group.prefix, group.first]

    @cached_property
    def _set_names(self) -> dict[tuple[str, str, int | None], str]:
        most = MOST_SET_NAME - len(self.prefix) - 1
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
        """Of the gateway's Deployment, and of the Service by which agents reach it."""
        return f"{self.prefix}-gateway"

    @cached_property
    def spools(self) -> bool:
        """Whether requests of some source are kept on disk until they are answered."""
        return any(source.deliver is Deliver.EVENTUALLY for source in self.plan.sources)

    @cached_property
    def agents(self) -> str:
        """Of the headless Service that gives every agent its address."""
        return f"{self.prefix}-agents"

    @cached_property
    def gateway_tier(self) -> str:
        """Where the data comes from; with several sites the last tier, as all of them share one gateway."""
        if self.settings.gateway_tier is not None:
            return self.settings.gateway_tier
        return self.plan.tiers[-1] if self.plan.sites else self.plan.sources[0].tier

    @cached_property
    def edge_tiers(self) -> tuple[str, ...]:
        """Whose nodes may be out of reach for long."""
        return self.plan.tiers[:1] if self.settings.edge_tiers is None else self.settings.edge_tiers

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Worker -> address, found by any pod of the namespace."""
        found = {_GATEWAY: f"{self.gateway}:{AGENT_PORT}"}
        for group in self.groups:
            start = group.first or 0
            for number, worker in enumerate(group.workers, start):
                found[worker] = f"{self.set_name(group)}-{number}.{self.agents}:{AGENT_PORT}"
        return found

    @cached_property
    def files(self) -> dict[str, str]:
        """File -> content of the ConfigMap that all pods mount. DeployError when it is too large for one."""
        found = {
            "plan.json": json.dumps(self.document, separators=(",", ":"), sort_keys=True),
            "peers.json": json.dumps(self.addresses, separators=(",", ":")),
            "prepare.py": _script("prepare.py"),
        }
        size = sum(len(name) + len(text.encode()) for name, text in found.items())
        if size > MOST_CONFIG_BYTES:
            raise DeployError(
                f"plan and addresses of {len(self.addresses) - 1:,} workers take {size:,} bytes, a ConfigMap holds "
                f"{MOST_CONFIG_BYTES:,}: deploy fewer sites at once (--set sites.TIER=N)"
            )
        return found

    @cached_property
    def config(self) -> str:
        """Of that ConfigMap: by content, so that a pod never reads files of another state."""
        return f"{self.prefix}-files-{digest(self.files)[:_ID_DIGITS]}"


def app_name(settings: Settings, workflow: str) -> str:
    """Of the deployment of a workflow."""
    return deployment_name(settings.name or workflow)


def deployment_name(name: str) -> str:
    """Of a deployment that somebody calls so."""
    return dns_name(name, _MOST_APP)


def digest(value: Any) -> str:
    """sha256 (hex) of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _script(name: str) -> str:
    return (resources.files("jellybean_k8s") / name).read_text(encoding="utf-8")
