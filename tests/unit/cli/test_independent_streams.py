"""Sources that form several request streams: planned and simulated, never served, and every command says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean.serving.local import launcher
from jellybean_k8s import DeployError, DeploymentSettings, ModelSource, deployed_plan, render
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project

STREAMS = "its sources form 2 independent request streams (x to first, triple; y to alone): it can be planned and"
WAY_OUT = "write one workflow per stream"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The scales with a second source of another rate, which an operator of its own reads."""
    folder = make_scales_project(tmp_path / "scales")
    workflow, profiles = folder / "workflow.yaml", folder / "profiles.yaml"
    text = workflow.read_text(encoding="utf-8")
    two = next(line.strip().removeprefix("two: ") for line in text.splitlines() if line.strip().startswith("two:"))
    text = text.replace(
        "operators:\n", "  y: {tier: edge, rate: 3/s, message: 16 B, inputs: data/heldout.npz#x}\noperators:\n"
    )
    text += f"  alone: {{inputs: [y], variants: {{two: {two}}}}}\n"
    workflow.write_text(text, encoding="utf-8")
    text = profiles.read_text(encoding="utf-8")
    text = text.replace("accuracy:\n", "  alone: {two: {message: 16 B, latency: {box: 1 ms}}}\naccuracy:\n")
    profiles.write_text(text + "    alone: {two: 90}\n", encoding="utf-8")
    return folder


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("is_profiled", [True, False])
def test_validate_names_the_streams_and_what_to_do(project: Path, is_profiled: bool) -> None:
    if not is_profiled:
        (project / "profiles.yaml").unlink()
    said = one_line(jellybean("validate", str(project)).stderr)
    assert f"{project}/workflow.yaml: {STREAMS}" in said
    assert WAY_OUT in said
    (reason,) = json.loads(jellybean("validate", str(project), "--json").stdout)["not_served"]
    assert reason.startswith(STREAMS)


def test_sources_of_one_rate_are_one_stream(project: Path) -> None:
    same = ("--set", "sources.y.rate=20/s")
    assert "independent" not in jellybean("validate", str(project), *same).stderr
    assert "not_served" not in json.loads(jellybean("validate", str(project), *same, "--json").stdout)


def test_what_follows_a_plan_is_not_to_serve_it(project: Path) -> None:
    said = one_line(jellybean("plan", str(project)).stderr)
    assert f"jellybean simulate {project}, jellybean explain {project}" in said
    assert STREAMS in said and f"jellybean up {project}" not in said
    reported = jellybean("report", str(project))
    said = one_line(reported.stdout + reported.stderr)
    assert STREAMS in said
    assert f"next: jellybean simulate {project}" in said
    assert "jellybean bench" not in said and f"jellybean up {project}" not in said


def test_a_resource_of_the_operator_is_not_deployed_either(project: Path) -> None:
    plan = plan_project(load_project(project)).plan
    assert plan is not None
    with pytest.raises(DeployError, match="scales: its sources form 2 independent request streams"):
        render(deployed_plan(plan, DeploymentSettings({"cpu": "agent"}, "gateway", ModelSource(claim="models"))))


@pytest.mark.parametrize(
    "command",
    [("up",), ("gateway", "--peers", "peers.json"), ("render",), ("render", "--resource"), ("deploy", "--dry-run")],
)
def test_no_command_serves_it(project: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_arguments: object, **_more: object) -> None:
        raise AssertionError("it was started")

    monkeypatch.setattr(launcher, "up", started)
    monkeypatch.setattr(launcher, "serve_joined", started)
    name, *options = command
    said = one_line(jellybean(name, str(project), *options, status=1).stderr)
    assert f"scales: {STREAMS}" in said
    assert not (project / "plan.json").exists()
