"""Kills processes of a run, and reads what its ledger says."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from jellybean.ledger import By, Ledger, cost, ledger_url
from jellybean.serving import Client, read_state
from tests.support.waiting import wait_until


def kill(directory: Path, client: Client, name: str) -> None:
    """Kill a process, and wait until all are ready again."""
    killed = _pid(directory, name)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: _pid(directory, name) != killed)
    wait_until(lambda: _is_ready(client))


def _pid(directory: Path, name: str) -> int:
    state = read_state(directory)
    assert state is not None
    return next(process.pid for process in state.processes if process.name == name)


def _is_ready(client: Client) -> bool:
    try:
        return client.status().state == "ready"
    except Exception:  # noqa: BLE001 - the gateway is away
        return False


def lines(directory: Path, by: By) -> dict[str, tuple[float, int, int]]:
    """Name -> USD, done, failed."""
    ledger = Ledger(ledger_url(directory))
    found = {line.name: (line.usd, line.done or 0, line.failed or 0) for line in cost(ledger, by)}
    ledger.close()
    return found
