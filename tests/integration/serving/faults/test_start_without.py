"""A gateway that is started again while a worker is away serves over the routes without it until it is back."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jellybean.planning import PlanFile
from jellybean.serving import Client, RequestError, Running, read_state
from jellybean.serving.errors import KeptError
from jellybean.serving.run_state import ProcessState
from jellybean_solver import Deliver, to_document
from jellybean_solver.model.plan_document import Document
from tests.support.command_line import jellybean
from tests.support.stopped_process import stopped
from tests.support.tiny_models import chain, make_plan, scale
from tests.support.two_scales import FACTORS, make_two_scales
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SERVERS = ("cloud-1", "cloud-2")


def process_of(running: Running, name: str) -> ProcessState:
    state = read_state(running.directory)
    assert state is not None
    return next(process for process in state.processes if process.name == name)


@contextlib.contextmanager
def away(running: Running, name: str) -> Iterator[None]:
    """Kill a worker, and keep it away while the keeper starts it again and again: its address is taken."""
    keeper, worker = running.state.keeper, process_of(running, name)
    assert keeper is not None
    socket = Path(worker.address.removeprefix("unix:"))
    with stopped(keeper.pid):
        os.kill(worker.pid, signal.SIGKILL)
        socket.unlink(missing_ok=True)
        socket.mkdir()
    yield
    socket.rmdir()


def restart_gateway(running: Running) -> None:
    """Kill the gateway, and wait until the keeper has started another one that answers."""
    before = process_of(running, "gateway").pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: process_of(running, "gateway").pid != before)
    wait_until(lambda: answers(running))


def answers(running: Running) -> bool:
    try:
        with Client.of(running.directory) as client:
            client.status()
    except RequestError:
        return False
    return True


def tripled(client: Client) -> Counter[str]:
    """Requests that each worker has tripled."""
    samples = (s for family in text_string_to_metric_families(client.metrics()) for s in family.samples)
    wanted = [s for s in samples if s.name == "jellybean_requests_total" and s.labels["operator"] == "triple"]
    return Counter({s.labels["worker"]: int(s.value) for s in wanted})


def ask(client: Client, requests: int) -> Counter[str]:
    """Requests one after another, which are all answered; how many each worker has tripled of them."""
    before = tripled(client)
    for number in range(requests):
        answer = client.infer({"x": np.array([[number, 0, 0, 1]], np.float32)}, timeout_s=20.0)
        assert answer["triple"].tolist() == [[6 * number, 0, 0, 6]]
    return tripled(client) - before


def two_routes(root: Path) -> Document:
    """Half of the requests over each of two servers."""
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(root / "models/triple.onnx", 3.0)),
    }
    routes = [(0.5, {"double": "edge-1", "triple": server}) for server in SERVERS]
    return make_plan(root, operators, routes, sources={"x": "edge"})


def test_a_gateway_starts_and_serves_without_a_worker_that_other_routes_replace(tmp_path: Path, start) -> None:
    running = start(tmp_path, two_routes(tmp_path), port=None, insecure=False)
    with Client.of(running.directory) as client:
        assert ask(client, 10) == {"cloud-1": 5, "cloud-2": 5}
    with away(running, "cloud-2"):
        restart_gateway(running)
        with Client.of(running.directory) as client:
            wait_until(lambda: client.status().state == "degraded")
            assert ask(client, 20) == {"cloud-1": 20}
            status = client.status()
            assert dict(status.workers) == {"edge-1": "ready", "cloud-1": "ready", "cloud-2": "starting"}
            assert status.reasons["cloud-2"]
            text = client.metrics()
            assert 'jellybean_gateway_workers{state="starting"} 1.0' in text
            assert 'jellybean_gateway_worker_ready{worker="cloud-2"} 0.0' in text
            assert 'jellybean_gateway_worker_ready{worker="cloud-1"} 1.0' in text
        log = (tmp_path / ".jellybean/logs/gateway.log").read_text(encoding="utf-8")
        assert "serves over the routes whose workers are there; waiting for cloud-2" in log
    with Client.of(running.directory) as client:
        wait_until(lambda: client.status().state == "ready")
        assert ask(client, 10) == {"cloud-1": 5, "cloud-2": 5}


def test_a_gateway_without_any_worker_of_an_operator_is_not_ready_and_names_both(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path), port=None, insecure=False)
    with away(running, "cloud-1"):
        restart_gateway(running)
        with Client.of(running.directory) as client:
            wait_until(lambda: client.status().workers["edge-1"] == "ready")
            told = "1 of 2 workers are ready, waiting for cloud-1; no worker of triple is there"
            with pytest.raises(RequestError, match=told) as refused:
                client.infer({"x": np.ones((1, 4), np.float32)}, timeout_s=5.0)
            assert refused.value.status == "UNAVAILABLE"
            assert client.status().state == "starting"
    with Client.of(running.directory) as client:
        wait_until(lambda: client.status().state == "ready")
        assert ask(client, 1) == {"cloud-1": 1}


def test_a_site_whose_worker_is_away_is_told_so_while_the_others_are_served(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path, sites={"edge": 2}), port=None, insecure=False)
    with away(running, "edge-2/edge-1"):
        restart_gateway(running)
        with Client.of(running.directory) as client:
            wait_until(lambda: client.status().state == "degraded")
            told: list[str] = []
            for _ in range(20):  # of both sites
                try:
                    assert client.infer({"x": np.ones((1, 4), np.float32)})["triple"].tolist() == [[6, 6, 6, 6]]
                except RequestError as error:
                    told.append(f"{error.status}: {error.reason}")
            assert 0 < len(told) < 20
            assert all("UNAVAILABLE" in text and "worker edge-2/edge-1 is starting" in text for text in told)
            assert not any("edge-1/edge-1" in text for text in told)


def test_each_workflow_of_several_is_served_as_soon_as_it_has_a_route_of_its_own(tmp_path: Path, start) -> None:
    folder = make_two_scales(tmp_path / "two")
    infrastructure = (folder / "infrastructure.yaml").read_text(encoding="utf-8")
    kiosk = "  kiosk: {tier: edge, count: 1, price: 0.1 USD/h, speed: 0.1}\n  server:"
    (folder / "infrastructure.yaml").write_text(infrastructure.replace("  server:", kiosk), encoding="utf-8")
    profiles = folder / "workflows/yard/profiles.yaml"
    profiles.write_text(profiles.read_text(encoding="utf-8").replace("{box:", "{kiosk:"), encoding="utf-8")
    jellybean("plan", str(folder))
    running = start(folder, to_document(PlanFile(folder).load().plan), port=None, insecure=False)
    with away(running, "kiosk-1"):
        restart_gateway(running)
        row = np.ones((1, 4), np.float32)
        with Client.of(folder, workflow="shop") as shop, Client.of(folder, workflow="yard") as yard:
            wait_until(lambda: shop.status().state == "ready")
            assert [one.tolist() for one in shop.infer({"x": row}).values()] == [[[FACTORS["shop"]] * 4]]
            with pytest.raises(RequestError, match="waiting for kiosk-1; no worker of first is there") as refused:
                yard.infer({"x": row}, timeout_s=5.0)
            assert refused.value.status == "UNAVAILABLE"
            assert yard.status().state == "starting"
        with Client.of(folder) as whole:
            assert whole.status().state == "degraded"
    with Client.of(folder, workflow="yard") as yard:
        wait_until(lambda: yard.status().state == "ready")
        assert [one.tolist() for one in yard.infer({"x": row}).values()] == [[[FACTORS["yard"]] * 4]]


def test_requests_of_a_site_that_is_away_stay_in_the_spool_until_it_is_there(tmp_path: Path, start) -> None:
    document = chain(tmp_path, sites={"edge": 2}, deliver=Deliver.EVENTUALLY)
    running = start(tmp_path, document, port=None, insecure=False)
    with away(running, "edge-2/edge-1"):
        restart_gateway(running)
        with Client.of(tmp_path) as client:
            wait_until(lambda: client.status().state == "degraded")
            names = [f"request-{number}" for number in range(8)]
            kept: list[str] = []
            for name in names:
                try:
                    client.infer({"x": np.ones((1, 4), np.float32)}, request_id=name, timeout_s=1.0)
                except KeptError:
                    kept.append(name)
            assert len(kept) < len(names)  # the other site answers
            assert client.status().failed == 0
    with Client.of(tmp_path) as client:
        wait_until(lambda: client.status().kept == 0)
        found = [client.infer({}, request_id=name, timeout_s=20.0)["triple"].tolist() for name in names]
        assert found == [[[6, 6, 6, 6]]] * len(names)
