"""A kubelet for the mock API server: it runs pods as processes here, and reports of each what a real one would.

A pod waits while its image is not known, or a volume cannot be mounted; it is ready by its readiness probes; a deleted
one gets the time to drain. Each pod has a loopback address. Pods of one name have the same one, and the next of them
waits for the end of the last; a name is resolved within its kubelet only. What a Service does is here too: connections
go to a ready pod that its selector selects.
"""

from __future__ import annotations

import base64
import contextlib
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jellybean_k8s import ClusterError
from tests.integration.k8s.pods_here import Pod
from tests.integration.k8s.volumes_here import mount_config_map, mount_secret
from tests.k8s_target import Target
from tests.kubelet_mounts import unmounted
from tests.support.balancer import Endpoint, balancer
from tests.support.loopback import loopback_address

_POLL_S = 0.1
_PREDECESSOR_S = 60.0  # in which a pod ends that has the address of another one


class Kubelet:
    """Runs the pods of a target. `images`: those that can be pulled; `starts`: names of the pods that were started."""

    def __init__(self, target: Target, root: Path, images: set[str]) -> None:
        assert target.server is not None
        self._target, self._api, self._root, self.images = target, target.server.api, root, images
        self.image_volumes: dict[str, Path] = {}  # image -> folder with what it has
        self._addresses: dict[str, str] = defaultdict(loopback_address)  # by the name under which others know a pod
        self._running: dict[str, Pod] = {}  # by uid
        self._leaving: list[Pod] = []
        self._mounted: dict[Path, str] = {}  # folder of a Secret's volume -> its version
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.starts: list[str] = []
        self._loop = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Kubelet:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._loop.join()
        for pod in (*self._running.values(), *self._leaving):
            pod.kill()
        for thread in self._threads:
            thread.join(30.0)

    def endpoint(self, selector: dict[str, str], port: int) -> Endpoint | None:
        """Where a ready pod that a selector selects listens, any of several; None if none does."""
        found = []
        for item in self._pods().values():
            labels = item["metadata"]["labels"]
            is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", ()))
            pod = self._running.get(item["metadata"]["uid"])
            if pod is not None and is_ready and selector.items() <= labels.items():
                found.append((pod.address, port))
        return random.choice(found) if found else None

    def services(self) -> dict[str, Any]:
        return self._objects("services")

    def kill(self, name: str) -> None:
        """Kill the processes of a pod, as when its node is lost: it is not ready from then on."""
        self.pod(name).kill()

    def pod(self, name: str) -> Pod:
        """The pod of this name that was not deleted."""
        (pod,) = (pod for pod in self._running.values() if pod.name == name)
        return pod

    def _pods(self) -> dict[str, Any]:
        return self._objects("pods")

    def _objects(self, kind: str) -> dict[str, Any]:
        while True:
            with contextlib.suppress(RuntimeError):  # the server writes meanwhile
                return dict(self._api.of(kind))

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_S):
            pods = self._pods()
            there = {item["metadata"]["uid"] for item in pods.values()}
            for uid in [uid for uid in self._running if uid not in there]:
                self._leaving.append(self._running.pop(uid))
                self._in_thread(self._leaving[-1].end)
            for name, item in pods.items():
                pod = self._running.get(item["metadata"]["uid"])
                if pod is None:
                    self._start(name, item)
                elif pod.is_started:
                    self._mount_secrets(item, pod)
                    pod.restart_sidecars()
                    self._report(name, item, pod.is_ready())

    def _in_thread(self, work: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _start(self, name: str, item: Any) -> None:
        containers = [*item["spec"].get("initContainers", ()), *item["spec"]["containers"]]
        unknown = next((c["image"] for c in containers if c["image"] not in self.images), None)
        reason = f"ErrImagePull: {unknown}" if unknown else self._mount_problem(item)
        if reason:
            waiting = {"waiting": {"reason": reason.partition(":")[0], "message": reason}}
            status = {"phase": "Pending", "containerStatuses": [{"name": "x", "ready": False, "state": waiting}]}
            self._patch(name, status)
            return
        pod = self._made(name, item)
        self._running[item["metadata"]["uid"]] = pod
        self._in_thread(self._run, pod)

    def _mount_problem(self, item: Any) -> str:
        return unmounted(item, *(list(self._objects(kind).values()) for kind in ("secrets", "configmaps")))

    def _made(self, name: str, item: Any) -> Pod:
        """The pod with its volumes, as they are at its start."""
        is_worker = item["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
        number = name.rpartition("-")[2] if is_worker else ""
        folder = self._root / f"{name}-{item['metadata']['uid'][:8]}"
        pod = Pod(name, folder, item["spec"], number, self._addresses[self._known_as(name, item)])
        for volume in item["spec"]["volumes"]:
            mount = pod.volume(volume["name"])
            if "image" in volume:
                mount.rmdir()
                mount.symlink_to(self.image_volumes[volume["image"]["reference"]])
            elif "configMap" in volume:
                data = self._objects("configmaps")[volume["configMap"]["name"]]["data"]
                mount_config_map(mount, data, pod.address, self._addresses)
        self._mount_secrets(item, pod)
        return pod

    def _known_as(self, name: str, item: Any) -> str:
        """The name under which others know a pod: its own, or that of its Deployment, whose Service has the same name.

        The latter is right of the only pod of a Deployment, unless the pod tells others a reply address.
        """
        owner = item["metadata"]["ownerReferences"][0]
        if owner["kind"] != "Deployment":
            return name
        deployment = self._objects("deployments").get(owner["name"])  # None: it was deleted just now
        is_only = deployment is not None and deployment["spec"]["replicas"] == 1
        arguments = [text for container in item["spec"]["containers"] for text in container.get("args", ())]
        has_reply_address = any(text.startswith("--reply-address=") for text in arguments)
        return str(owner["name"]) if is_only and not has_reply_address else name

    def _mount_secrets(self, item: Any, pod: Pod) -> None:
        """Mount the Secrets of a pod, again those that have changed."""
        for volume in item["spec"]["volumes"]:
            if "secret" in volume:
                mount, secret = pod.volume(volume["name"]), self._objects("secrets")[volume["secret"]["secretName"]]
                if self._mounted.get(mount) != secret["metadata"]["resourceVersion"]:
                    self._mounted[mount] = secret["metadata"]["resourceVersion"]
                    data = {file: base64.b64decode(text) for file, text in secret["data"].items()}
                    mount_secret(mount, data)

    def _run(self, pod: Pod) -> None:
        for other in [other for other in self._leaving if other.address == pod.address]:
            assert other.has_ended.wait(_PREDECESSOR_S), f"{other.name} does not end"
        self.starts.append(pod.name)
        pod.start()

    def _report(self, name: str, item: Any, is_ready: bool) -> None:
        status = "True" if is_ready else "False"
        now = {c["type"]: c["status"] for c in item["status"].get("conditions", ())}
        if now.get("Ready") != status:
            conditions = [{"type": "Ready", "status": status}, {"type": "PodScheduled", "status": "True"}]
            self._patch(name, {"phase": "Running", "conditions": conditions, "containerStatuses": []})

    def _patch(self, name: str, status: Any) -> None:
        with contextlib.suppress(ClusterError):  # it is gone
            self._target.kubelet.merge("Pod", name, {"status": status}, "status")


@contextlib.contextmanager
def service_here(target: Target, kubelet: Kubelet, name: str, port: int) -> Iterator[str]:
    """The address of a Service: each connection goes to a ready pod, or is closed if there is none."""
    server = target.server
    assert server is not None

    def choose() -> Endpoint | None:
        there = kubelet.services().get(name)
        return None if there is None else kubelet.endpoint(there["spec"]["selector"], port)

    with balancer(choose) as address:
        yield address
