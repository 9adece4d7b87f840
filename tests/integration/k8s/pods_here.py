"""Runs rendered pods as local processes, each pod with a loopback address of its own and the ports of its manifest.

What a kubelet would do is done here: mount volumes, number pods, start containers in their order, ask probes, and end
containers in the opposite order.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.serving import LIFE_S, Authority, open_authority
from jellybean_agent import Identity, Role
from tests.integration.k8s.containers_here import Container, Sandbox
from tests.integration.k8s.volumes_here import first_label, mount_config_map, mount_secret
from tests.support.loopback import loopback_address

_VOLUMES = ("configMap", "secret", "emptyDir", "image")
_INIT_S = 120.0  # longest time of an init container
_POLL_S = 0.1


class Pod:
    """One pod: `name` as in the cluster, `number` the ordinal in its StatefulSet or empty."""

    def __init__(self, name: str, folder: Path, spec: Any, number: str, address: str) -> None:
        self.name, self.folder, self.spec, self.number, self.address = name, folder, spec, number, address
        fields = {
            "metadata.name": name,
            "metadata.labels['apps.kubernetes.io/pod-index']": number,
            "status.podIP": address,
        }
        sandbox = Sandbox(folder, address, fields)
        self.volume = sandbox.volume
        for volume in spec["volumes"]:
            assert any(kind in volume for kind in _VOLUMES), f"{name}: {volume['name']}: volume of unknown kind"
            self.volume(volume["name"]).mkdir(parents=True)
        self._init_containers = [Container(item, sandbox) for item in spec.get("initContainers", ())]
        self.sidecars = [container for container in self._init_containers if container.is_sidecar]
        self.containers = [Container(item, sandbox) for item in spec["containers"]]  # the main ones
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self.is_started = False
        self.has_ended = threading.Event()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Process of the only main container."""
        (container,) = self.containers
        return container.process

    def start(self) -> None:
        """Start what does not run: init containers in order, each to its end, or to its startup if it is a sidecar.

        Then the main containers. CalledProcessError if an init container fails.
        """
        for container in self._init_containers:
            self._launch(container)
            if container.is_sidecar:
                self._await_startup(container)
            elif container.process is not None:
                status = container.process.wait(_INIT_S)
                if status and not self._is_ending.is_set():
                    raise subprocess.CalledProcessError(status, container.command())
        for container in self.containers:
            self._launch(container)
        self.is_started = True

    def _launch(self, container: Container) -> None:
        with self._lock:
            if not container.is_running and not self._is_ending.is_set():
                container.start()

    def _await_startup(self, sidecar: Container) -> None:
        while not sidecar.probe("startupProbe") and not self._is_ending.wait(_POLL_S):
            self._launch(sidecar)

    def restart_sidecars(self) -> None:
        """Start sidecars again that have exited. Main containers stay ended: a test sees that they failed."""
        for sidecar in self.sidecars:
            self._launch(sidecar)

    def is_ready(self) -> bool:
        """True if all containers and sidecars run, and those with a readiness probe pass it."""
        return self.is_started and all(container.is_ready() for container in (*self.sidecars, *self.containers))

    def probe(self, kind: str) -> bool:
        """True if all containers and sidecars pass this probe."""
        return all(container.probe(kind) for container in (*self.sidecars, *self.containers))

    def end(self) -> None:
        """Terminate the main containers, then the sidecars in reverse order; SIGKILL after the grace period."""
        begin_s = time.monotonic()
        end_s = begin_s + self.spec["terminationGracePeriodSeconds"]
        self._forbid_starts()
        first = [one for one in (*self._init_containers, *self.containers) if not one.is_sidecar]
        terminations = [threading.Thread(target=one.terminate_at, args=(begin_s,)) for one in first]
        for thread in terminations:
            thread.start()
        for container in first:
            container.kill_at(end_s)
        for thread in terminations:
            thread.join()
        for sidecar in reversed(self.sidecars):
            sidecar.terminate_at(begin_s)
            sidecar.kill_at(end_s)
        self.has_ended.set()

    def kill(self) -> None:
        """Kill all processes, as when the node is lost."""
        self._forbid_starts()
        for container in (*self._init_containers, *self.containers):
            container.kill_at(0.0)

    def _forbid_starts(self) -> None:
        with self._lock:
            self._is_ending.set()


@dataclass
class Cluster:
    """All pods of rendered objects, as local processes."""

    root: Path
    workflow: str
    objects: Sequence[Any]
    pods: list[Pod] = field(default_factory=list)
    identities: dict[str, Identity] = field(default_factory=dict)  # by pod

    def __post_init__(self) -> None:
        self.authority: Authority = open_authority(self.root / "ca")
        for item in self.objects:
            if item["kind"] == "StatefulSet":
                start = item["spec"].get("ordinals", {}).get("start", 0)
                for number in range(start, start + item["spec"]["replicas"]):
                    self._add(f"{item['metadata']['name']}-{number}", item, str(number))
            elif item["kind"] == "Deployment":
                count = item["spec"]["replicas"]
                for suffix in [f"-{number}" for number in range(count)] if count > 1 else [""]:
                    self._add(f"{item['metadata']['name']}{suffix}", item, "")
        self._mount()

    def _add(self, name: str, item: Any, number: str) -> None:
        self.pods.append(Pod(name, self.root / name, item["spec"]["template"]["spec"], number, loopback_address()))

    def _mount(self) -> None:
        data = next(item["data"] for item in self.objects if item["kind"] == "ConfigMap")
        addresses = {pod.name: pod.address for pod in self.pods}
        workers = {first_label(place): worker for worker, place in json.loads(data["peers.json"]).items() if worker}
        for pod in self.pods:
            mount_config_map(pod.volume("files"), data, pod.address, addresses)
            worker = workers.get(pod.name)
            own = (Role.GATEWAY, "") if worker is None else (Role.AGENT, worker)
            self.identities[pod.name] = Identity(self.workflow, *own)
            self.certify(pod)

    def certify(self, pod: Pod, life_s: float = LIFE_S) -> None:
        """Mount a new certificate as a kubelet does: files in a new folder, to which one link is moved at once."""
        made = self.root / "made" / pod.name
        self.authority.equip(made, self.identities[pod.name], life_s=life_s)
        name = pod.number or "tls"
        named = (("ca.crt", "ca.crt"), ("tls.crt", f"{name}.crt"), ("tls.key", f"{name}.key"))
        mount_secret(pod.volume("tls"), {target: (made / source).read_bytes() for source, target in named})

    def client_certificate(self) -> Path:
        """Folder of a client's certificate, written once: others may be reading it."""
        folder = self.root / "client"
        if not folder.exists():
            self.authority.equip(folder, Identity(self.workflow, Role.CLIENT, "alice"))
        return folder


@contextlib.contextmanager
def cluster_here(root: Path, workflow: str, objects: Sequence[Any]) -> Iterator[Cluster]:
    """Pods that end with the test."""
    cluster = Cluster(root, workflow, objects)
    try:
        yield cluster
    finally:
        for pod in cluster.pods:
            pod.kill()
