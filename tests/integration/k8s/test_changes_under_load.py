"""Changes of a deployment while clients send: with real pods' processes behind a mock API server, nothing is lost.

The clients send requests again that are refused, as those of any service on Kubernetes do.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jellybean.serving import open_authority
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role
from jellybean_k8s import (
    DeployError,
    DeploymentSettings,
    DeployOptions,
    ModelSource,
    read_deployed_certificates,
    read_inventory,
    read_status,
    renew_certificates,
    rollback,
)
from jellybean_solver import from_document
from tests.integration.k8s.kubelet_here import Kubelet, service_here
from tests.integration.k8s.test_pods_here import serving_files
from tests.k8s_certificates import equip
from tests.k8s_target import NEEDS_CONTAINERS, Target, mock_only
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import chain
from tests.support.waiting import wait_until

pytestmark = mock_only(NEEDS_CONTAINERS)
RATE_PER_S, RETRY_S = 20.0, 30.0
OPTIONS = DeployOptions(timeout_s=60.0)
LEAVE_S = 3.0  # in which the last pods leave
NAMES = ("", "edge-1", "cloud-1", "cloud-2")
SHORT_LIFE_S = 24.0
IMAGES = {"agent:1", "agent:2", "gateway:1", "gateway:2"}


@dataclass
class Served:
    """A deployment whose pods run here. `address`: of its Service; `tls`: a client's certificate."""

    target: Target
    kubelet: Kubelet
    settings: DeploymentSettings
    store: Path
    address: str
    tls: Path

    def deploy(self, *, cloud: str = "cloud-1", options: DeployOptions = OPTIONS, **changes: object) -> None:
        document = chain(self.store, workers=("edge-1", cloud))
        plan = dataclasses.replace(from_document(document), name="digits")
        self.target.deploy(plan, dataclasses.replace(self.settings, **changes), options)

    def load(self, retry_s: float = RETRY_S) -> SteadyLoad:
        return SteadyLoad(self.address, RATE_PER_S, factor=6.0, timeout_s=60.0, tls=self.tls, retry_s=retry_s)

    def gateways(self) -> list[str]:
        assert self.target.server is not None
        return [name for name in self.target.server.api.of("pods") if "-gateway-" in name]

    def is_ready(self, name: str) -> bool:
        pod = self.target.cluster.get("Pod", name)
        conditions = (pod or {}).get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def delete_pod(self, name: str) -> None:
        """Delete a pod, and wait until its set has made another one."""
        before = self.kubelet.starts.count(name)
        pod = self.target.cluster.get("Pod", name)
        assert pod is not None
        assert self.target.cluster.delete("Pod", name, pod["metadata"]["uid"])
        wait_until(lambda: self.kubelet.starts.count(name) == before + 1)

    def worker_pods(self) -> list[str]:
        assert self.target.server is not None
        return [name for name in self.target.server.api.of("pods") if "-gateway-" not in name]

    def renew(self) -> None:
        """Renew the certificates in the cluster, as `jellybean certs --renew` does."""
        cluster, folder = self.target.cluster, equip(self.target.certificates, NAMES)
        found = read_deployed_certificates(cluster, "digits")
        pairs = {}
        for name in NAMES:
            own = folder / "agent" / name if name else folder / "gateway"
            identity = Identity("digits", Role.AGENT if name else Role.GATEWAY, name)
            pairs[identity.uri] = ((own / CERTIFICATE_FILE).read_bytes(), (own / PRIVATE_KEY_FILE).read_bytes())
        renew_certificates(cluster, found, (folder / "gateway" / CA_FILE).read_bytes(), pairs)


@pytest.fixture
def served(target: Target, tmp_path: Path) -> Iterator[Served]:
    """The first plan serves."""
    target.idle = True  # the kubelet here reports pods
    store = tmp_path / "store"
    chain(store)
    equip(target.certificates, NAMES)
    open_authority(target.certificates / "ca").equip(tmp_path / "client", Identity("digits", Role.CLIENT, "alice"))
    with serving_files(store) as url, Kubelet(target, tmp_path / "pods", set(IMAGES)) as kubelet:
        settings = DeploymentSettings(
            {"cpu": "agent:1"}, "gateway:1", ModelSource(url=url), name="digits", drain_s=5.0, pre_stop_s=1
        )
        with service_here(target, kubelet, "digits", 8001) as address:
            found = Served(target, kubelet, settings, store, address, tmp_path / "client")
            found.deploy()
            yield found


@pytest.mark.slow
def test_an_image_that_does_not_exist_costs_nothing_and_is_tried_once(served: Served) -> None:
    before = len(served.kubelet.starts)
    with served.load() as load:
        options = dataclasses.replace(OPTIONS, timeout_s=3.0, undo_failed=True)
        with pytest.raises(DeployError, match=r"ErrImagePull[\s\S]*serves as before"):
            served.deploy(options=options, agent_images={"cpu": "agent:mistyped"})
        time.sleep(1.0)
    load.check()
    assert all("-gateway-" in name for name in served.kubelet.starts[before:])  # its image is right
    assert [one.state for one in read_inventory(served.target.cluster, "digits").revisions] == ["deployed", "failed"]


