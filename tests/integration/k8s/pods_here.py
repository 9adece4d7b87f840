"""Runs rendered pods as local processes, by their containers' commands with paths and addresses replaced.

What a kubelet would do is done here: mount volumes, number pods, run init containers, ask probes, send SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean.serving.enrolment.authority import LIFE_S, Authority, open_authority
from jellybean_agent.security.identity import Identity, Role
from tests.support.ports import free_port

_PORTS = {"--listen": 7001, "--reply-address": 7001, "--port": 8001, "--health-port": 7002, "--metrics-port": 9090}


@dataclass
class Pod:
    """One pod: `name` as in the cluster, container commands, and local ports in place of its own."""

    name: str
    folder: Path
    spec: Any
    number: str
    ports: dict[int, int]
    process: subprocess.Popen[bytes] | None = None
    identity: Identity | None = None

    def command(self, container: Any) -> list[str]:
        """The container's command line, as it runs here."""
        names = {"python": [sys.executable], "jellybean-agent": [sys.executable, "-P", "-m", "jellybean_agent"]}
        head, *rest = container["command"]
        return [*names[head], *(self._here(text) for text in [*rest, *container["args"]])]

    def _here(self, text: str) -> str:
        text = text.replace("$(WORKER_NUMBER)", self.number)
        for host in ("0.0.0.0", "$(REPLY_HOST)"):
            text = text.replace(host, "127.0.0.1")
        option, _, value = text.partition("=")
        if option in _PORTS:
            return f"{option}={value.replace(str(_PORTS[option]), str(self.ports[_PORTS[option]]))}"
        for mount in ("/etc/jellybean-tls", "/etc/jellybean", "/run/jellybean", "/models"):
            if text.startswith(mount) or f"={mount}" in text:
                return text.replace(mount, str(self.folder / mount.strip("/").replace("/", "-")), 1)
        return text

    def probe(self, kind: str) -> bool:
        """Result of a probe, as the kubelet would see it."""
        asked = self.spec["containers"][0][kind]["grpc"]
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[asked['port']]}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            try:
                request = health_pb2.HealthCheckRequest(service=asked["service"])
                return bool(stub.Check(request, timeout=20).status == health_pb2.HealthCheckResponse.SERVING)
            except grpc.RpcError:
                return False


@dataclass
class Cluster:
    """All pods of rendered objects, as local processes."""

    root: Path
    workflow: str
    objects: Sequence[Any]
    pods: list[Pod] = field(default_factory=list)

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
        ports = {port: free_port() for port in _PORTS.values()}
        self.pods.append(Pod(name, self.root / name, item["spec"]["template"]["spec"], number, ports))

    def _mount(self) -> None:
        data = next(item["data"] for item in self.objects if item["kind"] == "ConfigMap")
        ports = {pod.name: pod.ports[7001] for pod in self.pods}
        book = json.loads(data["peers.json"])
        files = data | {
            "peers.json": json.dumps({w: f"127.0.0.1:{ports[a.split('.')[0].split(':')[0]]}" for w, a in book.items()})
        }
        names = {address.split(".")[0]: worker for worker, address in book.items() if worker}
        for pod in self.pods:
            for mount in ("etc-jellybean", "etc-jellybean-tls", "run-jellybean", "models"):
                (pod.folder / mount).mkdir(parents=True)
            for name, text in files.items():
                (pod.folder / "etc-jellybean" / name).write_text(text, encoding="utf-8")
            worker = names.get(pod.name)
            own = (Role.GATEWAY, "") if worker is None else (Role.AGENT, worker)
            pod.identity = Identity(self.workflow, *own)
            self.certify(pod)

    def certify(self, pod: Pod, life_s: float = LIFE_S) -> None:
        """Mount a new certificate as a kubelet does: files in a new folder, to which one link is moved at once."""
        assert pod.identity is not None
        made, secret = self.root / "made" / pod.name, pod.folder / "etc-jellybean-tls"
        self.authority.equip(made, pod.identity, life_s=life_s)
        name = pod.number or "tls"
        named = (("ca.crt", "ca.crt"), ("tls.crt", f"{name}.crt"), ("tls.key", f"{name}.key"))
        mount_secret(secret, {target: (made / source).read_bytes() for source, target in named})

    def client_certificate(self) -> Path:
        """Folder of a client's certificate, written once: others may be reading it."""
        folder = self.root / "client"
        if not folder.exists():
            self.authority.equip(folder, Identity(self.workflow, Role.CLIENT, "alice"))
        return folder

    def start(self, pod: Pod) -> None:
        """Run the init containers to completion, then the container."""
        log = (pod.folder / "log").open("ab")
        with log:
            for init in pod.spec["initContainers"]:
                subprocess.run(pod.command(init), stdout=log, stderr=log, check=True, timeout=120)
            pod.process = subprocess.Popen(pod.command(pod.spec["containers"][0]), stdout=log, stderr=log)


def mount_secret(folder: Path, files: Mapping[str, bytes]) -> None:
    """Mount a Secret as a kubelet does: its files in a new folder, to which one link is moved at once."""
    version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for name, content in files.items():
        (version / name).write_bytes(content)
        (version / name).chmod(0o440)  # for the pod's group
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))
    before = (folder / "..data").resolve()
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    if before.name != "..data":
        shutil.rmtree(before)


@contextlib.contextmanager
def cluster_here(root: Path, workflow: str, objects: Sequence[Any]) -> Iterator[Cluster]:
    """Pods that end with the test."""
    cluster = Cluster(root, workflow, objects)
    try:
        yield cluster
    finally:
        started = [pod.process for pod in cluster.pods if pod.process is not None]
        for process in started:
            process.kill()
        for process in started:
            process.wait()
