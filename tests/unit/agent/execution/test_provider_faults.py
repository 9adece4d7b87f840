"""Devices whose provider does not start, or cannot run a model: what a person is told."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jellybean_agent import CPU, Device, ModelError, Share, try_device
from jellybean_agent.execution import providers
from jellybean_agent.execution.providers import open_on_device, require_provider, session_options

CUDA = Device("cuda")
FALLBACK = "session.disable_cpu_ep_fallback"


class Session:
    """A session on this provider; `fault`: what its runs raise."""

    def __init__(self, provider: str, fault: Exception | None = None) -> None:
        self._provider, self._fault = provider, fault

    def get_providers(self) -> list[str]:
        return [self._provider]

    def run(self, *_: Any) -> None:
        if self._fault is not None:
            raise self._fault


class Runtime:
    """onnxruntime with a GPU: what it opens for each device, one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *opened: Any) -> None:
        self.opened, self.loads = list(opened), 0
        self.entries: list[dict[str, str]] = []
        monkeypatch.setattr(providers.ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPU"])
        monkeypatch.setattr(providers, "_session", self._session)
        monkeypatch.setattr(providers, "_load_cuda", self._load)
        monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)

    def _load(self) -> None:
        self.loads += 1

    def _session(self, _model: bytes, _options: Any, device: Device) -> Session:
        self.entries.append(device.session_entries)
        found: Any = self.opened.pop(0)
        if isinstance(found, Exception):
            raise found
        session: Session = found
        return session


def opened(device: Device = CUDA) -> Any:
    return open_on_device(b"model", session_options(CPU), device, "m.onnx")


RIGHT, OTHER = Session("CUDAExecutionProvider"), Session("CPUExecutionProvider")


def test_a_model_runs_on_the_providers_device(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch, RIGHT)
    assert opened() is RIGHT
    assert runtime.loads == 1
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in os.environ


def test_a_part_by_threads_is_told_to_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    Runtime(monkeypatch, RIGHT)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    opened(CUDA.part(Share("mps", "25")))
    assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([OTHER], "device cuda: CUDAExecutionProvider does not start here"),
        ([ValueError("no such option")], "model m.onnx on cuda: no such option"),
        (
            [RuntimeError("nodes assigned to the default CPU EP"), RIGHT],
            "model m.onnx: cuda cannot run all its nodes, and onnxruntime would run the others on the CPU",
        ),
        ([RuntimeError("nodes assigned to the default CPU EP"), OTHER], "CUDAExecutionProvider does not start here"),
        (
            [RuntimeError("nodes assigned to the default CPU EP"), RuntimeError("no driver")],
            "CUDAExecutionProvider does not start here",
        ),
    ],
)
def test_what_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch, found: list[Any], reason: str) -> None:
    runtime = Runtime(monkeypatch, *found)
    with pytest.raises(ModelError) as refused:
        opened()
    assert str(refused.value).startswith(reason) or reason in str(refused.value)
    assert [entries[FALLBACK] for entries in runtime.entries] == ["1", "0"][: len(found)]


def test_a_fault_on_the_cpu_is_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    Runtime(monkeypatch, ValueError("a" * 500))
    monkeypatch.setattr(providers.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ModelError) as refused:
        opened(CPU)
    assert str(refused.value) == "model m.onnx: " + "a" * 300


def test_a_device_is_tried_with_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = providers.ort_errors.Fail("out of memory")
    runtime = Runtime(monkeypatch, RIGHT, Session("CUDAExecutionProvider", fault))
    try_device(CPU)
    assert runtime.entries == [], "the CPU is there"
    try_device(CUDA)
    with pytest.raises(ModelError, match="device cuda: out of memory"):
        try_device(CUDA)


def test_a_missing_provider_is_told_with_what_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Runtime(monkeypatch)
    require_provider(CUDA)
    with pytest.raises(ModelError, match=r"has no ROCMExecutionProvider, only CUDAExecutionProvider, CPU; install an"):
        require_provider(Device("rocm"))
    monkeypatch.setattr(providers, "onnxruntime_package", lambda: None)
    with pytest.raises(ModelError, match=r"uninstall onnxruntime, then install 'jellybean-serving\[agent-openvino\]'"):
        require_provider(Device("openvino"))
