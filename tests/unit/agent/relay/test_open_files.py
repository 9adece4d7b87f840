"""A relay of many workers and a limit on open files, as a process."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jellybean_agent import Role
from tests.support.ports import free_port
from tests.support.relayed import RelayNet
from tests.support.skips import Absent
from tests.support.waiting import wait_until

LOW, WORKERS = 128, 200
NEEDED = 2 * WORKERS + 100  # open files: a listener and a connection of each worker, and the process's own


@contextlib.contextmanager
def relay(root: Path, ulimit: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int], Path]]:
    """A relay that is ready or has ended, its workers' ports and its log. `ulimit`: options of the shell's command."""
    ports = {free_port(): f"edge-{number}" for number in range(WORKERS)}
    workers, log = root / "workers.json", root / "relay.log"
    workers.write_text(json.dumps(ports), encoding="utf-8")
    certificate = RelayNet(root).folder(Role.RELAY, "relay")
    command = ["/bin/sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh", sys.executable, "-m", "jellybean_agent.relay"]
    command += [f"--listen=127.0.0.1:{free_port()}", f"--workers={workers}", f"--tls={certificate}", "--drain-s=0"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            wait_until(lambda: process.poll() is not None or "relay ready" in log.read_text(encoding="utf-8"))
            yield process, list(ports), log
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_relay_raises_a_soft_limit_that_is_too_low_for_its_workers(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < NEEDED:
        pytest.skip(f"{Absent.OPEN_FILES}: {hard}")
    with relay(tmp_path, f"-S -n {LOW}") as (process, ports, log), contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30.0))
        wait_until(lambda: f"relay may have {hard} files" in log.read_text(encoding="utf-8"))
    assert process.returncode == 0


@pytest.mark.slow
def test_a_relay_that_may_not_listen_on_all_ports_says_so_and_ends(tmp_path: Path) -> None:
    with relay(tmp_path, f"-n {LOW}") as (process, _, log):
        assert process.wait(timeout=60.0) == 2
    text = log.read_text(encoding="utf-8")
    assert "cannot listen on 127.0.0.1:" in text
    assert "too many files are open (see ulimit -n)" in text
