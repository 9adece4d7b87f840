"""Two gateways with real agents and one ledger: each request is written down once, and workers are billed once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from jellybean.ledger import By, Ledger, all_events, cost
from jellybean_agent import Role
from jellybean_solver import Link
from tests.support.gateways_run import gateways_run
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import chain

pytestmark = pytest.mark.slow

RATE_PER_S, SECONDS = 20.0, 4.0
USD_PER_GIB, WORKER_USD_PER_H, MESSAGE_BYTES = 1e5, 0.1, 16.0


def test_what_two_gateways_serve_is_billed_once(tmp_path: Path) -> None:
    """One is killed and started again in its place, the other ends in order."""
    url = str(tmp_path / "ledger.db")
    options = (
        *(f"--ledger={url}", "--ledger-deployment=shop/tiny-gateway", "--ledger-run=run-{number}"),
        *(f"--live={tmp_path}/ledger-{{number}}.live", "--no-emulation"),
    )
    document = chain(tmp_path, links=[Link("edge", "cloud", USD_PER_GIB, None, 0.0)])
    began_s = time.monotonic()
    with gateways_run(tmp_path, document, ("edge-1", "cloud-1"), gateway_options=options) as run:
        tls = run.certificate(Role.CLIENT, "bob")
        loads = [SteadyLoad(f"127.0.0.1:{port}", RATE_PER_S, factor=6.0, tls=tls) for port in run.ports]
        with loads[0], loads[1]:
            time.sleep(SECONDS)
        for load in loads:
            load.check()
        os.kill(run.processes["gateway-0"].pid, signal.SIGKILL)
        run.processes["gateway-0"].wait()
        run.start_gateway(0)
        run.await_gateway(0)
        with SteadyLoad(f"127.0.0.1:{run.ports[0]}", RATE_PER_S, factor=6.0, tls=tls) as again:
            time.sleep(1.0)
        again.check()
        for number in (1, 0):
            run.processes[f"gateway-{number}"].terminate()
            assert run.processes[f"gateway-{number}"].wait(30) == 0
        seconds = time.monotonic() - began_s
    answered = sum(load.sent for load in (*loads, again))
    traffic_usd = answered * MESSAGE_BYTES / 2**30 * USD_PER_GIB
    most_usd = 2 * WORKER_USD_PER_H / 3600 * seconds
    ledger = Ledger(url)
    try:
        found = {by: cost(ledger, by) for by in By}
        kinds = sorted(event.kind.value for event in all_events(ledger))
    finally:
        ledger.close()
    (line,) = found[By.WORKFLOW]
    assert line.done == answered
    assert found[By.OPERATOR][0].done == answered  # by the workers' counters
    assert sum(one.usd for one in found[By.LINK] if one.name) == pytest.approx(traffic_usd, rel=1e-9)
    workers_usd = sum(one.usd for one in found[By.WORKER]) - traffic_usd
    assert 0.5 * most_usd < workers_usd < most_usd, "once: billed by both it would be twice as much"
    assert {one.name for one in found[By.CLIENT]} <= {"bob", ""}
    for by, lines in found.items():
        assert sum(one.usd for one in lines) == pytest.approx(line.usd, rel=1e-9), by
    assert kinds == ["down", "restart", "up"]
