"""The device of a worker: how it is written, and that models run on it or not at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from jellybean_agent import CPU, Device, Executor, ModelError, PlanViewError, Share, file_sha256, plan_view, try_device
from jellybean_agent.execution import providers
from jellybean_agent.execution.providers import open_on_device, session_options
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_protos import plan_format
from tests.support.skips import Absent
from tests.support.tiny_models import chain, scale

AVAILABLE = ort.get_available_providers()
needs_openvino = pytest.mark.skipif("OpenVINOExecutionProvider" not in AVAILABLE, reason=Absent.ONNXRUNTIME_BUILD)
without_cuda = pytest.mark.skipif("CUDAExecutionProvider" in AVAILABLE, reason="this onnxruntime has CUDA")
OPENVINO = Device("openvino")


@pytest.mark.parametrize(
    ("device", "provider", "options"),
    [
        (CPU, "CPUExecutionProvider", {}),
        (Device("cuda"), "CUDAExecutionProvider", {"device_id": "0"}),
        (Device("cuda:3"), "CUDAExecutionProvider", {"device_id": "3"}),
        (Device("tensorrt:1"), "TensorrtExecutionProvider", {"device_id": "1"}),
        (Device("rocm"), "ROCMExecutionProvider", {"device_id": "0"}),
        (OPENVINO, "OpenVINOExecutionProvider", {"device_type": "CPU", "num_of_threads": "1"}),
        (
            Device("openvino", (("num_of_threads", "2"), ("session.use_env_allocators", "1"))),
            "OpenVINOExecutionProvider",
            {"device_type": "CPU", "num_of_threads": "2"},
        ),
        (Device("XnnpackExecutionProvider"), "XnnpackExecutionProvider", {}),
    ],
)
def test_provider_and_options(device: Device, provider: str, options: dict[str, str]) -> None:
    assert (device.provider, device.provider_options) == (provider, options)


def test_a_part_of_a_device_limits_the_threads_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA reads the variable in the process that runs models; another provider is not concerned by it."""
    variable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    monkeypatch.delenv(variable, raising=False)
    for share, percentage in ((Share("slots", "4"), None), (Share("mps", "12.5"), "12.5")):
        part = CPU.part(share)
        assert (str(part), part.provider_options) == (f"cpu (share.{share.kind}={share.size})", {})
        open_on_device(providers._TRIAL_MODEL, session_options(part), part, "of one node")
        assert os.environ.get(variable) == percentage


@pytest.mark.parametrize(
    ("share", "fraction", "memory"),
    [(("mig", "2g.20gb"), 2 / 7, 20e9), (("mps", "12.5"), 0.125, 10.0), (("slots", "4"), 0.25, 20.0)],
)
def test_a_share_is_a_part_of_power_and_memory(share: tuple[str, str], fraction: float, memory: float) -> None:
    found = Share(*share)
    assert (found.fraction, found.memory_bytes(80.0)) == (pytest.approx(fraction), memory)


@pytest.mark.parametrize(
    "share", [("mig", "8g.80gb"), ("mps", "0"), ("mps", "101"), ("mps", "x"), ("slots", "0"), ("half", "1")]
)
def test_what_is_no_share_is_refused(share: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="is no share"):
        Share(*share)
    options = tuple((f"share.{kind}", "2") for kind in ("mps", "slots"))
    with pytest.raises(ValueError, match="mps and slots: a device has one share"):
        Device("cuda", options)


def test_nodes_may_run_on_the_cpu_only_where_the_device_says_so() -> None:
    key = "session.disable_cpu_ep_fallback"
    assert CPU.session_entries == {}
    assert Device("cuda").session_entries == {key: "1"}
    assert Device("cuda", ((key, "0"),)).session_entries == {key: "0"}


