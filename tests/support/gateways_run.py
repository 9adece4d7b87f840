"""A plan served over mutual TLS by several gateways beside each other, as by the pods of a Deployment."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jellybean.serving import Client, RequestError
from jellybean_agent import Role
from jellybean_solver.model.plan_document import Document
from tests.support.ended_processes import end_processes
from tests.support.ports import free_port
from tests.support.tls_run import TlsRun


@dataclass
class GatewaysRun(TlsRun):
    """Agents, and gateways called 0, 1, ...; nothing listens at the address of the peers file."""

    count: int = 2
    gateway_options: tuple[str, ...] = ()
    ports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ports = [free_port() for _ in range(self.count)]

    def start_gateway(self, number: int) -> subprocess.Popen[bytes]:
        address = f"127.0.0.1:{self.ports[number]}"
        options = [f"--{item}={self.root / item}.json" for item in ("plan", "peers")]
        options += [
            f"--renew-s={self.renew_s}",
            f"--links={self.root}/links",
            f"--tls={self.certificate(Role.GATEWAY)}",
        ]
        options += [f"--listen={address}", f"--reply-address={address}"]
        options += [option.format(number=number) for option in self.gateway_options]
        with (self.root / f"gateway-{number}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "jellybean.serving.gateway_main", *options]
            self.processes[f"gateway-{number}"] = subprocess.Popen(command, stdout=log, stderr=log)
        return self.processes[f"gateway-{number}"]

    def client_of(self, number: int) -> Client:
        """A client of one of the gateways."""
        return Client(f"127.0.0.1:{self.ports[number]}", tls=self.certificate(Role.ADMIN, "alice"))

    def await_gateway(self, number: int, timeout_s: float = 120.0) -> None:
        """Wait until a gateway has all workers."""
        end_s, reason = time.monotonic() + timeout_s, ""
        with self.client_of(number) as client:
            while time.monotonic() < end_s:
                try:
                    status = client.status()
                    if status.state == "ready":
                        return
                    reason = f"{dict(status.workers)} {dict(status.reasons)}"
                except RequestError as error:
                    reason = str(error)
                time.sleep(0.05)
        raise AssertionError(f"{reason}\n{(self.root / f'gateway-{number}.log').read_text(encoding='utf-8')[-2000:]}")


@contextlib.contextmanager
def gateways_run(root: Path, document: Document, workers: tuple[str, ...], **more: object) -> Iterator[GatewaysRun]:
    """A run whose gateways are all ready; its processes end with it."""
    run = GatewaysRun(root, document, workers, **more)  # type: ignore[arg-type]
    try:
        for name in workers:
            run.start(name)
        for number in range(run.count):
            run.start_gateway(number)
        for number in range(run.count):
            run.await_gateway(number)
        yield run
    finally:
        end_processes(run.processes.values())
