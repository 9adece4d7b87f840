"""Changes of a plan in two clusters while clients send: pods of both run as processes, joined by relay and tunnel.

Two mock API servers; what a firewall lets through is the relay's Service. Clients send requests again that are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jellybean.serving import open_authority
from jellybean_agent import Identity, Role
from jellybean_k8s import (
    ClusterPart,
    ClusterPlace,
    DeployedPlan,
    DeployError,
    DeploymentSettings,
    DeployOptions,
    ModelSource,
    RelaySettings,
    certificate_secrets,
    deploy_parts,
    deployed_plan,
    read_inventory,
    read_statuses,
    render,
    rollback_parts,
)
from jellybean_solver import from_document
from tests.integration.k8s.kubelet_here import Kubelet, service_here
from tests.integration.k8s.test_pods_here import serving_files
from tests.k8s_certificates import equip
from tests.k8s_target import NEEDS_CONTAINERS, Target, mock_only, running_target
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import chain
from tests.support.waiting import wait_until

pytestmark = [mock_only(NEEDS_CONTAINERS), pytest.mark.slow]
CLOUD, EDGE = "cloud", "edge"
PLACES = {CLOUD: ClusterPlace(("cloud",)), EDGE: ClusterPlace(("edge",))}
NAMES = ("", "edge-1", "cloud-1", "cloud-2")
IMAGES = {"agent:1", "agent:2", "gateway:1"}
RATE_PER_S, RETRY_S = 20.0, 30.0
LEAVE_S = 7.0  # in which the last pods leave, the relay behind its gateway
OPTIONS = DeployOptions(timeout_s=120.0)


@dataclass
class Site:
    """A cluster: its API server, whose answers may fail, and its pods."""

    target: Target
    kubelet: Kubelet

    def leave(self) -> None:
        """From now on the API server answers nobody."""
        assert self.target.server is not None
        self.target.server.api.fault = lambda method, path: 503

    def come_back(self) -> None:
        assert self.target.server is not None
        self.target.server.api.fault = None

    def pods(self, part: str) -> list[str]:
        assert self.target.server is not None
        return [name for name in self.target.server.api.of("pods") if part in name]

    def is_ready(self, name: str) -> bool:
        pod = self.target.cluster.get("Pod", name)
        conditions = (pod or {}).get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def replace_pod(self, name: str) -> None:
        """Delete a pod, and wait until another one is ready in its place."""
        others = set(self.pods(name[: name.rindex("-")])) - {name}
        pod = self.target.cluster.get("Pod", name)
        assert pod is not None
        before = len(self.kubelet.starts)
        assert self.target.cluster.delete("Pod", name, pod["metadata"]["uid"])
        wait_until(lambda: len(self.kubelet.starts) > before)
        wait_until(lambda: all(self.is_ready(one) for one in set(self.pods(name[: name.rindex("-")])) - others))


@dataclass
class Served:
    """A deployment in both clusters. `address`: of the gateway's Service; `told`: what deploying has said."""

    sites: dict[str, Site]
    settings: DeploymentSettings
    certificates: Path
    store: Path
    address: str
    tls: Path
    told: list[str] = field(default_factory=list)
    on_applied: Callable[[str], None] = lambda name: None

    def parts(self, cloud: str = "cloud-1", **changes: object) -> list[ClusterPart]:
        plan = dataclasses.replace(from_document(chain(self.store, workers=("edge-1", cloud))), name="digits")
        deployed = deployed_plan(plan, dataclasses.replace(self.settings, **changes))
        views = {name: deployed.in_cluster(name) for name in deployed.clusters}
        return [self._part(name, view) for name, view in views.items()]

    def _part(self, name: str, view: DeployedPlan) -> ClusterPart:
        objects = [*certificate_secrets(view, self.certificates), *render(view)]
        return ClusterPart(name, self.sites[name].target.cluster, view, objects)

    def options(self, options: DeployOptions) -> DeployOptions:
        return dataclasses.replace(
            options, say=self.told.append, progress=lambda done, total, label: self.on_applied(label)
        )

    def deploy(self, *, cloud: str = "cloud-1", options: DeployOptions = OPTIONS, **changes: object) -> set[int | None]:
        found = deploy_parts(self.parts(cloud, **changes), self.options(options))
        return {one.number for one in found.values()}

    def rollback(self, number: int) -> None:
        clusters = {name: site.target.cluster for name, site in self.sites.items()}
        rollback_parts(clusters, "digits", number, self.options(OPTIONS))

    def load(self) -> SteadyLoad:
        return SteadyLoad(self.address, RATE_PER_S, factor=6.0, timeout_s=60.0, tls=self.tls, retry_s=RETRY_S)

    def is_well(self) -> bool:
        return read_statuses({name: site.target.cluster for name, site in self.sites.items()}, "digits").is_well

    def numbers_in(self, name: str) -> list[tuple[int, str]]:
        inventory = read_inventory(self.sites[name].target.cluster, "digits")
        return [(one.number, one.state) for one in inventory.revisions]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """The first plan serves."""
    store, certificates = tmp_path / "store", tmp_path / "certificates"
    chain(store)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_files(store))
        sites = {}
        for name in PLACES:
            target = stack.enter_context(running_target(certificates))
            target.idle = True  # the kubelets here report pods
            sites[name] = Site(target, stack.enter_context(Kubelet(target, tmp_path / name, IMAGES)))
        equip(certificates, NAMES)
        authority = open_authority(certificates / "ca")
        authority.equip(certificates / "relay" / "relay", Identity("digits", Role.RELAY, "relay"))
        authority.equip(tmp_path / "client", Identity("digits", Role.CLIENT, "alice"))
        cloud = sites[CLOUD]
        relay = stack.enter_context(service_here(cloud.target, cloud.kubelet, "digits-relay", 7443))
        address = stack.enter_context(service_here(cloud.target, cloud.kubelet, "digits", 8001))
        settings = DeploymentSettings(
            {"cpu": "agent:1"},
            "gateway:1",
            ModelSource(url=url),
            name="digits",
            drain_s=3.0,
            pre_stop_s=1,
            gateway_tier="cloud",
            clusters=PLACES,
            relay=RelaySettings(relay),
        )
        found = Served(sites, settings, certificates, store, address, tmp_path / "client")
        found.deploy()
        yield found


