"""Profiles that no longer match their project, on the command line: refused everywhere, or accepted and stated."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import onnx
import pytest

from jellybean.documents.checks.files import sha256_of
from tests.support.command_line import jellybean

NO_P99 = ("--set", "slo.latency_p99=null")  # plans are not simulated, which takes seconds
CHANGE = "shape cnn-large-int8 (models/shape-cnn-large-int8.onnx) was 62aa86747b6a, is now "


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """digits with another model for one variant, and the new model's sha256 in workflow.yaml."""
    folder = tmp_path_factory.mktemp("stale") / "digits"
    jellybean("init", "digits", str(folder))
    path = folder / "models/shape-cnn-large-int8.onnx"
    before = sha256_of(path)
    model = onnx.load(str(path))
    model.producer_name = "trained again"
    onnx.save(model, str(path))
    workflow = folder / "workflow.yaml"
    workflow.write_text(workflow.read_text(encoding="utf-8").replace(before, sha256_of(path)), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *("validate", "plan", "simulate", "explain", "frontier", "up --detach", "apply", "certs", "render"),
        *("render --resource", "token --worker cloud-1", "gateway --peers peers.json", "deploy", "plan --from running"),
        "plan --check {}/traces/day.csv",
    ],
)
def test_a_replaced_model_is_refused(replaced: Path, command: str) -> None:
    """The model's own sha256 is right, so only provenance tells that accuracy and latency are those of the old one."""
    name, *options = command.format(replaced).split()
    done = jellybean(name, str(replaced), *options, status=2)
    assert CHANGE in done.stderr
    assert "stale: latency of shape cnn-large-int8 on camera-box, hub and cloud, messages of shape" in done.stderr
    assert f"run `jellybean profile {replaced}` to measure what changed, or go on with these figures: --stale" in (
        done.stderr
    )
    assert re.search(r"profiles\.yaml:\d+:\d+: operators\.shape\.cnn-large-int8: ", done.stderr)
    assert done.stdout == ""
    assert not (replaced / "plan.json").exists()


def test_json_of_stale_profiles(replaced: Path) -> None:
    error = json.loads(jellybean("plan", str(replaced), "--json", status=2).stdout)["error"]
    assert error["kind"] == "stale"
    assert [problem["path"] for problem in error["problems"]] == ["operators.shape.cnn-large-int8"]
    (change,) = error["stale"]
    assert (change["changed"], change["before"]) == (
        "shape cnn-large-int8 (models/shape-cnn-large-int8.onnx)",
        "62aa86747b6a",
    )
    assert {"part": "accuracy", "operator": "", "variant": "", "type": ""} in change["entries"]
    valid = json.loads(jellybean("validate", str(replaced), "--json", status=2).stdout)
    assert valid["valid"] is False
    assert valid["error"]["stale"] == error["stale"]
    accepted = json.loads(jellybean("validate", str(replaced), "--json", "--stale").stdout)
    assert accepted == {"valid": True, "problems": [], "stale": error["stale"]}


@pytest.mark.slow
def test_accepted_stale_profiles_are_stated(replaced: Path, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(replaced, folder)
    planned = jellybean("plan", str(folder), "--stale")
    line = f"planned with stale profiles: {CHANGE}"
    assert line in " ".join(planned.stdout.split())
    assert CHANGE in planned.stderr
    assert f"jellybean up {folder} --stale" in planned.stderr
    (text,) = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["stale_profiles"]
    assert text.startswith(CHANGE)
    assert line in " ".join(jellybean("report", str(folder)).stdout.split())
    assert line in (folder / "report.html").read_text(encoding="utf-8")
    assert json.loads(jellybean("report", str(folder), "--json").stdout)["stale_profiles"] == [text]
    again = json.loads(jellybean("plan", str(folder), "--stale", "--json").stdout)
    assert again["stale_profiles"] == [text]
    jellybean("simulate", str(folder), status=2)  # accepting is for one command
    assert "planned again" not in jellybean("simulate", str(folder), "--stale").stderr


def test_times_of_another_machine_are_said_once_where_they_matter(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    jellybean("init", "digits", str(folder))
    profiles = folder / "profiles.yaml"
    profiles.write_text(
        re.sub(r"onnxruntime: .*", "onnxruntime: 1.0.0", profiles.read_text(encoding="utf-8")), encoding="utf-8"
    )
    (line,) = [line for line in jellybean("plan", str(folder), *NO_P99).stderr.splitlines() if "1.0.0" in line]
    assert line.startswith(f"{profiles}: the times were not measured on a machine like this one")
    assert line.endswith(f"; to measure them here: jellybean profile {folder}")
    for command in (("certs", *NO_P99), ("validate",)):
        assert "1.0.0" not in jellybean(command[0], str(folder), *command[1:]).stderr


@pytest.mark.slow
def test_a_plan_of_current_profiles_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    jellybean("init", "digits", str(folder))
    jellybean("plan", str(folder), "--stale", *NO_P99)
    assert "stale_profiles" not in json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert "stale_profiles" not in json.loads(jellybean("plan", str(folder), "--json", *NO_P99).stdout)
