"""A plan served over TCP with mutual TLS, without the launcher: a gateway and agents as on machines of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.serving import Authority, Client, RequestError, open_authority
from jellybean_agent import Identity, Role
from jellybean_solver.model.plan_document import Document
from tests.support.ended_processes import end_processes
from tests.support.ports import free_port

WORKFLOW = "tiny"  # as serving_models calls its plans


@dataclass
class TlsRun:
    """Processes of a plan, their addresses and the authority that they believe."""

    root: Path
    document: Document
    workers: tuple[str, ...]
    renew_s: float = 300.0
    host: str = "127.0.0.1"  # of all addresses, as they are written
    has_http: bool = False
    agent_options: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)  # worker -> another module than the agent's
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.authority: Authority = open_authority(self.root / "ca")
        self.addresses = {name: f"{self.host}:{free_port()}" for name in ("", *self.workers)}
        self.http_port = free_port() if self.has_http else 0
        (self.root / "plan.json").write_text(json.dumps(self.document), encoding="utf-8")
        (self.root / "peers.json").write_text(json.dumps(self.addresses), encoding="utf-8")

    @property
    def gateway(self) -> str:
        return self.addresses[""]

    def certificate(self, role: Role, name: str = "", workflow: str = WORKFLOW, **more: object) -> Path:
        """A folder with a certificate, made or renewed."""
        folder = self.root / "certs" / workflow / role.value / (name or "gateway")
        hosts = ("127.0.0.1",) if role is Role.GATEWAY else ()
        self.authority.equip(folder, Identity(workflow, role, name), hosts=hosts, **more)
        return folder

    def renew(self) -> None:
        for name in self.addresses:
            self.certificate(Role.AGENT if name else Role.GATEWAY, name)

    def peers_file(self, name: str) -> Path:
        """The file with the addresses of all processes as the process `name` reaches them."""
        return self.root / "peers.json"

    def start(self, name: str) -> subprocess.Popen[bytes]:
        common = [f"--plan={self.root / 'plan.json'}", f"--peers={self.peers_file(name)}", f"--renew-s={self.renew_s}"]
        if name:
            module = self.modules.get(name, "jellybean_agent")
            own = [f"--worker={name}", f"--listen={self.addresses[name]}"]
            own += [f"--root={self.root}", f"--links={self.root}/links", f"--tls={self.certificate(Role.AGENT, name)}"]
            own += self.agent_options
        else:
            module, own = "jellybean.serving.gateway_main", [f"--tls={self.certificate(Role.GATEWAY)}"]
            own += [f"--links={self.root}/links", f"--http-port={self.http_port}"]
        log = (self.root / f"{name or 'gateway'}.log").open("ab")
        with log:
            command = [sys.executable, "-P", "-m", module, *common, *own]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        return self.processes[name]

    def client(self, role: Role = Role.CLIENT, name: str = "alice") -> Client:
        return Client(self.gateway, tls=self.certificate(role, name))

    def await_ready(self, timeout_s: float = 120.0) -> None:
        until, reason = time.monotonic() + timeout_s, ""
        with self.client() as client:
            while time.monotonic() < until:
                dead = {name: process.returncode for name, process in self.processes.items() if process.poll()}
                assert not dead, [(self.root / f"{name or 'gateway'}.log").read_text(encoding="utf-8") for name in dead]
                try:
                    status = client.status()
                    if status.state == "ready":
                        return
                    reason = f"{dict(status.workers)} {dict(status.reasons)}"
                except RequestError as error:
                    reason = str(error)
                time.sleep(0.05)
        raise AssertionError(reason)


@contextlib.contextmanager
def tls_run(root: Path, document: Document, workers: tuple[str, ...], **more: Any) -> Iterator[TlsRun]:
    """A run that is ready; its processes end with it."""
    run = TlsRun(root, document, workers, **more)
    try:
        for name in run.addresses:
            run.start(name)
        run.await_ready()
        yield run
    finally:
        end_processes(run.processes.values())