@pytest.mark.parametrize("name", ["gpu", "", "cpu:1", "openvino:0", "cuda:", "cuda:x", "cuda :1", "CUDA"])
def test_names_that_are_no_device(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no device|have no number"):
        Device(name)


OPEN_IN_A_MODEL_PROCESS = """
import sys
from pathlib import Path
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.system.device import Device

with ModelProcessPool() as pool:
    process = ModelProcess(pool)
    try:
        process.open(Path(sys.argv[1]), sys.argv[2], Device("cuda"))
    finally:
        process.close()
"""


@without_cuda
def test_a_missing_provider_is_refused_with_what_to_install(tmp_path: Path) -> None:
    reason = r"device cuda:1: onnxruntime.* has no CUDAExecutionProvider, only .*CPUExecution.*\[agent-gpu\]"
    sha256 = scale(tmp_path / "m.onnx", 2.0)
    with pytest.raises(ModelError, match=reason):
        Executor(tmp_path / "m.onnx", sha256, ("x",), device=Device("cuda:1"))
    with pytest.raises(ModelError, match=reason):
        try_device(Device("cuda:1"))
    done = subprocess.run(
        [sys.executable, "-c", OPEN_IN_A_MODEL_PROCESS, str(tmp_path / "m.onnx"), sha256],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"ModelError: .*has no CUDAExecutionProvider", done.stderr)


def test_a_device_that_does_not_start_is_refused(tmp_path: Path) -> None:
    """A GPU build of onnxruntime without a GPU opens a session on the CPU, or finds "CPU nodes": neither is served."""
    if "CUDAExecutionProvider" not in AVAILABLE:
        pytest.skip(Absent.ONNXRUNTIME_BUILD)
    lenient = Device("cuda:99", (("session.disable_cpu_ep_fallback", "0"),))
    for device in (Device("cuda:99"), lenient):
        with pytest.raises(ModelError, match=r"device cuda:99.*: CUDAExecutionProvider does not start here"):
            try_device(device)


def test_the_plan_carries_devices_in_a_version_that_older_agents_refuse(tmp_path: Path) -> None:
    document = chain(tmp_path)
    assert document["version"] < plan_format.DEVICE_VERSION
    assert {worker.device for worker in plan_view(document).workers.values()} == {CPU}
    document = on_device(document, "cloud-1", "openvino", [["num_of_threads", "2"]])
    assert document["version"] == plan_format.DEVICE_VERSION
    view = plan_view(document)
    assert view.workers["cloud-1"].device == Device("openvino", (("num_of_threads", "2"),))
    assert view.workers["edge-1"].device == CPU
    with pytest.raises(PlanViewError, match="'gpu' is no device"):
        plan_view(on_device(document, "cloud-1", "gpu", []))


@without_cuda
def test_a_worker_without_its_device_loads_nothing(tmp_path: Path) -> None:
    view = plan_view(on_device(chain(tmp_path), "edge-1", "cuda", []))
    (tmp_path / "models/double.onnx").unlink()  # would be the error if models were loaded first
    with pytest.raises(ModelError, match=r"device cuda: .* has no CUDAExecutionProvider"):
        load_executors(view, view.workers["edge-1"], ModelSettings(tmp_path))


def on_device(document: dict, worker: str, device: str, options: list) -> dict:
    """The document with a worker on a device, with its right version and hash."""
    body = {key: value for key, value in json.loads(json.dumps(document)).items() if key not in plan_format.HEADER_KEYS}
    chosen = next(item for item in body["workers"] if item["name"] == worker)
    chosen |= {"device": device, "device_options": options}
    return plan_format.with_header(body)


def in_a_model_process(path: Path, sha256: str, rows: np.ndarray) -> np.ndarray:
    """Answers of a model process on OpenVINO.

    Its fork server is forked from a new process, as an agent's is, and not from this one: OpenVINO has threads here
    since the first test that used it, and what they have locked stays locked in a process that is forked.
    """
    np.save(path.with_name("rows.npy"), rows)
    command = (sys.executable, "-c", RUN_IN_A_MODEL_PROCESS, path, sha256)
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return np.load(path.with_name("answers.npy"))


RUN_IN_A_MODEL_PROCESS = """
import sys
from pathlib import Path
import numpy as np
from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.system.device import Device

path = Path(sys.argv[1])
with ModelProcessPool() as pool:
    process = ModelProcess(pool)
    executor = Executor(path, sys.argv[2], ("x",), batch=5, device=Device("openvino"), open_session=process.open)
    np.save(path.with_name("answers.npy"), executor.run((np.load(path.with_name("rows.npy")),)).outputs["y"])
    process.close()
"""


@needs_openvino
@pytest.mark.parametrize("in_process", [True, False])
def test_openvino_answers_as_the_cpu_does(tmp_path: Path, *, in_process: bool) -> None:
    path, rows = tmp_path / "net.onnx", np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    sha256 = network(path)
    expected = Executor(path, sha256, ("x",), batch=5).run((rows,)).outputs["y"]
    if in_process:
        found = Executor(path, sha256, ("x",), batch=5, device=OPENVINO).run((rows,)).outputs["y"]
    else:
        found = in_a_model_process(path, sha256, rows)
    assert np.abs(found - expected).max() <= 1e-3
    session = open_on_device(path.read_bytes(), session_options(OPENVINO), OPENVINO, "net")
    assert session.get_providers()[0] == "OpenVINOExecutionProvider"


@needs_openvino
def test_nodes_that_openvino_lacks_are_refused_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "tree.onnx"
    tree = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    save(path, [tree])
    with pytest.raises(ModelError, match=r"openvino cannot run all its nodes.*disable_cpu_ep_fallback: 0"):
        Executor(path, file_sha256(path), ("x",), device=OPENVINO)
    allowed = Device("openvino", (("session.disable_cpu_ep_fallback", "0"),))
    with pytest.raises(ModelError, match=r"OpenVINOExecutionProvider does not start|openvino") as refused:
        Executor(path, file_sha256(path), ("x",), device=Device("openvino", (("no_such_option", "1"),)))
    assert "no_such_option" in str(refused.value)
    found = Executor(path, file_sha256(path), ("x",), device=allowed).run((np.ones((1, 8), np.float32),)).outputs["y"]
    assert found == pytest.approx(8**-0.5)


def network(path: Path) -> str:
    """Two dense layers of 8 and 16 units; the sha256 of the file."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "b"], ["y"]),
    ]
    return save(path, nodes, a=rng.normal(size=(8, 16)), b=rng.normal(size=(16, 8)))


def save(path: Path, nodes: list, **weights: np.ndarray) -> str:
    """A model of rows of 8 values; the sha256 of the file."""
    kept = [
        helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.astype(np.float32).ravel())
        for name, value in weights.items()
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], kept)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    return file_sha256(path)
