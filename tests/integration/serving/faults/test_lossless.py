"""Nothing lost, nothing answered twice: three replicas under steady load, with real processes and real signals.

The counts are small here and whole under `nightly`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from jellybean.serving import Client, LaunchSettings, NotRunningError, RequestError, Running, read_state
from jellybean.serving.errors import LaunchError
from jellybean.serving.local import launcher, replace_plan
from jellybean.serving.local.running import down
from jellybean_agent.transport.streams import SILENT_S
from jellybean_solver.model.plan_document import Document
from tests.support.ports import free_port
from tests.support.steady_load import SteadyLoad
from tests.support.stopped_process import stopped
from tests.support.tiny_models import make_plan, scale
from tests.support.waiting import wait_until

REPLICAS = ("cloud-1", "cloud-2", "cloud-3")
RATE_PER_S = 40.0
ONES = {"x": np.ones((1, 4), np.float32)}
few_and_many = pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.nightly)])


def plan(root: Path, workers: Sequence[str], sha256: str | None = None) -> Document:
    """Workers that all do the same, on devices that take 20 ms."""
    operators = {"double": (["x"], sha256 or scale(root / "models/double.onnx", 2.0))}
    routes = [(1 / len(workers), {"double": name}) for name in workers]
    return make_plan(root, operators, routes, sources={"x": "edge"}, slow_s=0.02)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project whose plan is up: three workers that do the same."""
    root = tmp_path_factory.mktemp("replicas")
    launcher.up(root, plan(root, REPLICAS), LaunchSettings(port=0, insecure=True))
    yield root
    down(root, timeout_s=1.0)
    with pytest.raises(NotRunningError):
        Client.of(root)


def pid(directory: Path, name: str) -> int:
    """Of the process that plays a worker now."""
    state = read_state(directory)
    assert state is not None
    return next(process.pid for process in state.processes if process.name == name)


def all_ready(client: Client) -> bool:
    return client.status().state == "ready"


@few_and_many
def test_killed_replicas_lose_nothing_and_come_back(directory: Path, times: int) -> None:
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        before = client.status()
        with SteadyLoad(client.address, RATE_PER_S) as load:
            for number in range(times):
                name = REPLICAS[number % 3]
                killed = pid(directory, name)
                wait_until(lambda: client.status().requests_in_hand >= 1)
                os.kill(killed, signal.SIGKILL)
                wait_until(lambda name=name: client.status().workers[name] == "gone")
                wait_until(lambda: all_ready(client))
                assert pid(directory, name) != killed
        load.check()
        after = client.status()
        assert after.answered - before.answered == load.sent
        assert after.failed == before.failed
        assert after.left_out - before.left_out == times


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, pytest.param(40, marks=pytest.mark.nightly)])
def test_replicas_told_to_leave_lose_nothing_and_come_back(directory: Path, times: int) -> None:
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        before = client.status()
        with SteadyLoad(client.address, RATE_PER_S) as load:
            for number in range(times):
                name = REPLICAS[number % 3]
                told = pid(directory, name)
                os.kill(told, signal.SIGTERM)
                wait_until(lambda name=name: client.status().workers[name] != "ready")
                wait_until(lambda name=name, told=told: pid(directory, name) != told)
                wait_until(lambda: all_ready(client))
        load.check()
        after = client.status()
        assert (after.failed, after.retried) == (before.failed, before.retried)  # nobody even had to try again


@pytest.mark.slow
def test_requests_move_away_from_a_frozen_replica(directory: Path) -> None:
    """While it still stands still: all that were sent until it was given up, and later ones, are answered by others."""
    assert SILENT_S <= 2.0  # what is promised; how long a busy machine takes beyond that is not tested
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        frozen = pid(directory, "cloud-2")
        with SteadyLoad(client.address, RATE_PER_S) as load:
            wait_until(lambda: load.sent > 20)
            with stopped(frozen):
                wait_until(lambda: client.status().workers["cloud-2"] == "gone")
                assert "nothing was heard" in client.status().reasons["cloud-2"]
                sent = set(range(1, load.sent + int(RATE_PER_S)))
                wait_until(lambda: sent <= load.ended)
                assert client.status().workers["cloud-2"] == "gone"
            wait_until(lambda: all_ready(client))
        load.check()
        assert pid(directory, "cloud-2") == frozen  # the same process serves again


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_plan_is_replaced_under_load(directory: Path, times: int) -> None:
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        before = client.status()
        plans = [plan(directory, ("edge-1", "cloud-1")), plan(directory, REPLICAS)]  # the last is as it was
        with SteadyLoad(client.address, RATE_PER_S) as load:
            for number in range(times):
                document = plans[number % 2]
                folder = read_state(directory).plan_folder
                assert replace_plan.apply(directory, document)
                status, state = client.status(), read_state(directory)
                assert status.plan == state.plan == document["hash"]
                assert set(status.workers) == {process.name for process in state.processes} - {"gateway"}
                assert not state.others
                assert not Path(folder).exists()
        load.check()
        assert not replace_plan.apply(directory, plans[1])
        after = client.status()
        assert after.answered - before.answered == load.sent
        assert (after.failed, after.retried) == (before.failed, before.retried)


