"""A plan served with TLS whose worker edge-1 is reached, and reaches others, only through a relay and its tunnel."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean_agent import Role
from jellybean_solver.model.plan_document import Document
from tests.support.ended_processes import end_processes
from tests.support.ports import free_port
from tests.support.tls_run import WORKFLOW, TlsRun

EDGE = "edge-1"
DEPLOYMENT = "blue"
PEERS_HOST = "127.0.0.2"  # that the tunnel's ports for the edge worker's peers are on


@dataclass
class RelayedRun(TlsRun):
    """Processes of a plan, with `relay` and `tunnel` beside gateway and agents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.listen = f"127.0.0.1:{free_port()}"
        self.health = {name: free_port() for name in ("relay", "tunnel")}
        self.metrics = {name: free_port() for name in ("relay", "tunnel")}
        others = {name: address for name, address in self.addresses.items() if name != EDGE}
        edge_port = free_port()
        local = {name: free_port() for name in others}
        for file, content in (
            ("peers", {**others, EDGE: f"127.0.0.1:{edge_port}"}),
            (
                "edge-peers",
                {**{name: f"{PEERS_HOST}:{port}" for name, port in local.items()}, EDGE: self.addresses[EDGE]},
            ),
            ("relay-workers", {str(edge_port): EDGE}),
            ("relay-targets", others),
            ("tunnel-peers", {str(port): name for name, port in local.items()}),
        ):
            (self.root / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")

    def peers_file(self, name: str) -> Path:
        return self.root / ("edge-peers.json" if name == EDGE else "peers.json")

    def start(self, name: str) -> subprocess.Popen[bytes]:
        if name == "relay":
            own = (f"--tls={self.certificate(Role.RELAY, 'relay')}", f"--deployment={DEPLOYMENT}")
            return self._run(name, *own, *self._files("workers", "targets"))
        if name == "tunnel":
            return self.start_tunnel(self.certificate(Role.AGENT, EDGE))
        return super().start(name)

    def start_tunnel(self, folder: Path, deployment: str = DEPLOYMENT) -> subprocess.Popen[bytes]:
        """Start the tunnel with the certificate in a folder."""
        own = (f"--relay={self.listen}", f"--agent={self.addresses[EDGE]}", f"--peers={self.root}/tunnel-peers.json")
        own += (f"--bind={PEERS_HOST}", f"--deployment={deployment}")
        return self._run("tunnel", *own, f"--workflow={WORKFLOW}", f"--worker={EDGE}", f"--tls={folder}")

    def kill(self, name: str) -> None:
        """Kill a process, as `kill -9` does."""
        self.processes[name].kill()
        self.processes[name].wait()

    def is_healthy(self, name: str) -> bool:
        """True if the health port of relay or tunnel says that it serves."""
        with grpc.insecure_channel(f"127.0.0.1:{self.health[name]}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5.0)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(encoding="utf-8")

    def _files(self, *kinds: str) -> list[str]:
        files = [f"--{kind}={self.root}/relay-{kind}.json" for kind in kinds]
        return [*files, f"--listen={self.listen}"]

    def _run(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        ports = ("--drain-s=0.3", f"--health-port={self.health[name]}", f"--metrics-port={self.metrics[name]}")
        with (self.root / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", f"jellybean_agent.{name}", *options, *ports]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        return self.processes[name]


@contextlib.contextmanager
def relayed_run(root: Path, document: Document, workers: tuple[str, ...]) -> Iterator[RelayedRun]:
    """A run that is ready; its processes end with it."""
    run = RelayedRun(root, document, workers)
    try:
        for name in ("relay", "tunnel", *run.addresses):
            run.start(name)
        run.await_ready()
        yield run
    finally:
        end_processes(run.processes.values())
