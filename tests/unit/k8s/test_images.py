"""The Dockerfiles: conventions; nightly, what they install in clean environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "k8s" / "images"
NAMES = ("agent", "gateway", "operator")
EXTRAS = ("agent", "agent-cuda", "agent-openvino")  # that an agent's image may be built with
PREFIX = "/opt/jellybean"


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_pinned_of_any_architecture_and_not_run_by_root(name: str) -> None:
    lines = (IMAGES / f"{name}.Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if line and not line.startswith("#")]
    assert re.fullmatch(r"ARG PYTHON=python:\d+\.\d+\.\d+-slim-\w+", steps[0])
    assert [step for step in steps if step.startswith("FROM")] == ["FROM ${PYTHON} AS build", "FROM ${PYTHON}"]
    user = next(step for step in steps if step.startswith("USER"))
    assert user == "USER 65532:65532"
    assert not any(word in "\n".join(steps) for word in ("amd64", "x86", "sudo", "curl", "ADD ", "latest"))
    for step in steps:
        if step.startswith("COPY") and "--from" not in step:
            assert all((ROOT / source).exists() for source in step.split()[1:-1]), step


@pytest.mark.parametrize("name", [*EXTRAS, "gateway", "operator"])
def test_all_packages_of_an_image_are_pinned(name: str) -> None:
    pins = (IMAGES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.+]*", pin) for pin in pins)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_agent_is_built_with_one_onnxruntime(extra: str) -> None:
    """Each build of onnxruntime installs the same folder, so a second one would overwrite the first."""
    assert (
        extra
        in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    pins = (IMAGES / f"{extra}.txt").read_text(encoding="utf-8").splitlines()
    (runtime,) = [pin.partition("==")[0] for pin in pins if pin.startswith("onnxruntime")]
    assert runtime == {"agent": "onnxruntime", "agent-cuda": "onnxruntime-gpu"}.get(extra, "onnxruntime-openvino")


def test_pins_agree_with_each_other() -> None:
    found: dict[str, set[str]] = {}
    for name in (*EXTRAS, "gateway", "operator"):
        for pin in (IMAGES / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            package, _, version = pin.partition("==")
            found.setdefault(package.lower(), set()).add(version)
    assert {package: versions for package, versions in found.items() if len(versions) > 1} == {}


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "extra"), [*(("agent", extra) for extra in EXTRAS), ("gateway", ""), ("operator", "")]
)
def test_what_an_image_installs_runs_alone(name: str, extra: str, tmp_path: Path) -> None:
    """Run the RUN steps with a temporary prefix."""
    source, prefix = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    lines = (IMAGES / f"{name}.Dockerfile").read_text(encoding="utf-8").splitlines()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"EXTRA": extra}
    pinned = IMAGES / f"{extra or name}.txt"
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "COPY" and "--from" not in rest:
            for item in rest.split()[:-1]:
                copy = shutil.copytree if (ROOT / item).is_dir() else shutil.copy
                copy(ROOT / item, source / item)
        elif word == "RUN":
            command = rest.replace(PREFIX, str(prefix)).replace("python -m venv", f"{sys.executable} -m venv")
            subprocess.run(["bash", "-euc", command], cwd=source, env=environment, check=True, timeout=900)
    python = prefix / "bin" / "python"
    installed = subprocess.run(
        [python, "-c", "from importlib import metadata; print(*sorted(d.name for d in metadata.distributions()))"],
        capture_output=True, text=True, check=True, cwd=tmp_path, env=environment,
    ).stdout.lower().split()  # fmt: skip
    pins = {_plain(pin.partition("==")[0]) for pin in pinned.read_text(encoding="utf-8").splitlines()}
    assert {_plain(package) for package in installed} == pins | {"jellybean-serving"}
    assert not {"torch", "pip", "setuptools"} & set(installed)
    packages = {path.name for path in next((prefix / "lib").glob("python3.*/site-packages")).iterdir()}
    ours = {package for package in packages if re.fullmatch(r"jellybean(_[a-z0-9]+)?", package)}
    module = {"agent": "jellybean_agent", "gateway": "jellybean.serving.gateway_main", "operator": "jellybean"}[name]
    if name == "agent":
        assert ours == {"jellybean_agent", "jellybean_protos"}
        assert "highspy" not in installed
    done = subprocess.run(
        [python, "-P", "-m", module, "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    if name != "operator":  # what it imports for traces only
        command = [python, "-P", "-c", "import jellybean_agent.telemetry.spans as spans; spans._exporter({})"]
        subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    if name == "gateway":  # what it imports for a ledger only
        command = [python, "-P", "-c", "import psycopg, jellybean.serving.gateway.accounting.recorder"]
        subprocess.run(command, check=True, cwd=tmp_path, env=environment)


def _plain(package: str) -> str:
    return package.lower().replace("_", "-")
