"""Mutated model files: no hang, no agent lost, and whatever becomes of one, the next model is served."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.serving.fuzz.model_fuzz import LIMIT_S, mutated, originals
from tests.support.tiny_models import make_plan

pytestmark = pytest.mark.slow

FUZZ = "tests.integration.serving.fuzz.model_fuzz"


@pytest.mark.parametrize("count", [40, pytest.param(1_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])])
def test_hosts_of_mutated_models(tmp_path: Path, count: int) -> None:
    """As an agent holds them; with another sha256 each is refused before anything looks into it."""
    command = [sys.executable, "-m", FUZZ, str(count), "7", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert sum(found["told"].values()) == count
    assert found["told"]["refused"] > 0
    assert found["told"]["ran"] > 0


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])])
def test_agents_with_mutated_models(tmp_path: Path, count: int) -> None:
    """An agent that cannot load its model says so in one line and ends with 2; no traceback, no signal, no hang."""
    chance = random.Random(11)
    models = originals(tmp_path)
    (tmp_path / "models").mkdir()
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        data = mutated(chance.choice(models), chance)
        (tmp_path / "models/only.onnx").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        plan = make_plan(tmp_path, {"only": (["x"], sha256)}, [(1.0, {"only": "edge-1"})], sources={"x": "edge"})
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        peers = {"": f"unix:{folder}/g.sock", "edge-1": f"unix:{folder}/a.sock"}
        (folder / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
        files = [f"--plan={folder}/plan.json", f"--peers={folder}/peers.json", f"--root={tmp_path}"]
        own = ["--worker=edge-1", f"--listen=unix:{folder}/a.sock", f"--max-run-s={LIMIT_S}"]
        command = [sys.executable, "-m", "jellybean_agent", *files, *own]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            told = ""
            for line in child.stderr:
                told += line
                if "ready: only" in line:
                    child.terminate()
                    break
            told += child.stderr.read()
            status = child.wait(60)
        assert "Traceback" not in told
        assert status == (0 if "ready: only" in told else 2), told
        if status == 2:
            assert told.splitlines()[-1].startswith("edge-1: only/only: ")
