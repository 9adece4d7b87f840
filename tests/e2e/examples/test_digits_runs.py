"""The digits example from `init` to `down`, with real processes, models and sockets."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from jellybean.serving import Client, Watcher, request_of, running_state, top_of
from jellybean_protos.gateway.v1 import gateway_pb2_grpc
from tests.support.command_line import jellybean, jellybean_process

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects") / "digits"
    jellybean_process("init", "digits", str(directory))
    jellybean_process("plan", str(directory))
    return directory


@pytest.fixture(scope="module")
def running(digits: Path) -> Iterator[Path]:
    jellybean_process("up", str(digits), "--detach")
    yield digits
    jellybean_process("down", str(digits))


def test_answers_one_request_from_the_command_line(running: Path) -> None:
    sample = next((running / "samples").glob("*.png"))
    answer = json.loads(jellybean_process("infer", str(running), "--input", f"strip={sample}", "--json").stdout)
    assert answer == {"number": [24899]}  # the sample is the first held-out strip


def test_rows_of_a_file_are_requests_of_their_own(running: Path) -> None:
    file = f"strip={running}/data/heldout.npz#strips"
    assert json.loads(jellybean_process("infer", str(running), "--input", f"{file}[0]", "--json").stdout) == {
        "number": [24899]
    }
    with np.load(running / "data/heldout.npz") as data:
        np.save(running / "three.npy", data["strips"][:3])
    three = ("--input", f"strip={running}/three.npy")
    answers = json.loads(jellybean_process("infer", str(running), *three, "--rows", "--json").stdout)
    assert len(answers) == 3
    assert answers[0] == {"number": [24899]}
    assert "row 2, number: " in jellybean_process("infer", str(running), *three, "--rows").stdout


def test_the_ten_line_client_works(running: Path) -> None:
    program = (
        "import numpy as np\n"
        "from jellybean.serving.client import Client\n"
        f"with np.load({str(running / 'data/heldout.npz')!r}) as data:\n"
        "    strips, labels = data['strips'][:20], data['labels'][:20]\n"
        f"with Client.of({str(running)!r}) as client:\n"
        "    answers = [client.infer({'strip': strips[row : row + 1]})['number'].item() for row in range(20)]\n"
        "print(sum(answers == labels))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) >= 14  # nine of ten are right in the long run


def test_bench_at_an_easy_rate_has_no_error(running: Path) -> None:
    easy = ("--set", "sources.strip.rate=2/s")  # a tenth of the plan's capacity: it must hold on a slow machine too
    record = json.loads(jellybean_process("bench", str(running), "--duration", "4", *easy, "--json").stdout)
    assert record["failed"] == 0
    assert record["completed"] == record["offered"] > 0
    assert record["accuracy"] > 0
    report = json.loads(jellybean_process("report", str(running), "--json").stdout)
    assert report["plan_hash"] == record["plan"]
    assert "scaled" in {run["kind"] for run in report["runs"]}, "another rate is not the workflow's own measurement"


def test_bench_reports_overload(running: Path) -> None:
    record = json.loads(jellybean_process("simulate", str(running), "--json").stdout)
    rate = record["highest_rate_per_s"] * 8  # far above, so that it is an overload on a fast machine too
    done = jellybean_process(
        "bench", str(running), "--duration", "8", "--set", f"sources.strip.rate={rate:.3f}/s", status=4
    )
    assert "overload" in (done.stdout + done.stderr).lower()


def test_planning_from_what_is_served_keeps_it(running: Path) -> None:
    before = json.loads((running / "plan.json").read_text(encoding="utf-8"))
    (running / "plan.json").unlink()
    answer = json.loads(jellybean_process("plan", str(running), "--from", "running", "--json").stdout)
    assert answer["replan"]["verdict"] == "keep"
    assert answer["replan"]["running"]["hash"] == answer["hash"] == before["hash"]
    assert json.loads((running / "plan.json").read_text(encoding="utf-8")) == before


def test_what_if_about_the_plan_that_is_served(running: Path) -> None:
    folder = str(running)
    files = {path: path.read_bytes() for path in (running / "plan.json", running / ".jellybean/plan.key")}
    before = json.loads((running / "plan.json").read_text(encoding="utf-8"))["hash"]
    jellybean("diff", folder, "running")  # status 0: the same
    noted = (
        f"{running}/plan.json had the plan that is served, {before[:12]}, which stays served until "
        f"`jellybean apply {folder}` has switched"
    )
    slower = ("--set", "sources.strip.rate=4/s", "--set", "slo.latency_p99=null")
    assert noted in jellybean("plan", folder, *slower).stderr
    assert json.loads(jellybean("diff", folder, "running", "--json", status=1).stdout)["same"] is False
    assert json.loads(jellybean("report", folder, "--plan", "running", "--json").stdout)["plan_hash"] == before
    assert json.loads(jellybean("report", folder, "--json").stdout)["plan_hash"] != before
    for path, content in files.items():
        path.write_bytes(content)
    assert "nothing is written" in jellybean("simulate", folder, *slower, "--duration", "5").stderr
    assert {path: path.read_bytes() for path in files} == files


def test_the_command_that_top_proposes_under_overload_works(running: Path) -> None:
    with np.load(running / "data/heldout.npz") as data:
        request = request_of({"strip": data["strips"][:1]})
    watcher, requests = Watcher(running), 80
    before = watcher.scrape()
    with grpc.insecure_channel(running_state(running).gateway_address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        calls = [stub.Infer.future(request) for _ in range(requests)]
        now = watcher.scrape()
        while (
            now.total("jellybean_gateway_received_total") < before.total("jellybean_gateway_received_total") + requests
        ):
            now = watcher.scrape()
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}
    overload = top_of(before, replace(now, at_s=before.at_s + requests / 20.0)).overload  # at any speed of this machine
    assert overload is not None
    assert overload.reasons[0] == "20/s offered, planned for 10/s"
    assert overload.command is not None
    program, *arguments = shlex.split(overload.command)
    assert program == "jellybean"
    assert arguments == ["plan", str(running), "--from", "running", "--set", "sources.strip.rate=20/s"]
    decision = json.loads(jellybean(*arguments, "--dry-run", "--json").stdout)["replan"]
    assert decision["verdict"] == "replace"
    assert decision["running"]["broken"]


def test_a_second_up_is_refused(running: Path) -> None:
    assert "jellybean down" in jellybean_process("up", str(running), "--detach", status=1).stderr


@contextmanager
def up_in_front(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """`jellybean up` in front, serving; killed with all it started if a test leaves it running."""
    jellybean_process("init", "digits", str(directory))
    process = subprocess.Popen(
        [sys.executable, "-m", "jellybean", "up", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_in_front_drains_when_it_is_told_to_end(tmp_path: Path, number: int) -> None:
    with up_in_front(tmp_path / "digits") as process:
        state = json.loads((tmp_path / "digits" / ".jellybean" / "run.json").read_text(encoding="utf-8"))
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.endswith("stopped\n") and "Traceback" not in err
    assert state["processes"] and not any(psutil.pid_exists(child["pid"]) for child in state["processes"])
    jellybean_process("down", str(tmp_path / "digits"), status=1)


def test_up_that_is_terminated_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    jellybean_process("init", "digits", str(directory))
    command = [sys.executable, "-m", "jellybean", "up", str(directory)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        path = directory / ".jellybean" / "run.json"
        while process.poll() is None and not path.exists():
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    assert children
    _, alive = psutil.wait_procs(children, timeout=60)  # processes of models end when they notice the end of the agent
    assert not alive
    assert not path.exists()


def test_a_killed_agent_is_named(tmp_path: Path) -> None:
    with up_in_front(tmp_path / "digits") as process:
        state = json.loads((tmp_path / "digits" / ".jellybean" / "run.json").read_text(encoding="utf-8"))
        worker, pid = next((child["name"], child["pid"]) for child in state["processes"] if child["name"] != "gateway")
        os.kill(pid, signal.SIGKILL)
        assert process.stderr is not None
        said = next(line for line in process.stderr if worker in line)  # ends with the process when it is never said
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert worker in said
    assert "Traceback" not in said + err


@pytest.mark.nightly
def test_a_bench_in_which_a_worker_dies_loses_nothing_and_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    jellybean_process("init", "digits", str(directory))
    jellybean_process("up", str(directory), "--detach")
    try:
        state = json.loads((directory / ".jellybean" / "run.json").read_text(encoding="utf-8"))
        worker, pid = next((one["name"], one["pid"]) for one in state["processes"] if one["name"].startswith("camera"))
        easy = ("--duration", "10", "--set", "sources.strip.rate=2/s", "--json")
        command = [sys.executable, "-m", "jellybean", "bench", str(directory), *easy]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench, Client.of(directory) as client:
            begun = client.status().answered
            while client.status().answered < begun + 8:
                time.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
            out, _ = bench.communicate(timeout=120)
        record = json.loads(out)
    finally:
        jellybean_process("down", str(directory))
    assert bench.returncode == 5
    assert record["failed"] == 0
    assert f"{worker} died and was started again" in " ".join(record["breaches"])
