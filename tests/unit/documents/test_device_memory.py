"""`device_memory` of a worker and of a profile's rows: read, required, planned with, named, and kept by the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import build_problem, load_project
from jellybean.errors import DocumentError
from jellybean_agent import Device, ModelMemory, plan_view
from jellybean_agent.system.device_memory import used_device_bytes
from jellybean_solver import Plan, solve, to_document
from tests.support.device_project import make_device_project

MIB = 2**20
ROW = "kind: Profiles\noperators: {net: {dense: {message: 32 B, latency: {plain: 2 ms, other: {1: {mean: 1 ms%s}}}}}}\n"
TAKEN = ROW % ", device_memory: 300 MiB"


def project(folder: Path, device: str, limit: str, profiles: str) -> Path:
    make_device_project(folder, device)
    path = folder / "infrastructure.yaml"
    text = path.read_text(encoding="utf-8").replace(f"device: {device}", f"device: {device}, device_memory: {limit}")
    path.write_text(text.replace("plain: {tier: here, count: 1", "plain: {tier: here, count: 0"), encoding="utf-8")
    (folder / "profiles.yaml").write_text(profiles, encoding="utf-8")
    return folder


def planned(folder: Path) -> Plan:
    plan = solve(build_problem(load_project(folder))).plan
    assert plan is not None
    return plan


def test_the_plan_has_both_figures_and_the_agent_limits_the_session(tmp_path: Path) -> None:
    plan = planned(project(tmp_path / "p", "cuda", "1 GiB", TAKEN))
    assert [worker.device_memory_bytes for worker in plan.workers] == [2.0**30]
    assert plan.operator_by_name["net"].device_memory_bytes == {"other": 300.0 * MIB}
    (worker,) = plan_view(to_document(plan)).serving
    assert worker.device_memory_bytes == {"net": 2.0**30}
    limited = worker.device.with_memory_limit(worker.device_memory_bytes["net"])
    assert limited.provider_options == {"device_id": "0", "gpu_mem_limit": str(2**30)}


def test_a_model_that_does_not_fit_is_named_with_figures(tmp_path: Path) -> None:
    why = solve(build_problem(load_project(project(tmp_path / "p", "cuda", "256 MiB", TAKEN)))).infeasibility
    assert why is not None
    assert "memory: even dense needs 300 MiB of device memory, a worker of other has 256 MiB" in why.reasons[0]


def test_a_row_without_the_figure_is_refused(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "cuda", "1 GiB", ROW % ", memory: 9 MiB")
    with pytest.raises(DocumentError, match=r"workers\.other\.device_memory: .* no device_memory of net/dense"):
        build_problem(load_project(folder))


def test_the_cpu_has_none(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="but the device is the CPU; write memory instead"):
        load_project(project(tmp_path / "p", "cpu", "1 GiB", TAKEN))


@pytest.mark.parametrize("device", [Device("openvino"), Device("cuda", (("gpu_mem_limit", "5"),))])
def test_no_limit_is_added_where_there_is_no_option_or_one_is_stated(device: Device) -> None:
    assert device.with_memory_limit(7.0) is device


def test_a_device_that_is_not_here_has_no_figure() -> None:
    assert used_device_bytes(Device("openvino")) is None
    assert ModelMemory(1.0).device_bytes is None
