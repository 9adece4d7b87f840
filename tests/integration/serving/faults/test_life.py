"""Starting, dying, draining, stopping: with real processes and real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from jellybean.cli.serving.joining import joining_of
from jellybean.serving import (
    Client,
    NotRunningError,
    RequestError,
    Running,
    RunState,
    ServingError,
    Watcher,
    read_state,
    stopped_on_failure,
    top_of,
)
from jellybean.serving.errors import AlreadyRunningError, LaunchError
from jellybean.serving.local import launcher
from jellybean.serving.local.running import StopLimits, down
from jellybean.serving.run_state import ProcessState, failing, state_path, write_state
from jellybean_solver import Link
from tests.support.run_processes import idle_command
from tests.support.stopped_process import stopped
from tests.support.tiny_models import chain, make_plan, scale
from tests.support.waiting import wait_until

ONES = {"x": np.ones((1, 4), np.float32)}
DRAIN_S = 0.3  # for which requests are still in flight


def pid(running: Running, name: str) -> int:
    return next(process.pid for process in running.state.processes if process.name == name)


def lives(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_altered_model_is_refused_by_name(tmp_path: Path, start) -> None:
    document = chain(tmp_path)
    model = tmp_path / "models/triple.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(LaunchError, match=r"(?s)cloud-1 ended with status 2.*triple/only.*sha256.*altered"):
        start(tmp_path, document)
    assert not state_path(tmp_path).exists()


@pytest.mark.slow
def test_a_worker_that_cannot_start_again_is_named_with_the_reason(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path))
    model = tmp_path / "models/triple.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    os.kill(pid(running, "cloud-1"), signal.SIGKILL)
    wait_until(lambda: failing(read_state(tmp_path)), timeout_s=60.0)
    watcher = Watcher(tmp_path)
    (said,) = top_of(watcher.scrape(), watcher.scrape()).failing
    assert re.search(
        r"cloud-1 was started again \d+ times and ended each time: .*triple.*the plan says .*altered", said
    )
    with (
        pytest.raises(RequestError, match=r"cloud-1.*triple.*altered") as refusal,
        Client.of(tmp_path) as client,
    ):
        client.infer(ONES, timeout_s=3.0)
    assert refusal.value.status in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert refusal.value.reason.count("was started again") == 1


def test_a_plan_changed_by_hand_is_refused(tmp_path: Path, start) -> None:
    document = chain(tmp_path)
    document["utilisation"] = 0.5
    with pytest.raises(LaunchError, match="does not match its hash"):
        start(tmp_path, document)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["port", "metrics_port", "http_port"])
def test_a_port_in_use_is_said(tmp_path: Path, start, key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"(?s)gateway ended with status 2.*127.0.0.1:{port}.*(in use|taken)"):
            start(tmp_path, chain(tmp_path), **{key: port})
    assert "Traceback" not in (tmp_path / ".jellybean/logs/gateway.log").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_killed_worker_is_named_and_started_again_and_down_elsewhere_leaves_nothing(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path))
    said: list[str] = []
    results: list[str | None] = []
    watcher = threading.Thread(target=lambda: results.append(running.wait(said.append)))
    watcher.start()
    with Client(running.gateway_address) as client, ThreadPoolExecutor(4) as pool:
        first = [pool.submit(client.infer, ONES) for _ in range(4)]  # so that the next ones are sent at once
        assert all(request.result(60)["triple"].tolist() == [[6, 6, 6, 6]] for request in first)
        keeper = running.state.keeper
        assert keeper is not None
        with stopped(keeper.pid):  # so that the worker is gone for as long as this takes
            with stopped(pid(running, "cloud-1")):
                waiting = [pool.submit(client.infer, ONES) for _ in range(4)]
                wait_until(lambda: client.status().requests_in_hand == 4)
                os.kill(pid(running, "cloud-1"), signal.SIGKILL)
            wait_until(lambda: client.status().state == "degraded")
            told = r"no route was open within [12](\.\d+)? s: .*worker cloud-1 is gone"
            with pytest.raises(RequestError, match=told) as caught:
                client.infer(ONES, timeout_s=2.0)
            assert caught.value.status == "DEADLINE_EXCEEDED"
        assert all(request.result(60)["triple"].tolist() == [[6, 6, 6, 6]] for request in waiting)
        status = client.status()
        assert dict(status.workers) == {"edge-1": "ready", "cloud-1": "ready"}
        assert (status.answered, status.failed, status.retried, status.left_out) == (8, 1, 4, 1)
    wait_until(lambda: bool(said))
    assert "cloud-1 was killed by SIGKILL" in said[0]
    assert "cloud-1 is started again" in said[0]
    state = read_state(tmp_path)
    assert state is not None
    with pytest.raises(AlreadyRunningError, match="is up already"):
        launcher.up(tmp_path, chain(tmp_path))

    code = "import sys, pathlib; from jellybean.serving.local.running import down; down(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    watcher.join(60)
    assert results == [None]
    assert not any(lives(process.pid) for process, _ in state.alive())
    assert not Path(running.state.folder).exists()
    with pytest.raises(NotRunningError):
        Client.of(tmp_path)
    with pytest.raises(NotRunningError):
        down(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("detach", [False, True])
def test_a_failure_after_the_start_stops_what_was_started(tmp_path: Path, start, detach: bool) -> None:
    running = start(tmp_path, chain(tmp_path), detach=detach)
    (Path(running.state.plan_folder) / "peers.json").unlink()
    with pytest.raises(FileNotFoundError), stopped_on_failure(running):
        joining_of(running, tmp_path, None)
    assert not running.state.alive()
    assert not state_path(tmp_path).exists()


def test_down_finishes_what_is_in_hand(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path))
    cloud = pid(running, "cloud-1")
    with Client(running.gateway_address) as client, ThreadPoolExecutor(8) as pool:
        os.kill(cloud, signal.SIGSTOP)
        waiting = [pool.submit(client.infer, ONES) for _ in range(8)]
        wait_until(lambda: client.status().requests_in_hand == 8)
        threading.Timer(DRAIN_S, os.kill, (cloud, signal.SIGCONT)).start()
        assert running.down() == 0
        assert all(request.result(20)["triple"].tolist() == [[6, 6, 6, 6]] for request in waiting)
    assert not any(lives(process.pid) for process in running.state.processes)


@pytest.mark.slow
def test_a_worker_told_to_leave_loses_nothing(tmp_path: Path, start) -> None:
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    routes = [(0.5, {"double": "cloud-1"}), (0.5, {"double": "cloud-2"})]
    links = [Link("edge", "cloud", 0.0, None, 2.0)]  # requests are in flight for so long
    running = start(tmp_path, make_plan(tmp_path, operators, routes, sources={"x": "edge"}, links=links))
    leaves = pid(running, "cloud-1")
    with Client(running.gateway_address) as client, ThreadPoolExecutor(8) as pool:
        assert client.status().requests_in_hand == 0  # it is connected: the requests leave at once
        waiting = [pool.submit(client.infer, ONES) for _ in range(8)]
        wait_until(lambda: client.status().requests_in_hand == 8)
        os.kill(leaves, signal.SIGTERM)
        wait_until(lambda: client.status().workers["cloud-1"] != "ready")
        more = [pool.submit(client.infer, ONES) for _ in range(8)]
        assert all(request.result(60)["double"].tolist() == [[2, 2, 2, 2]] for request in waiting + more)
        wait_until(lambda: not lives(leaves))
        assert client.status().failed == 0


@pytest.mark.slow
def test_a_gateway_that_dies_while_workers_load_is_named(tmp_path: Path, start) -> None:
    def progress(_done: float, _total: float, label: str) -> None:
        state = read_state(tmp_path)
        assert state is not None
        found = {process.name: process.pid for process in state.processes}
        if label.startswith("starting"):
            os.kill(found["cloud-1"], signal.SIGSTOP)  # it is never ready before the gateway dies
        elif lives(found["gateway"]):
            os.kill(found["gateway"], signal.SIGKILL)
            os.kill(found["cloud-1"], signal.SIGCONT)

    with pytest.raises(LaunchError, match="gateway was killed by SIGKILL"):
        start(tmp_path, chain(tmp_path), progress=progress)
    assert not state_path(tmp_path).exists()


@pytest.mark.slow
def test_only_the_private_socket_drains_and_zero_seconds_do_not_wait(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path, links=[Link("edge", "cloud", 0.0, None, 55.0)]))
    assert state_path(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    with Client(running.gateway_address) as client, ThreadPoolExecutor(2) as pool:
        with pytest.raises(RequestError, match="jellybean down") as caught:
            client.drain(0.0)
        assert caught.value.status == "PERMISSION_DENIED"
        waiting = [pool.submit(client.infer, ONES) for _ in range(2)]
        wait_until(lambda: client.status().requests_in_hand == 2)
        assert running.down(0.0) == 2
        assert all(isinstance(request.exception(20), RequestError) for request in waiting)  # who waits has answers


@pytest.mark.slow
def test_a_gateway_that_does_not_answer_while_it_is_stopped_is_reported(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path), start_timeout_s=60.0)
    os.kill(pid(running, "gateway"), signal.SIGSTOP)
    with pytest.raises(ServingError, match="did not say how many requests"):
        running.down(0.0, StopLimits(status_s=0.2, terminate_s=0.5))
    assert not any(lives(process.pid) for process in running.state.processes)
    assert not state_path(tmp_path).exists()


def test_deadlines_and_too_many_requests(tmp_path: Path, start) -> None:
    running = start(tmp_path, chain(tmp_path), max_in_flight=2)
    with Client(running.gateway_address) as client, ThreadPoolExecutor(2) as pool:
        with stopped(pid(running, "cloud-1")), pytest.raises(RequestError) as caught:
            client.infer(ONES, timeout_s=0.1)
        assert caught.value.status == "DEADLINE_EXCEEDED"
        wait_until(lambda: client.status().requests_in_hand == 0)
        with stopped(pid(running, "cloud-1")):
            waiting = [pool.submit(client.infer, ONES, request_id=name) for name in "ab"]
            wait_until(lambda: client.status().requests_in_hand == 2)
            with pytest.raises(RequestError, match="overloaded") as caught:
                client.infer(ONES)
            assert caught.value.status == "RESOURCE_EXHAUSTED"
        assert all(request.result(20) for request in waiting)
        with stopped(pid(running, "cloud-1")):
            first = pool.submit(client.infer, ONES, request_id="same")
            wait_until(lambda: client.status().requests_in_hand == 1)
            with pytest.raises(RequestError) as caught:
                client.infer(ONES, request_id="same")
            assert caught.value.status == "ALREADY_EXISTS"
        first.result(20)


@pytest.mark.slow
def test_a_stale_state_file_is_recognised(tmp_path: Path, start) -> None:
    """Its process id may have been given to somebody else since: here to this test."""
    state_path(tmp_path).parent.mkdir()
    gateway = ProcessState("gateway", os.getpid(), 1, "unix:x", "x", idle_command(tmp_path))
    gone = str(tmp_path / "gone")
    write_state(tmp_path, RunState("p", "w", gone, gone, gateway_address="127.0.0.1:1", processes=(gateway,)))
    with pytest.raises(NotRunningError, match="nothing is up"):
        Client.of(tmp_path)
    running = start(tmp_path, chain(tmp_path))
    state = read_state(tmp_path)
    assert state is not None
    assert state.gateway_address == running.gateway_address


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("then", ["sys.exit(running.wait())", "time.sleep(60)"])
def test_a_launcher_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals, then: str) -> None:
    """Also when the signal comes before anybody watches."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(chain(tmp_path)), encoding="utf-8")
    code = (
        "import signal, sys, json, time; from pathlib import Path; from jellybean.serving.local import launcher\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent may have had it ignored
        "running = launcher.up(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))\n"
        f"print('up', flush=True); {then}"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(plan)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        state = read_state(tmp_path)
        child.send_signal(number)
        child.wait(60)
    assert state is not None
    assert not any(lives(process.pid) for process in state.processes)
    assert not state_path(tmp_path).exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_signal_while_a_process_is_spawned_leaves_nothing(tmp_path: Path, number: signal.Signals, after: int) -> None:
    """It comes when the first worker, the gateway or the keeper has begun and Popen has not returned."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(chain(tmp_path)), encoding="utf-8")
    code = (
        "import os, signal, sys, json; from pathlib import Path; from jellybean.serving.local import launcher\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "begun, spawn = [], launcher.spawn\n"
        "def spawn_and_signal(*given):\n"
        "    child = spawn(*given); begun.append(child.pid); print(child.pid, flush=True)\n"
        f"    if len(begun) == {after}: os.kill(os.getpid(), {int(number)})\n"
        "    return child\n"
        "launcher.spawn = spawn_and_signal\n"
        "launcher.up(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(plan)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    begun = [int(line) for line in done.stdout.split()]
    assert len(begun) == after
    assert not any(lives(process) for process in begun)
    assert not state_path(tmp_path).exists()


def test_a_slow_request_goes_a_second_way_and_is_answered_once(tmp_path: Path, start) -> None:
    """One of two workers stands still, for less time than it takes to be given up."""
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    routes = [(0.5, {"double": "edge-1"}), (0.5, {"double": "edge-2"})]
    running = start(tmp_path, make_plan(tmp_path, operators, routes, sources={"x": "edge"}), hedge_after="0.5")
    with Client(running.gateway_address) as client, ThreadPoolExecutor(4) as pool:
        first = [pool.submit(client.infer, ONES) for _ in range(4)]  # so that the next ones are sent at once
        assert all(request.result(60)["double"].tolist() == [[2, 2, 2, 2]] for request in first)
        before = client.status()
        with stopped(pid(running, "edge-1")):
            waiting = [pool.submit(client.infer, ONES, timeout_s=30.0) for _ in range(4)]
            assert all(request.result(60)["double"].tolist() == [[2, 2, 2, 2]] for request in waiting)
            status = client.status()
        assert (status.answered - before.answered, status.failed) == (4, 0)
        assert status.hedged - before.hedged >= 2  # more on a machine on which the other worker's answers are late too
        if status.left_out == before.left_out:  # this machine did not stand still for longer than a worker may
            assert status.retried == before.retried
        assert client.infer(ONES)["double"].tolist() == [[2, 2, 2, 2]]
        wait_until(lambda: client.status().requests_in_hand == 0)
        assert client.status().answered - before.answered == 5
