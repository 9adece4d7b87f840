"""`workers.W.share`: the part of a device that a worker is, its price and memory, and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import Entry, Part, build_problem, load_project
from jellybean.errors import DocumentError
from jellybean.planning import explain_project
from jellybean.profiler.project import devices_of
from jellybean_agent import Device, Share, plan_view
from jellybean_solver import Plan, RequirementKind, solve, to_document
from tests.support.device_project import make_device_project

MIB, GIB = 2**20, 2**30
ROW = "1: {mean: 1 ms, device_memory: 300 MiB}"
PROFILES = "kind: Profiles\noperators: {net: {dense: {message: 32 B, latency: {plain: 2 ms, other: {%s}}}}}\n"


def project(folder: Path, text: str, profiles: str = PROFILES % ROW) -> Path:
    """`other`, at 0.1 USD/h, has the device and the share of the text; no worker is on the CPU."""
    make_device_project(folder, text)
    path = folder / "infrastructure.yaml"
    written = path.read_text(encoding="utf-8").replace("plain: {tier: here, count: 1", "plain: {tier: here, count: 0")
    path.write_text(written, encoding="utf-8")
    (folder / "profiles.yaml").write_text(profiles, encoding="utf-8")
    return folder


def planned(folder: Path) -> Plan:
    plan = solve(build_problem(load_project(folder))).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("text", "share", "price", "memory_bytes"),
    [
        ("{mig: 1g.10gb}", Share("mig", "1g.10gb"), 0.1 / 7, 10e9),
        ("{mig: 3g.40gb}", Share("mig", "3g.40gb"), 0.3 / 7, 40e9),
        ("{mps: 25 %}", Share("mps", "25"), 0.025, 20 * GIB),
        ("{mps: 12.5 %}", Share("mps", "12.5"), 0.0125, 10 * GIB),
        ("{slots: 4}", Share("slots", "4"), 0.025, 20 * GIB),
    ],
)
def test_a_worker_costs_and_has_its_part_of_the_device(
    tmp_path: Path, text: str, share: Share, price: float, memory_bytes: float
) -> None:
    plan = planned(project(tmp_path / "p", f"cuda, device_memory: 80 GiB, share: {text}"))
    (worker,) = plan.workers
    assert worker.price_usd_per_h == pytest.approx(price)
    assert worker.device_memory_bytes == pytest.approx(memory_bytes)
    assert plan.cost.total_usd_per_h == pytest.approx(price)
    (served,) = plan_view(to_document(plan)).serving
    assert served.device.share == share
    assert served.device.provider_options == {"device_id": "0"}  # onnxruntime knows nothing of it


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "cpu, share: {slots: 2}",
            "share is a part of a GPU or another device, but the device is the CPU; remove share",
        ),
        ("rocm, share: {mps: 25 %}", "mps divides GPUs of NVIDIA, but the device is rocm"),
        ("openvino, share: {mig: 1g.10gb}", "mig divides GPUs of NVIDIA, but the device is openvino"),
        ("cuda, share: {mps: 25 %, slots: 4}", "mps and slots given; write one of them"),
        ("cuda, share: {}", "neither mig, mps nor slots given"),
        ("cuda, share: {mig: 1g}", "'1g' is no share by mig; write for example 1g.10gb: one of 7 slices"),
        ("cuda, share: {mps: 125 %}", "share.mps"),
        ("cuda, share: {slots: 1}", "share.slots"),
        ("{provider: cuda, options: {share.slots: 2}}", "share is no option of the device; write share beside device"),
        ("{provider: cuda, options: {share.half: 2}}", "'half' is no share of a device"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        load_project(project(tmp_path / "p", text))


def test_figures_of_another_share_are_stale(tmp_path: Path) -> None:
    origin = "provenance: {latency: {other: {device: cuda (share.slots=4), run: 1}}}"
    text = (PROFILES % ROW).replace("{message: 32 B", f"{{{origin}, message: 32 B")
    runs = "runs: {1: {date: 2026-11-21 10:54 UTC, cpu: x, cores: 2, onnxruntime: 1.31.1, threads: 1, batches: [1]}}\n"
    folder = project(tmp_path / "p", "cuda, share: {slots: 4}", text + runs)
    assert load_project(folder).stale == ()
    changed = load_project(folder, ["workers.other.share={slots: 2}"], accept_stale=True)
    (entry,) = changed.stale
    assert entry.entries == (Entry(Part.LATENCY, "net", "dense", "other"),)
    assert "cuda (share.slots=4), is now cuda (share.slots=2)" in str(entry.problem)
    assert devices_of(changed)["other"] == Device("cuda").part(Share("slots", "2"))


def test_explain_states_the_memory_of_the_whole_device_to_write(tmp_path: Path) -> None:
    """A quarter of 1 GiB is too small for 300 MiB: 1200 MiB are enough."""
    folder = project(tmp_path / "p", "cuda, device_memory: 1 GiB, share: {slots: 4}")
    found = explain_project(load_project(folder), time_limit_s=20.0)
    (memory,) = [one for one in found.locations if one.kind is RequirementKind.DEVICE_MEMORY]
    assert found.settings(memory, 300.0 * MIB) == ("workers.other.device_memory=1.1719 GiB",)
