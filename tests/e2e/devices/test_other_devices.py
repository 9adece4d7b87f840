"""Another execution provider from end to end: profiled, planned, served, watched and reported by its name.

Runs where onnxruntime-openvino is installed, or onnxruntime-gpu on a machine with a GPU: `make devices`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import pytest
import yaml

from jellybean.serving import Client, running_state
from jellybean_agent import Executor
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from tests.support.command_line import jellybean, jellybean_process
from tests.support.device_project import make_device_project
from tests.support.skips import Absent


def _device(name: str, provider: str, package: str, needed: str = "/") -> Any:
    """A parameter that is skipped where the package or the machine's device file is missing."""
    missing = f"{Absent.ONNXRUNTIME_BUILD}: {package}" if provider not in ort.get_available_providers() else ""
    missing = missing or ("" if Path(needed).exists() else f"{Absent.DEVICE}: {needed}")
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=missing))


@pytest.fixture(
    scope="module",
    params=[
        _device("openvino", "OpenVINOExecutionProvider", "onnxruntime-openvino"),
        _device("cuda", "CUDAExecutionProvider", "onnxruntime-gpu", "/dev/nvidia0"),
    ],
)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, device: str) -> Path:
    """The project, profiled on the CPU and on the other device."""
    folder = make_device_project(tmp_path_factory.mktemp("devices") / "rows", device)
    jellybean_process("profile", str(folder), "--seconds", "0.1")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Path]:
    jellybean("plan", str(folder))
    jellybean_process("up", str(folder), "--detach")
    yield folder
    jellybean_process("down", str(folder))


def test_the_profile_names_it(folder: Path, device: str) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    assert text.count(f"device: {device}") >= 1
    assert {"openvino": "onnxruntime-openvino", "cuda": "onnxruntime-gpu"}[device] in text  # in the runs' provenance


@pytest.mark.parametrize(("price", "pool"), [("0.1", "other"), ("0.3", "plain")])
def test_the_cheaper_device_is_planned(folder: Path, price: str, pool: str) -> None:
    done = jellybean("plan", str(folder), "--set", f"workers.other.price={price} USD/h", "--dry-run", "--json")
    assert {one["pool"] for one in json.loads(done.stdout)["placements"]} == {pool}


def test_it_answers_as_the_cpu_does(served: Path) -> None:
    path = served / "models/net.onnx"
    plain = Executor(path, hashlib.sha256(path.read_bytes()).hexdigest(), ("x",))
    with np.load(served / "data/heldout.npz") as data:
        rows = data["x"]
    with Client.of(served) as client:
        for row in range(20):
            answer = client.infer({"x": rows[row : row + 1]})["net"]
            expected = plain.run((rows[row : row + 1],)).outputs["y"]
            assert np.abs(answer - expected).max() <= 1e-3 * np.abs(expected).max()


def test_the_agent_top_and_metrics_name_it(served: Path, device: str) -> None:
    (agent,) = (one for one in running_state(served).processes if one.name == "other-1")
    with grpc.insecure_channel(agent.address) as channel:
        stub = agent_pb2_grpc.AgentStub(channel)
        assert stub.Describe(agent_pb2.DescribeRequest(), timeout=5).device == device
        text = stub.Metrics(agent_pb2.MetricsRequest(), timeout=5).text.decode()
    assert f'jellybean_device{{device="{device}",worker="other-1"}} 1.0' in text
    top = json.loads(jellybean("top", str(served), "--json").stdout)
    assert [(one["worker"], one["device"]) for one in top["workers"]] == [("other-1", device)]


def test_the_report_names_it_beside_what_was_measured(served: Path, device: str) -> None:
    bench = json.loads(jellybean_process("bench", str(served), "--duration", "3", "--json").stdout)
    assert (bench["failed"], bench["accuracy"]) == (0, 100)
    report = json.loads(jellybean("report", str(served), "--json").stdout)
    assert [(one["name"], one["device"]) for one in report["workers"]] == [("other-1", device)]
    assert report["workers"][0]["measured"] > 0
    assert f"other-1 on {device}" in jellybean("report", str(served)).stdout
    assert f"other-1 on {device}" in (served / "report.html").read_text(encoding="utf-8")


def test_a_part_of_it_is_profiled_beside_its_neighbour_and_served(folder: Path, device: str, tmp_path: Path) -> None:
    half = make_device_project(tmp_path / "rows", f"{device}, share: {{slots: 2}}")
    shutil.copy(folder / "profiles.yaml", half)
    done = jellybean("plan", str(half), "--dry-run", status=2)
    assert f"device of other was {device}, is now {device} (share.slots=2)" in done.stderr
    jellybean_process("profile", str(half), "--seconds", "0.1")
    provenance = yaml.safe_load((half / "profiles.yaml").read_text(encoding="utf-8"))["operators"]["net"]["dense"]
    origin = provenance["provenance"]["latency"]["other"]
    assert (origin["device"], origin["beside"]) == (f"{device} (share.slots=2)", 1)
    jellybean("plan", str(half))
    (worker,) = json.loads((half / "plan.json").read_text(encoding="utf-8"))["workers"]
    assert (worker["name"], worker["price_usd_per_h"]) == ("other-1", 0.05)
    jellybean_process("up", str(half), "--detach")
    try:
        with np.load(half / "data/heldout.npz") as data, Client.of(half) as client:
            assert client.infer({"x": data["x"][:1]})["net"].shape == (1, 8)
    finally:
        jellybean_process("down", str(half))
