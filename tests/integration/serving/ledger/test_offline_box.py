"""A box that joined is cut off from its gateway, and killed meanwhile: the ledger gets all that it did, once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jellybean.ledger import By, Ledger, all_events, cost
from jellybean.serving import make_token
from jellybean_agent import Identity, Role
from jellybean_solver import Link as PlannedLink
from tests.support.cut_link import Link
from tests.support.ports import free_port
from tests.support.tiny_models import chain
from tests.support.tls_run import WORKFLOW, TlsRun

pytestmark = pytest.mark.slow

WORKERS = ("edge-1", "cloud-1")
USD_PER_GIB, MESSAGE_BYTES = 1e6, 16
ONES = {"x": np.ones((1, 4), np.float32)}


class FarRun(TlsRun):
    """A gateway with a ledger, and boxes that join it over a link that can be cut."""

    def __post_init__(self) -> None:
        self.ports = {name: free_port() for name in ("", *self.workers)}
        self.link, self.enrol = Link(), f"127.0.0.1:{free_port()}"
        super().__post_init__()
        self.addresses = {name: f"127.0.0.1:{self.link.through(port)}" for name, port in self.ports.items()}
        peers = ", ".join(f'"{name}": "{address}"' for name, address in self.addresses.items())
        (self.root / "peers.json").write_text(f"{{{peers}}}", encoding="utf-8")

    @property
    def gateway(self) -> str:
        """Clients are beside the gateway."""
        return f"127.0.0.1:{self.ports['']}"

    def start_gateway(self) -> None:
        own = [f"--tls={self.certificate(Role.GATEWAY)}", f"--links={self.root}/links", f"--enrol={self.enrol}"]
        own += [f"--ca={self.root}/ca", f"--tokens={self.root}/tokens", f"--root={self.root}", "--no-emulation"]
        own += [f"--plan={self.root}/plan.json", f"--peers={self.root}/peers.json", f"--listen={self.gateway}"]
        own += [f"--ledger={self.root}/ledger.db", f"--live={self.root}/ledger.live", "--ledger-run=run"]
        self._spawn("", ["jellybean.serving.gateway_main", *own])

    def start_box(self, worker: str, *more: str) -> None:
        own = [f"--join={self.enrol}", f"--state={self.state(worker)}", f"--listen=127.0.0.1:{self.ports[worker]}"]
        self._spawn(worker, ["jellybean_agent", *own, *more])

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.root / f"{name or 'gateway'}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([sys.executable, "-P", "-m", *command], stdout=log, stderr=log)

    def state(self, worker: str) -> Path:
        return self.root / "boxes" / worker

    def token(self, worker: str) -> str:
        return str(
            make_token(self.root / "tokens", self.authority, Identity(WORKFLOW, Role.AGENT, worker), life_s=600.0)
        )

    def kill(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, times: int) -> None:
        with self.client() as client:
            for _ in range(times):
                assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FarRun]:
    document = chain(tmp_path, links=[PlannedLink("edge", "cloud", USD_PER_GIB, None, 0.001)])
    found = FarRun(tmp_path, document, WORKERS)
    try:
        yield found
    finally:
        found.link.heal()
        for name in sorted(found.processes, reverse=True):
            found.stop(name)
        found.link.close()


def test_a_box_that_is_cut_off_and_killed_reports_all_once(run: FarRun) -> None:
    run.start_gateway()
    for worker in WORKERS:
        with contextlib.suppress(OSError):
            run.start_box(worker, f"--token={run.token(worker)}")
    run.await_ready()
    run.ask(20)
    assert list(run.state("edge-1").glob("counters-*"))  # without being asked for
    run.ask(15)  # that the gateway has not read of the boxes yet
    run.link.cut()
    run.kill("edge-1")
    run.start_box("edge-1")  # it cannot reach the gateway, and asks again and again
    time.sleep(1.0)
    run.kill("edge-1")
    run.start_box("edge-1")
    run.link.heal()
    run.await_ready()
    run.ask(10)
    run.kill("")  # the gateway is away, and what it had not read stays at the boxes
    run.kill("cloud-1")
    run.start_box("cloud-1")
    run.start_gateway()
    run.await_ready()
    run.ask(5)
    run.stop("")  # in order: the last interval is written
    ledger = Ledger(str(run.root / "ledger.db"))
    by_operator = {line.name: (line.done, line.failed) for line in cost(ledger, By.OPERATOR) if line.name != "x"}
    assert by_operator == {"double": (50, 0), "triple": (50, 0)}
    by_worker = {line.name: line.done for line in cost(ledger, By.WORKER) if line.name}
    assert by_worker == {"edge-1": 50, "cloud-1": 50}
    ((link),) = [line for line in cost(ledger, By.LINK) if line.name == "edge -> cloud"]
    assert link.traffic_usd == pytest.approx(50 * MESSAGE_BYTES / 2**30 * USD_PER_GIB)
    assert sum(line.done or 0 for line in cost(ledger, By.CLIENT)) == 50
    assert [event.kind.value for event in all_events(ledger)] == ["up", "restart", "down"]
    ledger.close()
