"""Relay and tunnel by their commands, in this process: ready, health, metrics and a drain."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from jellybean.serving import open_authority
from jellybean_agent import Identity, Role
from jellybean_agent.relay.__main__ import main as relay
from jellybean_agent.tunnel.__main__ import main as tunnel
from tests.support.ports import free_port
from tests.support.waiting import wait_until

# Connections that are open at the end close with the process, which does not end here.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _process_settings() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    root.handlers[:] = handlers
    root.setLevel(level)


def health_of(port: int) -> int | None:
    """The health that a port tells; None while it does not answer."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        try:
            return int(check(health_pb2.HealthCheckRequest(), timeout=5).status)
        except grpc.RpcError:
            return None


def run(main: Callable[[list[str]], int], options: list[str], use: Callable[[int, str], object]) -> int:
    """The status of a command that ends at SIGTERM once `use` has got its health port and the address of metrics."""
    health, metrics = free_port(), free_port()

    has_ended = threading.Event()

    def used() -> None:
        try:
            use(health, f"http://127.0.0.1:{metrics}/metrics")
        finally:
            if not has_ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=used)
    thread.start()
    status = main([*options, f"--health-port={health}", f"--metrics-port={metrics}", "--drain-s=0.5"])
    has_ended.set()
    thread.join()
    return status


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_a_relay_and_a_tunnel_run_until_sigterm(tmp_path: Path, default_sigterm: None) -> None:
    authority = open_authority(tmp_path / "ca")
    authority.equip(tmp_path / "relay", Identity("tiny", Role.RELAY, "relay"))
    authority.equip(tmp_path / "edge-1", Identity("tiny", Role.AGENT, "edge-1"))
    (tmp_path / "workers.json").write_text(json.dumps({str(free_port()): "edge-1"}), encoding="utf-8")
    listen = f"127.0.0.1:{free_port()}"
    found: dict[str, Any] = {}

    def use_relay(health: int, metrics: str) -> None:
        wait_until(lambda: health_of(health) == health_pb2.HealthCheckResponse.SERVING)
        found["relay"] = text(metrics)

    def use_tunnel(health: int, metrics: str) -> None:
        wait_until(lambda: health_of(health) is not None)
        found["health"] = health_of(health)
        found["tunnel"] = text(metrics)

    options = [f"--listen={listen}", f"--workers={tmp_path}/workers.json", f"--tls={tmp_path}/relay"]
    assert run(relay, options, use_relay) == 0
    assert 'jellybean_relay_offers{worker="edge-1"} 0.0' in found["relay"]
    assert 'jellybean_certificate_lifetime_seconds{process="relay"}' in found["relay"]
    options = [f"--relay={listen}", "--worker=edge-1", "--agent=127.0.0.1:1", f"--tls={tmp_path}/edge-1"]
    assert run(tunnel, options, use_tunnel) == 0
    assert found["health"] == health_pb2.HealthCheckResponse.NOT_SERVING, "it has no offer"
    assert 'jellybean_tunnel_offers{worker="edge-1"} 0.0' in found["tunnel"]


def test_a_relay_whose_health_port_is_taken_ends(
    tmp_path: Path, default_sigterm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    open_authority(tmp_path / "ca").equip(tmp_path / "relay", Identity("tiny", Role.RELAY, "relay"))
    (tmp_path / "workers.json").write_text("{}", encoding="utf-8")
    port = free_port()
    options = [f"--listen=127.0.0.1:{port}", f"--workers={tmp_path}/workers.json", f"--tls={tmp_path}/relay"]
    assert relay([*options, "--metrics-host=203.0.113.1", "--metrics-port=9"]) == 2
    assert "jellybean-relay: cannot serve metrics on 203.0.113.1:9: " in capsys.readouterr().err
