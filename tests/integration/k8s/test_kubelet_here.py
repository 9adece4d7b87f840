"""The kubelet of these tests: the containers of a pod start, get ready and end in the order of Kubernetes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.k8s.kubelet_here import Kubelet
from tests.integration.k8s.volumes_here import mount_config_map
from tests.k8s_target import NEEDS_CONTAINERS, Target, mock_only, running_target
from tests.support.loopback import loopback_address
from tests.support.waiting import wait_until

pytestmark = mock_only(NEEDS_CONTAINERS)
LABELS = {"app": "tiny"}
# A server of grpc.health.v1, healthy once a file NAME.ready exists; it writes down when it starts and ends.
PROGRAM = """\
import signal, sys, threading, time
from concurrent import futures
from pathlib import Path
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

name, listen, run, stop_s = (text.partition("=")[2] for text in sys.argv[1:])
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

class Health(health_pb2_grpc.HealthServicer):
    def Check(self, request, context):
        return health_pb2.HealthCheckResponse(status=1 if Path(run, f"{name}.ready").exists() else 2)

def note(event):
    with open(f"{run}/events", "a") as events:
        events.write(f"{name} {event}\\n")

server = grpc.server(futures.ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
server.add_insecure_port(listen)
server.start()
note("starts")
stop.wait()
time.sleep(float(stop_s))
note("ends")
"""


def container(name: str, port: int, *probes: str, stop_s: float = 0.0) -> dict[str, Any]:
    arguments = [f"--name={name}", f"--listen=0.0.0.0:{port}", "--run=/run/tiny", f"--stop-s={stop_s}"]
    own = {"name": name, "image": "tiny:1", "command": ["python", "-c"], "args": [PROGRAM, *arguments]}
    mounts = {"volumeMounts": [{"name": "run", "mountPath": "/run/tiny"}]}
    return own | mounts | {probe: {"grpc": {"port": port}} for probe in probes}


def deployment(name: str = "tiny") -> dict[str, Any]:
    """One pod: a sidecar that ends at once when it may, and a main container that needs half a second."""
    sidecar = container("sidecar", 7001, "startupProbe", "readinessProbe") | {"restartPolicy": "Always"}
    spec = {
        "initContainers": [sidecar],
        "containers": [container("main", 7002, "readinessProbe", stop_s=0.5)],
        "terminationGracePeriodSeconds": 20,
        "volumes": [{"name": "run", "emptyDir": {}}, {"name": "files", "configMap": {"name": "files"}}],
    }
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    wanted = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": wanted}


def config_map(**files: Any) -> dict[str, Any]:
    data = {f"{name}.json": json.dumps(content) for name, content in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "data": data}


class TinyPod:
    """The pod of the Deployment, as a kubelet runs it."""

    def __init__(self, target: Target, root: Path, kubelet: Kubelet) -> None:
        self.target, self.kubelet, self._root = target, kubelet, root
        target.cluster.create(config_map())
        target.cluster.create(deployment())
        wait_until(lambda: list(root.glob("*/volumes/run")))

    @property
    def run(self) -> Path:
        (folder,) = self._root.glob("*/volumes/run")
        return folder

    def events(self) -> list[str]:
        file = self.run / "events"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def make_ready(self, *names: str) -> None:
        for name in names:
            (self.run / f"{name}.ready").touch()

    def is_ready(self) -> bool:
        return self.kubelet.endpoint(LABELS, 7002) is not None

    def delete(self) -> None:
        there = self.target.cluster.get("Deployment", "tiny")
        assert there is not None
        self.target.cluster.delete("Deployment", "tiny", there["metadata"]["uid"])


@contextlib.contextmanager
def tiny_pod(target: Target, root: Path) -> Iterator[TinyPod]:
    target.idle = True  # the kubelet here reports pods
    with Kubelet(target, root, {"tiny:1"}) as kubelet:
        yield TinyPod(target, root, kubelet)


@pytest.fixture
def pod(target: Target, tmp_path: Path) -> Iterator[TinyPod]:
    with tiny_pod(target, tmp_path / "pods") as found:
        yield found


def test_a_sidecar_starts_first_counts_for_readiness_and_ends_last(pod: TinyPod) -> None:
    wait_until(lambda: pod.events() == ["sidecar starts"])
    pod.make_ready("sidecar")
    wait_until(lambda: pod.events() == ["sidecar starts", "main starts"])
    assert not pod.is_ready()
    pod.make_ready("main")
    wait_until(pod.is_ready)
    (pod.run / "sidecar.ready").unlink()
    wait_until(lambda: not pod.is_ready())
    pod.delete()
    wait_until(lambda: len(pod.events()) == 4)
    assert pod.events()[2:] == ["main ends", "sidecar ends"]


def test_a_sidecar_that_exits_is_started_again_and_a_main_container_is_not(pod: TinyPod) -> None:
    pod.make_ready("sidecar", "main")
    wait_until(pod.is_ready)
    running = pod.kubelet.pod("tiny-0")
    (sidecar,), (main,) = running.sidecars, running.containers
    for one in (sidecar, main):
        assert one.process is not None
        one.process.kill()
    wait_until(lambda: pod.events().count("sidecar starts") == 2)
    wait_until(lambda: not pod.is_ready())
    assert pod.events().count("main starts") == 1
    assert sidecar.log.exists() and main.log.exists()


def test_pods_of_two_clusters_may_have_the_same_names_and_ports(pod: TinyPod, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with running_target(tmp_path / "second") as target, tiny_pod(target, tmp_path / "second/pods") as other:
        pod.make_ready("sidecar", "main")
        wait_until(pod.is_ready)
        assert not other.is_ready()
        other.make_ready("sidecar", "main")
        wait_until(other.is_ready)
        assert pod.kubelet.endpoint(LABELS, 7002) != other.kubelet.endpoint(LABELS, 7002)


def test_the_only_pod_of_each_deployment_is_found_by_the_name_of_its_service(target: Target, tmp_path: Path) -> None:
    target.idle = True
    names = ("tiny-gateway", "tiny-relay")
    peers = {"": "tiny-gateway.shop.svc.cluster.local:7001", "edge-1": "tiny-relay:7100"}
    target.cluster.create(config_map(peers=peers))
    for name in names:
        target.cluster.create(deployment(name))
    with Kubelet(target, tmp_path / "pods", {"tiny:1"}) as kubelet:
        wait_until(lambda: len(kubelet.starts) == len(names))
        gateway, relay = (kubelet.pod(f"{name}-0") for name in names)
        local = {"": f"{gateway.address}:7001", "edge-1": f"{relay.address}:7100"}
        for pod in (gateway, relay):
            assert json.loads((pod.volume("files") / "peers.json").read_text(encoding="utf-8")) == local


def test_addresses_in_mounted_files_become_local_ones_with_the_same_ports(tmp_path: Path) -> None:
    own, gateway = loopback_address(), loopback_address()
    targets = {"": "digits-gateway.shop.svc:7001", "edge-1": "127.0.0.1:7100", "elsewhere": "10.0.0.1:7443"}
    files = {"targets.json": json.dumps(targets), "workers.json": '{"7100": "edge-1"}'}
    mount_config_map(tmp_path, files, own, {"digits-gateway": gateway})
    local = {"": f"{gateway}:7001", "edge-1": f"{own}:7100", "elsewhere": "10.0.0.1:7443"}
    assert json.loads((tmp_path / "targets.json").read_text(encoding="utf-8")) == local
    assert (tmp_path / "workers.json").read_text(encoding="utf-8") == files["workers.json"]