@pytest.mark.slow
def test_other_images_another_plan_and_the_way_back_lose_nothing(served: Served) -> None:
    with served.load() as load:
        served.deploy(agent_images={"cpu": "agent:2"}, gateway_image="gateway:2")
        served.deploy(cloud="cloud-2", agent_images={"cpu": "agent:2"}, gateway_image="gateway:2")
        rollback(served.target.cluster, "digits", 1, OPTIONS)
        time.sleep(LEAVE_S)
    load.check()
    assert [one.number for one in read_inventory(served.target.cluster, "digits").revisions] == [1, 2, 3, 4]


def test_a_gateway_pod_that_is_deleted_loses_nothing(served: Served) -> None:
    (name,) = served.gateways()
    with served.load() as load:
        time.sleep(1.0)
        served.delete_pod(name)
        wait_until(lambda: served.kubelet.endpoint({"app.kubernetes.io/component": "gateway"}, 8001) is not None)
        time.sleep(1.0)
    load.check()


@pytest.mark.slow
@pytest.mark.parametrize("retry_s", [0.0, pytest.param(RETRY_S, marks=pytest.mark.nightly)])
def test_one_of_two_gateway_pods_that_is_deleted_loses_nothing(served: Served, retry_s: float) -> None:
    """As when its node is drained: not even a client that never sends a request again notices."""
    served.deploy(gateway_replicas=2)
    names = [name for name in served.gateways() if served.is_ready(name)]
    assert len(names) == 2
    loads = [served.load(retry_s) for _ in range(4)]  # connections go to both
    with loads[0], loads[1], loads[2], loads[3]:
        time.sleep(1.0)
        for name in names:  # one after the other
            served.delete_pod(name)
            wait_until(lambda name=name: served.is_ready(name))
        time.sleep(1.0)
    for load in loads:
        load.check()


@pytest.mark.slow
def test_another_number_of_gateways_loses_nothing(served: Served) -> None:
    with served.load() as load:
        for count in (2, 1):
            served.deploy(gateway_replicas=count)
            assert len([name for name in served.gateways() if served.is_ready(name)]) == count
        time.sleep(LEAVE_S)
    load.check()


@pytest.mark.slow
def test_one_of_two_gateway_pods_that_is_killed_loses_nothing(served: Served) -> None:
    """Requests at it fail, and are sent again; those at the other go on."""
    served.deploy(gateway_replicas=2)
    first, second = (name for name in served.gateways() if served.is_ready(name))
    loads = [served.load() for _ in range(4)]
    with loads[0], loads[1], loads[2], loads[3]:
        time.sleep(1.0)
        served.kubelet.kill(first)
        wait_until(lambda: not served.is_ready(first))
        time.sleep(2.0)
        assert served.is_ready(second)
        served.delete_pod(first)  # as its controller does once the node is known to be lost
        wait_until(lambda: served.is_ready(first))
        time.sleep(1.0)
    for load in loads:
        load.check()


@pytest.mark.slow
def test_an_agent_pod_that_is_deleted_loses_nothing(served: Served) -> None:
    """As when its node is drained; there is one worker of each operator, so requests wait for the next pod."""
    assert served.target.server is not None
    name = next(name for name in served.target.server.api.of("pods") if "-cloud-" in name)
    with served.load() as load:
        time.sleep(1.0)
        served.delete_pod(name)
        time.sleep(3.0)
    load.check()


@pytest.mark.slow
def test_a_node_that_is_drained_loses_nothing(served: Served) -> None:
    """Both workers and one of two gateways are on it: all leave at once, and start elsewhere."""
    served.deploy(gateway_replicas=2)
    one, other = (name for name in served.gateways() if served.is_ready(name))
    on_node = [*served.worker_pods(), one]
    with served.load() as load:
        time.sleep(1.0)
        before = len(served.kubelet.starts)
        for name in on_node:
            pod = served.target.cluster.get("Pod", name)
            assert pod is not None
            assert served.target.cluster.delete("Pod", name, pod["metadata"]["uid"])
        wait_until(lambda: len(served.kubelet.starts) >= before + len(on_node))
        wait_until(lambda: all(served.is_ready(name) for name in (*served.worker_pods(), *served.gateways())))
        time.sleep(1.0)
    load.check()
    assert served.kubelet.starts.count(other) == 1


@pytest.mark.slow
def test_certificates_near_their_end_are_told_renewed_and_nothing_is_lost(served: Served) -> None:
    pods = served.gateways() + served.worker_pods()
    ends_s = time.time() + SHORT_LIFE_S
    equip(served.target.certificates, NAMES, life_s=SHORT_LIFE_S)
    served.deploy()
    cluster = served.target.cluster
    with served.load() as load:
        wait_until(lambda: read_status(cluster, "digits").certificates.late)
        status = read_status(cluster, "digits")
        assert status.is_well
        assert (
            "less than a third of its lifetime: `jellybean certs DIR --renew` renews it" in status.certificates.notes[0]
        )
        served.renew()
        status = read_status(cluster, "digits")
        assert (status.certificates.late, status.certificates.expired) == ((), ())
        time.sleep(max(0.0, ends_s - time.time()) + 5.0)  # the old ones have expired
    load.check()
    assert served.gateways() + served.worker_pods() == pods
    assert sorted(served.kubelet.starts) == sorted(pods)
