"""`jellybean-agent` by itself: what it refuses, its help, its metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import onnxruntime as ort
import pytest

from jellybean.serving.errors import DeviceError
from jellybean.serving.local.launcher import up
from jellybean_protos import plan_format
from tests.support.ports import free_port
from tests.support.tiny_models import chain

AGENT = [sys.executable, "-m", "jellybean_agent"]


def agent(folder: Path, **changes: object) -> list[str]:
    """A command line for worker edge-1 of a chain in `folder`."""
    (folder / "plan.json").write_text(json.dumps(chain(folder)), encoding="utf-8")
    peers = {"": f"unix:{folder}/g.sock", "edge-1": f"unix:{folder}/0.sock", "cloud-1": f"unix:{folder}/1.sock"}
    (folder / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
    options = {"plan": folder / "plan.json", "peers": folder / "peers.json", "root": folder, "worker": "edge-1"}
    options |= {"listen": f"unix:{folder}/0.sock"} | changes
    return [*AGENT, *(f"--{name.replace('_', '-')}={value}" for name, value in options.items())]


def test_help_shows_an_example() -> None:
    told = subprocess.run([*AGENT, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "example:" in told
    assert "--peers" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"listen": "0.0.0.0:7000"}, "TCP needs a certificate (--tls FOLDER"),
        pytest.param({"listen": "127.0.0.1:7000"}, "TCP needs a certificate (--tls FOLDER", marks=pytest.mark.slow),
        pytest.param({"listen": "127.0.0.1:99999"}, "is no address: write HOST:PORT", marks=pytest.mark.slow),
        pytest.param({"listen": "unix:/" + "x" * 120}, "shorter than 100", marks=pytest.mark.slow),
        ({"worker": "moon-1"}, "gives worker 'moon-1' nothing to do; its workers: edge-1, cloud-1"),
        pytest.param(
            {"plan": "/nowhere/plan.json"},
            "/nowhere/plan.json: there is no such file or folder",
            marks=pytest.mark.slow,
        ),
        ({"root": "/nowhere"}, "double/only: model /nowhere/models/double.onnx"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, str], told: str) -> None:
    done = subprocess.run(agent(tmp_path, **changes), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("by_variable", [False, True])
def test_why_an_agent_ends_is_a_json_object_in_logs_for_machines(tmp_path: Path, by_variable: bool) -> None:
    command = agent(tmp_path, worker="moon-1", **({} if by_variable else {"log_format": "json"}))
    environment = os.environ | ({"JELLYBEAN_LOG": "json"} if by_variable else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["level"] == "error"
    assert "gives worker 'moon-1' nothing to do" in lines[-1]["message"]


def test_a_device_that_is_not_here_ends_the_agent_before_it_serves(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    command = agent(tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    body = {key: value for key, value in plan.items() if key not in plan_format.HEADER_KEYS}
    body["workers"][0] |= {"device": "cuda:1"}
    (tmp_path / "plan.json").write_text(json.dumps(plan_format.with_header(body)), encoding="utf-8")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "edge-1: device cuda:1: onnxruntime" in done.stderr
    assert "has no CUDAExecutionProvider" in done.stderr
    assert "install 'jellybean-serving[agent-gpu]'" in done.stderr
    assert " ready: " not in done.stderr
    with pytest.raises(DeviceError, match=r"edge-1: device cuda:1: .* has no CUDAExecutionProvider"):
        up(tmp_path, plan_format.with_header(body))
    assert not (tmp_path / ".jellybean").exists()  # nothing was started


def test_metrics_on_loopback_and_sigterm(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(agent(tmp_path, metrics_port=port), stderr=subprocess.DEVNULL) as child:
        text, end = "", time.monotonic() + 60
        while not text and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:  # it does not listen yet
                time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    labels = '{operator="double",variant="only",worker="edge-1"}'
    assert f"jellybean_requests_total{labels} 0.0" in text
    assert f"jellybean_busy_seconds_total{labels} 0.0" in text
    assert 'jellybean_device{device="cpu",worker="edge-1"} 1.0' in text
    assert 'jellybean_queue{operator="double",variant="only",worker="edge-1"} 0.0' in text
