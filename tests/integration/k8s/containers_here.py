"""Runs a container of a rendered pod as a local process: its ports stay, its hosts and paths become local ones.

A pod has a loopback address of its own. An option that names a place of the pod itself gets that address; a place
that others provide (a URL of models, a relay elsewhere) stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.ports import free_port

_PROGRAMS = {"python": [sys.executable], "jellybean-agent": [sys.executable, "-P", "-m", "jellybean_agent"]}
_OWN_PLACES = {"--listen", "--host", "--reply-address", "--metrics-host", "--bind", "--agent"}
_OWN_HOSTS = {"[::]", "0.0.0.0", "127.0.0.1", "localhost"}
_PROBE_S = 20.0


@dataclass(frozen=True)
class Sandbox:
    """What the containers of a pod share. `fields`: values of the downward API, by field path.

    A health port is open on all interfaces, and only the kubelet asks it: a free port of this machine is in its place.
    """

    folder: Path
    address: str
    fields: Mapping[str, str]
    health_ports: defaultdict[int, int] = field(default_factory=lambda: defaultdict(free_port))

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name


class Container:
    """A container, which writes its log to `log`."""

    def __init__(self, spec: Any, sandbox: Sandbox) -> None:
        self.spec, self._sandbox = spec, sandbox
        self.name: str = spec["name"]
        self.log = sandbox.folder / f"{self.name}.log"
        self.is_sidecar: bool = spec.get("restartPolicy") == "Always"  # of an init container
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            environment = os.environ | self._variables()
            self.process = subprocess.Popen(self.command(), env=environment, stdout=log, stderr=log)

    def terminate_at(self, time_s: float) -> None:
        """SIGTERM at a time of the monotonic clock, or once the preStop hook that begins then is over."""
        hook = self.spec.get("lifecycle", {}).get("preStop")
        process = self._running_at(time_s + (hook["sleep"]["seconds"] if hook else 0.0))
        if process is not None:
            process.terminate()

    def kill_at(self, time_s: float) -> None:
        """Wait for the end of the process; SIGKILL at a time of the monotonic clock."""
        process = self._running_at(time_s)
        if process is not None:
            process.kill()
            process.wait()

    def _running_at(self, time_s: float) -> subprocess.Popen[bytes] | None:
        """The process, if it still runs at a time of the monotonic clock; waits until then."""
        if self.process is None:
            return None
        try:
            self.process.wait(max(0.0, time_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return self.process
        return None

    def is_ready(self) -> bool:
        return self.is_running and self.probe("readinessProbe")

    def probe(self, kind: str) -> bool:
        """Result of a probe, as the kubelet would see it; True if the container has no such probe."""
        if kind not in self.spec:
            return True
        called = self.spec[kind]["grpc"]
        port = self._sandbox.health_ports.get(called["port"], called["port"])
        with grpc.insecure_channel(f"{self._sandbox.address}:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            try:
                request = health_pb2.HealthCheckRequest(service=called.get("service", ""))
                return bool(stub.Check(request, timeout=_PROBE_S).status == health_pb2.HealthCheckResponse.SERVING)
            except grpc.RpcError:
                return False

    def command(self) -> list[str]:
        """The command line, as it runs here."""
        arguments = [*self.spec["command"][1:], *self.spec.get("args", ())]
        return [*_PROGRAMS[self.spec["command"][0]], *(self._local_argument(text) for text in arguments)]

    def _local_argument(self, text: str) -> str:
        text = _expanded(text, self._variables())
        option, _, value = text.partition("=")
        if option in _OWN_PLACES:
            host, colon, port = re.fullmatch(r"(\[.*\]|[^:]*)(:?)(.*)", value).groups()
            return f"{option}={self._sandbox.address if host in _OWN_HOSTS else host}{colon}{port}"
        if option == "--health-port":
            return f"{option}={self._sandbox.health_ports[int(value)]}"
        for mount in self.spec.get("volumeMounts", ()):
            path = rf"(^|=){re.escape(mount['mountPath'])}(?=/|$)"
            if match := re.search(path, text):
                return f"{text[: match.end(1)]}{self._sandbox.volume(mount['name'])}{text[match.end() :]}"
        return text

    def _variables(self) -> dict[str, str]:
        """The container's variables: literal values and fields of the pod; Secrets are not read."""
        found: dict[str, str] = {}
        for item in self.spec.get("env", ()):
            if "value" in item:
                found[item["name"]] = _expanded(item["value"], found)
            elif path := item["valueFrom"].get("fieldRef", {}).get("fieldPath"):
                found[item["name"]] = self._sandbox.fields[path]
        return found


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    return text
