"""`workers.W.device` in infrastructure.yaml: how it is written, what it reaches, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from jellybean.cli import run
from jellybean.documents import Entry, Part, Project, build_problem, load_project
from jellybean.errors import DocumentError, StaleProfilesError
from jellybean.profiler import measurements
from jellybean.profiler.errors import ProfileError
from jellybean_agent import CPU, Device, plan_view, this_machine
from jellybean_solver import Plan, plan_diff, solve, to_document
from tests.support.measured_project import copied_project, make_project_beside_steps

BOX, SERVER = "price: 0.05 USD/h, speed: 0.5", "price: 0.50 USD/h, type: t4, speed: 1"
AT_T4 = "t4: 1 ms"
without_cuda = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime has CUDA"
)
REASON = r"device cuda: onnxruntime\S* \S+ has no CUDAExecutionProvider, only .*jellybean-serving\[agent-gpu\]"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with made-up figures of a run on this machine."""
    return make_project_beside_steps(tmp_path_factory.mktemp("devices"))


@pytest.fixture
def folder(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return copied_project(base, tmp_path, monkeypatch)


def write(folder: Path, pool: str, device: str) -> None:
    path = folder / "infrastructure.yaml"
    text = path.read_text(encoding="utf-8")
    assert pool in text
    path.write_text(text.replace(pool, f"{pool}, device: {device}"), encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cuda:1", Device("cuda:1")),
        ("{provider: openvino}", Device("openvino")),
        (
            "{provider: openvino, options: {num_of_threads: 2, device_type: CPU}}",
            Device("openvino", (("device_type", "CPU"), ("num_of_threads", "2"))),
        ),
        ("XnnpackExecutionProvider", Device("XnnpackExecutionProvider")),
    ],
)
def test_it_is_read(folder: Path, text: str, device: Device) -> None:
    write(folder, SERVER, text)
    workers = load_project(folder, profiles=False).infrastructure.workers
    assert (workers["gpu"].device, workers["box"].device) == (device, CPU)


@pytest.mark.parametrize(
    ("pool", "text", "problem"),
    [
        (SERVER, "gpu", "workers.gpu.device: 'gpu' is no device; write cpu, cuda, .*cuda:1"),
        (SERVER, "cpu:1", "cpu devices have no number"),
        (SERVER, "7", "7 is no device"),
        (SERVER, "{provider: cuda, gpu_mem_limit: 1}", "is no device"),
        (SERVER, "{provider: cuda, options: [a]}", "is no map of options"),
        (SERVER, "{provider: cuda, options: {use_tf32: true}}", "option use_tf32: true is no text; write it in quotes"),
        (BOX, "openvino", "workers.box: speed 0.5 emulates a slower CPU, but the device is openvino; remove speed"),
    ],
)
def test_what_is_refused(folder: Path, pool: str, text: str, problem: str) -> None:
    write(folder, pool, text)
    with pytest.raises(DocumentError, match=problem):
        load_project(folder, profiles=False)


def test_pools_of_one_type_have_one_device(folder: Path) -> None:
    write(folder, SERVER, "openvino")
    path = folder / "infrastructure.yaml"
    more = "  more: {tier: cloud, price: 1 USD/h, type: t4, speed: 1}\nlinks:"
    path.write_text(path.read_text(encoding="utf-8").replace("links:", more), encoding="utf-8")
    with pytest.raises(ProfileError, match=r"type t4 has pools with different devices \(openvino and cpu\)"):
        measurements(load_project(folder, profiles=False))


def test_figures_belong_to_a_device(folder: Path) -> None:
    """Latencies of the type are stale, no others; with its device in their provenance they are current again."""
    write(folder, SERVER, "openvino")
    with pytest.raises(StaleProfilesError, match="device of t4 was cpu, is now openvino; stale: latency of"):
        build_problem(load_project(folder))
    project = load_project(folder, profiles=False)
    stale = measurements(project).measure
    variants = {(name, one) for name, spec in project.workflow.operators.items() for one in spec.variants}
    latencies = {Entry(Part.LATENCY, *variant, "t4") for variant in variants}
    assert set(stale) == {*latencies, Entry(Part.CUTS, "compare", "net", "t4")}
    with_device(folder, "openvino")
    assert not measurements(load_project(folder, profiles=False)).measure


def with_device(folder: Path, device: str) -> None:
    """Write a device into the provenance of all latencies of t4."""
    path = folder / "profiles.yaml"
    text, count = re.subn(r"(t4: \{(?:model: \w+, )?speed: 1)", rf"\1, device: {device}", path.read_text("utf-8"))
    assert count
    path.write_text(text, encoding="utf-8")


def test_it_reaches_the_plan_and_the_diff(folder: Path) -> None:
    """Every operator is in the cloud: it is on the device of the pool there."""
    before = planned(cloud_only(folder))
    write(folder, SERVER, "{provider: openvino, options: {num_of_threads: 2}}")
    with_device(folder, "openvino (num_of_threads=2)")
    plan = planned(cloud_only(folder))
    view = plan_view(to_document(plan))
    assert {worker.device for worker in view.serving} == {Device("openvino", (("num_of_threads", "2"),))}
    assert "openvino" in str(plan_diff(before, plan))


def planned(project: Project) -> Plan:
    plan = solve(build_problem(project)).plan
    assert plan is not None
    return plan


def cloud_only(folder: Path) -> Project:
    path = folder / "infrastructure.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("count: 2", "count: 0"), encoding="utf-8")
    return load_project(folder)


def test_the_cheaper_device_is_chosen(folder: Path) -> None:
    """Two pools at one price, and the figures of one device half of the other's: all is planned there."""
    write(folder, SERVER, "openvino")
    with_device(folder, "openvino")
    path = folder / "infrastructure.yaml"
    more = "  plain: {tier: cloud, count: 9, price: 0.50 USD/h, speed: 1}\nlinks:"
    text = path.read_text(encoding="utf-8").replace("links:", more).replace("count: 2", "count: 0")
    path.write_text(text.replace("{tier: cloud, count: 1", "{tier: cloud, count: 9"), encoding="utf-8")
    profiles = folder / "profiles.yaml"
    before = profiles.read_text(encoding="utf-8")
    assert AT_T4 in before
    for faster, slower in (("t4", "plain"), ("plain", "t4")):
        times = rf"\1{faster}: 100 ms\n\1{slower}: 200 ms"
        profiles.write_text(re.sub(f"( +){AT_T4}", times, before), encoding="utf-8")
        plan = planned(load_project(folder))
        assert {worker.device for worker in plan.workers} == {"openvino" if faster == "t4" else "cpu"}


@without_cuda
def test_profile_refuses_a_device_that_is_not_here_before_it_measures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SERVER, "cuda")
    assert run(["profile", str(folder)]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"workers\.gpu\.device: {REASON}", text)
    assert not (folder / ".jellybean" / "profile-cache").exists()
    assert run(["profile", str(folder), "--type", "box"]) == 0  # needs no CUDA


def test_the_package_of_onnxruntime_is_named_unless_it_is_the_plain_one() -> None:
    code = (
        "import importlib.util as u, sys;"
        "from jellybean_agent.system.onnxruntime_package import onnxruntime_package as p;"
        "found = p(); assert 'onnxruntime' not in sys.modules; import onnxruntime as o; print(*found, o.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    package, version, imported = done.stdout.split()
    assert version == imported
    assert this_machine().onnxruntime == (version if package == "onnxruntime" else f"{version} ({package})")
