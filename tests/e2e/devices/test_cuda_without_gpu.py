"""onnxruntime-gpu on a machine without a GPU: every command exits with 2 and the reason before it measures or serves.

Runs where onnxruntime-gpu is installed: `make devices`. Without that package the provider is missing, with other words:
tests/unit/documents/test_devices.py, tests/integration/serving/requests/test_agent_cli.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from jellybean.documents import build_problem, load_project
from jellybean_solver import solve, to_document
from tests.support.command_line import jellybean, jellybean_process
from tests.support.device_project import make_device_project
from tests.support.skips import Absent

pytestmark = [
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in ort.get_available_providers(),
        reason=Absent.ONNXRUNTIME_BUILD,
    ),
    pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU"),
]
REASON = "CUDAExecutionProvider does not start here, and onnxruntime would compute on the CPU instead"
PROFILES = """\
kind: Profiles
operators:
  net:
    dense: {message: 32 B, latency: {plain: 2 ms, other: 1 ms}}
accuracy: {independent: {net: {dense: 100}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_device_project(tmp_path / "rows", "cuda")


def test_profile_measures_nothing(folder: Path) -> None:
    done = jellybean_process("profile", str(folder), status=2)
    assert f"workers.other.device: device cuda: {REASON}" in " ".join(done.stderr.split())
    assert not (folder / "profiles.yaml").exists()


def test_up_and_an_agent_serve_nothing(folder: Path) -> None:
    """The agent's command is that of its pod, too."""
    (folder / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    jellybean("plan", str(folder))
    done = jellybean_process("up", str(folder), "--detach", status=2)
    assert f"other-1: device cuda: {REASON}" in " ".join(done.stderr.split())
    plan = solve(build_problem(load_project(folder))).plan
    assert plan is not None
    (folder / "served.json").write_text(json.dumps(to_document(plan)), encoding="utf-8")
    addresses = {"": f"unix:{folder}/g.sock", "other-1": f"unix:{folder}/0.sock"}
    (folder / "peers.json").write_text(json.dumps(addresses), encoding="utf-8")
    files = {"plan": "served.json", "peers": "peers.json", "root": ""}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    command = [sys.executable, "-m", "jellybean_agent", *options, "--worker=other-1", f"--listen=unix:{folder}/0.sock"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert REASON in ended.stderr
    assert " ready: " not in ended.stderr
