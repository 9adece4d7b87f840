"""Two clusters that one plan is deployed over: the gateway's, and the edge's with its workers; both may be away.

Of a real API server they are two namespaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jellybean.serving import open_authority
from jellybean_agent import Identity, Role
from jellybean_k8s import (
    ClusterPart,
    ClusterPlace,
    DeployError,
    DeployOptions,
    PartsStatus,
    RelaySettings,
    certificate_secrets,
    deploy_parts,
    deployed_plan,
    read_inventory,
    read_statuses,
    render,
    rollback_parts,
)
from jellybean_solver import Plan
from tests.k8s_real import RealCluster
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target, running_target

NOWHERE = "http://127.0.0.1:9"  # nothing listens there: connections are refused
UNDO = dataclasses.replace(QUICK, undo_failed=True)
PLACES = {"cloud": ClusterPlace(("cloud",)), "edge": ClusterPlace(("edge",))}
RELAY = RelaySettings("relay.example:7443")
ID, OTHER_ID = deployed_plan(PLAN, SETTINGS).id, deployed_plan(OTHER, SETTINGS).id


@dataclasses.dataclass
class Site:
    """A cluster whose API server can be away for everybody but its kubelet."""

    target: Target
    url: str
    jumped_s: float = 0.0

    @property
    def cluster(self) -> Any:
        return self.target.cluster

    def leave(self) -> None:
        self.cluster.api.configuration.host = NOWHERE

    def come_back(self) -> None:
        self.cluster.api.configuration.host = self.url

    def pass_time(self, seconds: float) -> None:
        """Let the cluster's clock jump, in clients that were made of it, too."""
        self.jumped_s += seconds

    def expire_lock(self) -> None:
        """As if its holder had ended long ago."""
        with contextlib.suppress(DeployError):
            self.cluster.merge("Lease", "digits-deploy", {"spec": {"renewTime": "2000-01-01T00:00:00.000000Z"}})

    def states(self) -> list[tuple[int, str]]:
        return [(found.number, found.state) for found in read_inventory(self.cluster, "digits").revisions]

    def plans(self) -> set[str]:
        """Short hashes of the plans that have sets of pods here."""
        return {plan for plan in (ID, OTHER_ID) if any(plan in name for name in self.target.names("StatefulSet"))}


@dataclasses.dataclass
class Sites:
    """The gateway's cluster and the edge's."""

    cloud: Site
    edge: Site
    told: list[str] = dataclasses.field(default_factory=list)
    on_progress: Callable[[str], None] = lambda label: None
    on_say: Callable[[str], None] = lambda text: None

    @property
    def clusters(self) -> dict[str, Any]:
        return {"cloud": self.cloud.cluster, "edge": self.edge.cluster}

    def pass_deadline_when_told(self, site: Site, text: str) -> None:
        """The deadline of a cluster is over as soon as the user is told this, however quick the rest is."""

        def tell(told: str) -> None:
            if text in told:
                site.pass_time(1000.0)

        self.on_say = tell

    def options(self, options: DeployOptions) -> DeployOptions:
        def say(text: str) -> None:
            self.told.append(text)
            self.on_say(text)

        return dataclasses.replace(options, say=say, progress=lambda done, total, label: self.on_progress(label))

    def parts(self, plan: Plan = PLAN) -> list[ClusterPart]:
        deployed = deployed_plan(plan, SETTINGS)
        objects = self.cloud.target.objects(plan)
        at_edge = [item for item in objects if "edge-box" in item["metadata"]["name"]]
        shared = ("ConfigMap", "ServiceAccount", "NetworkPolicy")
        agents = [item for item in objects if item["kind"] in shared or item["metadata"]["name"] == deployed.agents]
        return [
            ClusterPart("cloud", self.cloud.cluster, deployed, [item for item in objects if item not in at_edge]),
            ClusterPart("edge", self.edge.cluster, deployed, [*agents, *at_edge]),
        ]

    def deploy(self, plan: Plan = PLAN, options: DeployOptions = QUICK, *, skip_offline: bool = False) -> Any:
        found = deploy_parts(self.parts(plan), self.options(options), skip_offline=skip_offline)
        return {name: one.number for name, one in found.items()}

    def relayed_parts(self, plan: Plan = PLAN, relay: RelaySettings = RELAY) -> list[ClusterPart]:
        """As they are rendered, with relay, tunnels, and ServiceMonitors."""
        own = dataclasses.replace(SETTINGS, clusters=PLACES, relay=relay, gateway_tier="cloud", name="digits")
        certificates, deployed = self.cloud.target.certificates, deployed_plan(plan, own)
        if not (certificates / "relay").exists():
            authority = open_authority(certificates / "ca")
            authority.equip(certificates / "relay" / "relay", Identity("digits", Role.RELAY, "relay"))
        parts = []
        for name, cluster in self.clusters.items():
            view = deployed.in_cluster(name, service_monitor=True)
            parts.append(ClusterPart(name, cluster, view, [*certificate_secrets(view, certificates), *render(view)]))
        return parts

    def rollback(self, number: int | None = None, options: DeployOptions = QUICK, *, skip_offline: bool = False) -> Any:
        found = rollback_parts(self.clusters, "digits", number, self.options(options), skip_offline=skip_offline)
        return {name: one.number for name, one in found.items()}

    def status(self) -> PartsStatus:
        return read_statuses(self.clusters, "digits")

    def well(self) -> PartsStatus:
        def read() -> PartsStatus | None:
            status = self.status()
            return status if status.is_well else None

        status: PartsStatus = self.cloud.target.eventually(read)
        return status

    def writes(self) -> list[Any]:
        return [*self.cloud.target.writes(), *self.edge.target.writes()]

    def serving(self) -> str:
        front = self.cloud.cluster.get("Service", "digits")
        return str(front["spec"]["selector"]["jellybean.dev/plan"])


def _site(target: Target) -> Site:
    site = Site(target, target.cluster.api.configuration.host)
    target.cluster.clock = lambda: time.monotonic() + site.jumped_s
    target.cluster.patience_s = 0.1
    return site


@contextlib.contextmanager
def running_sites(folder: Path, real: RealCluster | None = None) -> Iterator[Sites]:
    """Each kubelet has a connection of its own, which is never away."""
    with running_target(folder / "cloud", real) as cloud, running_target(folder / "edge", real) as edge:
        yield Sites(_site(cloud), _site(edge))