@pytest.mark.slow
def test_a_plan_that_does_not_come_up_leaves_the_old_one_serving(directory: Path) -> None:
    with Client.of(directory) as client:
        before = client.status().plan
        altered = plan(directory, ("edge-1", "cloud-1"), sha256="0" * 64)
        for _ in range(2):  # the first leaves nothing behind that would keep the second from trying
            with pytest.raises(LaunchError, match=r"(?s)ended with status 2.*sha256.*altered"):
                replace_plan.apply(directory, altered)
        assert client.status().plan == before
        assert client.infer(ONES)["double"].tolist() == [[2, 2, 2, 2]]
        assert not read_state(directory).others


def serves(directory: Path, client: Client, document: Document, workers: Sequence[str]) -> None:
    """Gateway, state and processes are of one plan, and of that alone."""
    wait_until(lambda: not (read_state(directory).others or read_state(directory).arriving))
    state = read_state(directory)
    assert state.plan == document["hash"] == client.status().plan
    assert {process.name for process, _ in state.alive()} == {*workers, "gateway", "keeper"}
    assert client.infer(ONES)["double"].tolist() == [[2, 2, 2, 2]]


@pytest.mark.slow
def test_a_plan_that_the_gateway_took_stays_whatever_happens_to_apply(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = plan(directory, ("edge-1", "cloud-1")), plan(directory, REPLICAS)
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))

        def late(_arrival: object) -> None:
            wait_until(lambda: client.status().plan == few["hash"])
            raise LaunchError("a worker has died")

        with monkeypatch.context() as patch:
            patch.setattr(replace_plan._NewPlan, "_check_alive", late)
            assert replace_plan.apply(directory, few)
        serves(directory, client, few, ("edge-1", "cloud-1"))
        (directory / "many.json").write_text(json.dumps(many), encoding="utf-8")
        code = (
            "import json, os, sys\n"
            "from pathlib import Path\n"
            "from jellybean.serving.local import replace_plan\n"
            "replace_plan._NewPlan.take_over = lambda _: os._exit(9)\n"
            "root = Path(sys.argv[1])\n"
            "replace_plan.apply(root, json.loads((root / 'many.json').read_text()))\n"
        )
        assert subprocess.run([sys.executable, "-c", code, str(directory)], check=False, timeout=60).returncode == 9
        wait_until(lambda: read_state(directory).plan == many["hash"])
        serves(directory, client, many, REPLICAS)


@pytest.mark.slow
def test_a_gateway_that_dies_while_its_plan_is_replaced_serves_the_new_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = plan(directory, ("edge-1", "cloud-1")), plan(directory, REPLICAS)
    take_over = replace_plan._NewPlan.take_over

    def after_a_death(arrival: replace_plan._NewPlan) -> object:
        killed = pid(directory, "gateway")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pid(directory, "gateway") != killed)  # with the old plan
        return take_over(arrival)

    with monkeypatch.context() as patch:
        patch.setattr(replace_plan._NewPlan, "take_over", after_a_death)
        assert replace_plan.apply(directory, few)
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        serves(directory, client, few, ("edge-1", "cloud-1"))
        assert replace_plan.apply(directory, many)


@pytest.mark.slow
def test_an_agent_that_can_start_no_models_ends_and_comes_back(directory: Path) -> None:
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        before, agent = client.status().failed, psutil.Process(pid(directory, "cloud-1"))
        (nursery,) = agent.children()
        for process in (nursery, *nursery.children()):  # its model's too
            process.kill()
        wait_until(lambda: pid(directory, "cloud-1") != agent.pid)
        for _ in range(6):
            assert client.infer(ONES)["double"].tolist() == [[2, 2, 2, 2]]
        wait_until(lambda: all_ready(client))
        assert client.status().failed == before


def test_a_request_id_is_answered_once(directory: Path) -> None:
    with Client.of(directory) as client:
        client.infer(ONES, request_id="once")
        with pytest.raises(RequestError, match="'once' was answered already") as caught:
            client.infer(ONES, request_id="once")
        assert caught.value.status == "ALREADY_EXISTS"


@pytest.mark.slow
def test_a_gateway_that_dies_is_there_again_on_its_port(directory: Path) -> None:
    with Client.of(directory) as client:
        wait_until(lambda: all_ready(client))
        killed = pid(directory, "gateway")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pid(directory, "gateway") != killed)

        def answers() -> bool:
            try:
                return client.infer(ONES, timeout_s=2.0)["double"].tolist() == [[2, 2, 2, 2]]
            except RequestError:
                return False

        wait_until(answers)


@pytest.mark.slow
def test_the_gateways_metrics(tmp_path: Path, start: Callable[..., Running]) -> None:
    port = free_port()
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    document = make_plan(tmp_path, operators, [(1.0, {"double": "cloud-1"})], sources={"x": "edge"})
    running = start(tmp_path, document, metrics_port=port, max_in_flight=1)
    with Client(running.gateway_address) as client:
        client.infer(ONES)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            found = response.read().decode()
    for line in (
        'requests_total{outcome="answered"} 1.0',
        'requests_total{outcome="shed"} 0.0',
        "retries_total 0.0",
        "in_hand 0.0",
        'workers{state="ready"} 1.0',
    ):
        assert f"\njellybean_gateway_{line}\n" in found
