"""A kubelet for the mock API server: it runs pods as processes here, and says of each what a real one would.

A pod waits while its image is not known, or a volume cannot be mounted; it is ready by its readiness probe; a deleted
one gets the time to drain. What a Service does is here too: connections go to a ready pod that its selector selects.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jellybean_k8s.cluster.cluster import ClusterError
from tests.integration.k8s.pods_here import Pod, mount_secret
from tests.k8s_target import Target
from tests.kubelet_mounts import unmounted
from tests.support.balancer import balancer
from tests.support.ports import free_port

_PORTS = (7001, 7002, 8001, 9090)
_POLL_S = 0.1


class Kubelet:
    """Runs the pods of a target. `images`: those that can be pulled; `starts`: names of the pods that were started."""

    def __init__(self, target: Target, root: Path, images: set[str]) -> None:
        assert target.server is not None
        self._target, self._api, self._root, self.images = target, target.server.api, root, images
        self.image_volumes: dict[str, Path] = {}  # image -> folder with what it has
        self._ports: dict[str, dict[int, int]] = {}  # by the name under which others know a pod
        self._running: dict[str, Pod] = {}  # by uid
        self._leaving: list[Pod] = []
        self._mounted: dict[Path, str] = {}  # folder of a pod -> version of its Secret
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
        for pod in self._running.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait()
        for thread in self._threads:
            thread.join(30.0)

    def port(self, selector: dict[str, str], port: int) -> int | None:
        """Where a ready pod that a selector selects listens here, any of several; None if none does."""
        found = []
        for item in self._pods().values():
            labels = item["metadata"]["labels"]
            is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", ()))
            if is_ready and selector.items() <= labels.items() and item["metadata"]["uid"] in self._running:
                found.append(self._running[item["metadata"]["uid"]].ports[port])
        return random.choice(found) if found else None

    def services(self) -> dict[str, Any]:
        return self._objects("services")

    def kill(self, name: str) -> None:
        """Kill the process of a pod, as when its node is lost: its readiness probe fails from then on."""
        (pod,) = (pod for pod in self._running.values() if pod.name == name)
        assert pod.process is not None
        pod.process.kill()
        pod.process.wait()

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
                self._in_thread(self._end, self._running.pop(uid))
            for name, item in pods.items():
                pod = self._running.get(item["metadata"]["uid"])
                if pod is None:
                    self._start(name, item)
                elif pod.process is not None:
                    self._mount_certificates(item, pod)
                    self._report(name, item, pod.probe("readinessProbe"))

    def _in_thread(self, work: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _start(self, name: str, item: Any) -> None:
        containers = [*item["spec"]["initContainers"], *item["spec"]["containers"]]
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
        is_alone = not any("--reply-address=" in text for text in item["spec"]["containers"][0]["args"])
        known_as = name.rpartition("-")[0] if is_alone and not is_worker else name
        folder = self._root / f"{name}-{item['metadata']['uid'][:8]}"
        pod = Pod(name, folder, item["spec"], number, self._ports_of(known_as))
        for mount in ("etc-jellybean", "etc-jellybean-tls", "run-jellybean", "models"):
            (folder / mount).mkdir(parents=True)
        volumes = {volume["name"]: volume for volume in item["spec"]["volumes"]}
        if image := volumes.get("models", {}).get("image"):
            (folder / "models").rmdir()
            (folder / "models").symlink_to(self.image_volumes[image["reference"]])
        data = dict(self._objects("configmaps")[volumes["files"]["configMap"]["name"]]["data"])
        data["peers.json"] = json.dumps(
            {w: f"127.0.0.1:{self._ports_of(_host(a))[7001]}" for w, a in json.loads(data["peers.json"]).items()}
        )
        for file, text in data.items():
            (folder / "etc-jellybean" / file).write_text(text, encoding="utf-8")
        self._mount_certificates(item, pod)
        return pod

    def _mount_certificates(self, item: Any, pod: Pod) -> None:
        """Mount the Secret of a pod, again when it has changed."""
        (name,) = (v["secret"]["secretName"] for v in item["spec"]["volumes"] if v["name"] == "tls")
        secret = self._objects("secrets")[name]
        if self._mounted.get(pod.folder) != secret["metadata"]["resourceVersion"]:
            self._mounted[pod.folder] = secret["metadata"]["resourceVersion"]
            data = {file: base64.b64decode(text) for file, text in secret["data"].items()}
            mount_secret(pod.folder / "etc-jellybean-tls", data)

    def _ports_of(self, known_as: str) -> dict[int, int]:
        return self._ports.setdefault(known_as, {port: free_port() for port in _PORTS})

    def _run(self, pod: Pod) -> None:
        for one in [one for one in self._leaving if one.ports is pod.ports and one.process is not None]:
            one.process.wait(60.0)  # its address is that of a pod that still drains
        self.starts.append(pod.name)
        log = (pod.folder / "log").open("ab")
        with log:
            for init in pod.spec["initContainers"]:
                subprocess.run(pod.command(init), stdout=log, stderr=log, check=True, timeout=120)
            if not self._stop.is_set():
                pod.process = subprocess.Popen(pod.command(pod.spec["containers"][0]), stdout=log, stderr=log)

    def _end(self, pod: Pod) -> None:
        """PreStop, SIGTERM, and SIGKILL at the end of the grace period."""
        if pod.process is None:
            return
        self._leaving.append(pod)
        container = pod.spec["containers"][0]
        time.sleep(container["lifecycle"]["preStop"]["sleep"]["seconds"])
        pod.process.send_signal(signal.SIGTERM)
        try:
            pod.process.wait(pod.spec["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            pod.process.kill()
            pod.process.wait()

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

    def choose() -> int | None:
        there = kubelet.services().get(name)
        return None if there is None else kubelet.port(there["spec"]["selector"], port)

    with balancer(choose) as address:
        yield address


def _host(address: str) -> str:
    return address.partition(":")[0].partition(".")[0]
