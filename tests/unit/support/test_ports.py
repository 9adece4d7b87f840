"""Ports and loopback addresses of test runs that are on one machine at the same time."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

import pytest

from tests.support import ports
from tests.support.loopback import loopback_address
from tests.support.paths import ROOT
from tests.support.ports import Registry, free_port

OTHER_RUN = """
from tests.support.loopback import loopback_address
from tests.support.ports import free_port
print(loopback_address(), *(free_port() for _ in range(50)), flush=True)
input()
"""


@pytest.fixture
def other_run() -> Iterator[subprocess.Popen[str]]:
    """A process of another run, that has looked for an address and for ports and goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield process


def test_a_port_is_held_until_the_process_that_looked_for_it_ends(other_run: subprocess.Popen[str]) -> None:
    assert other_run.stdout is not None
    _, *theirs = other_run.stdout.readline().split()
    registry = Registry("ports")
    assert len(set(theirs)) == 50
    assert not any(registry.hold(int(port)) for port in theirs)
    other_run.communicate("\n")
    assert all(registry.hold(int(port)) for port in theirs)


def test_no_two_runs_have_an_address_in_common(other_run: subprocess.Popen[str]) -> None:
    assert other_run.stdout is not None
    theirs = other_run.stdout.readline().split()[0]
    assert loopback_address().rpartition(".")[0] != theirs.rpartition(".")[0]
    other_run.communicate("\n")


def test_a_port_that_something_listens_on_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(ports, "_PORTS", range(port, port + 1))
    monkeypatch.setattr(ports, "_held", deque())
    with socket.create_server(("127.0.0.1", port)), pytest.raises(AssertionError, match="are in use"):
        free_port()
    assert free_port() == port


def test_the_first_ports_are_returned_again_once_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_OWN_PORTS", 3)
    monkeypatch.setattr(ports, "_held", deque())
    first, second, third = (free_port() for _ in range(3))
    with socket.create_server(("127.0.0.1", first)):
        assert [free_port() for _ in range(4)] == [second, third, second, third]