def test_changes_and_the_way_back_lose_nothing(served: Served) -> None:
    with served.load() as load:
        assert served.deploy(agent_images={"cpu": "agent:2"}) == {2}
        assert served.deploy(cloud="cloud-2", agent_images={"cpu": "agent:2"}) == {3}
        served.rollback(1)
        time.sleep(LEAVE_S)
    load.check()
    wait_until(served.is_well)
    states = [(1, "replaced"), (2, "replaced"), (3, "replaced"), (4, "deployed")]
    assert [served.numbers_in(name) for name in (CLOUD, EDGE)] == [states, states]


@pytest.mark.parametrize(
    ("name", "away_s"),
    [
        (EDGE, 8.0),
        pytest.param(EDGE, 60.0, marks=pytest.mark.nightly),
        pytest.param(CLOUD, 60.0, marks=pytest.mark.nightly),
    ],
)
def test_a_cluster_that_is_away_in_mid_deploy_is_told_and_loses_nothing(
    served: Served, name: str, away_s: float
) -> None:
    site, left = served.sites[name], threading.Event()

    def leave(label: str) -> None:
        if "StatefulSet" in label and not left.is_set():
            left.set()
            site.leave()
            threading.Timer(away_s, site.come_back).start()

    served.on_applied = leave
    with served.load() as load:
        began_s = time.monotonic()
        assert served.deploy(agent_images={"cpu": "agent:2"}) == {2}
        assert left.is_set()
        assert time.monotonic() - began_s >= away_s
        time.sleep(LEAVE_S)
    load.check()
    assert any(text.startswith(f"{name} ") and "answer" in text for text in served.told), served.told
    wait_until(served.is_well)


def test_a_cluster_that_stays_away_keeps_the_running_plan_until_deploying_again(served: Served) -> None:
    """As for an hour: after the time limit nothing has changed for clients, in neither cluster."""
    site = served.sites[EDGE]
    with served.load() as load:
        site.leave()
        with pytest.raises(DeployError, match=r"edge has not answered for .*run `jellybean deploy` again"):
            served.deploy(options=dataclasses.replace(OPTIONS, timeout_s=3.0), agent_images={"cpu": "agent:2"})
        assert not served.is_well()
        time.sleep(2.0)
        site.come_back()
        served.deploy(agent_images={"cpu": "agent:2"})
        time.sleep(LEAVE_S)
    load.check()
    wait_until(served.is_well)


@pytest.mark.parametrize(("name", "part"), [(CLOUD, "-relay-"), (EDGE, "-edge-")])
def test_a_relay_or_an_agent_behind_it_that_is_deleted_loses_nothing(served: Served, name: str, part: str) -> None:
    (pod,) = served.sites[name].pods(part)
    with served.load() as load:
        time.sleep(1.0)
        served.sites[name].replace_pod(pod)
        time.sleep(3.0)
    load.check()


def test_a_cluster_without_which_nothing_is_served_is_not_left_out(served: Served) -> None:
    served.sites[EDGE].leave()
    with pytest.raises(DeployError, match="every route of the plan leads through workers in edge"):
        deploy_parts(served.parts(agent_images={"cpu": "agent:2"}), served.options(OPTIONS), skip_offline=True)
    assert served.numbers_in(CLOUD) == [(1, "deployed")]


def test_agents_of_the_other_cluster_are_dialled_by_nobody(served: Served) -> None:
    """Every address that a pod of the gateway's cluster knows is of its own cluster."""
    (files,) = (item for item in served.parts()[0].objects if item["kind"] == "ConfigMap")
    own = {item["metadata"]["name"] for item in served.parts()[0].objects if item["kind"] == "Service"}
    known = [*_hosts(files["data"]["peers.json"]), *_hosts(files["data"]["targets.json"])]
    assert {host.rpartition(".")[2] for host in known} <= own


def _hosts(text: str) -> list[str]:
    return [address.rpartition(":")[0] for address in json.loads(text).values()]
