"""Several workflows on one fleet: what is read, and everything that can be wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from jellybean.documents import MultiWorkflowProject, Project, build_problem, load_any_project, load_project
from jellybean.errors import DocumentError
from tests.unit.documents.conftest import INFRASTRUCTURE, PROFILES, WORKFLOW

MODEL = Path(__file__).parents[3] / "examples" / "digits" / "models" / "strokes-linear.onnx"
ALONE = WORKFLOW.replace(", budget: 10 USD/h", "")
COUNTING = """\
kind: Workflow
name: counting
sources:
  camera: {tier: edge, rate: 2/s, message: 50 KiB}
operators:
  detect:
    inputs: [camera]
    variants: [small]
slo: {latency_p99: 2 s}
"""
COUNTED = """\
kind: Profiles
hop: 1.5 ms
operators:
  detect:
    small: {latency: {box: 30 ms}}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two workflows that have a name in common."""
    shop = tmp_path / "shop"
    for name, workflow, profiles in (("parcels", ALONE, PROFILES), ("count", COUNTING, COUNTED)):
        (shop / "workflows" / name).mkdir(parents=True)
        (shop / "workflows" / name / "workflow.yaml").write_text(workflow, encoding="utf-8")
        (shop / "workflows" / name / "profiles.yaml").write_text(profiles, encoding="utf-8")
    (shop / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    return shop


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def told(shop: Path, overrides: Sequence[str] = ()) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_any_project(shop, overrides)
    return [str(problem).replace(f"{shop}/", "") for problem in caught.value.problems]


def test_names_are_qualified_and_targets_their_own(shop: Path) -> None:
    project = load_any_project(shop)
    assert isinstance(project, MultiWorkflowProject)
    problem = build_problem(project)
    assert problem.name == "shop"
    assert [source.name for source in problem.sources] == ["count/camera", "parcels/camera", "parcels/scale"]
    assert [op.name for op in problem.operators] == ["count/detect", "parcels/detect", "parcels/read", "parcels/label"]
    assert {w.name: (w.slo.accuracy, w.slo.latency_p99_s) for w in problem.workflows} == {
        "count": (None, 2.0),
        "parcels": (90.0, 0.8),
    }
    detect = problem.operator_by_name["parcels/detect"].variant("large")
    assert detect.message_bytes == {"parcels/read": 12 * 1024.0}
    assert problem.hop_s == 0.0015  # the longest
    assert problem.slo.budget_usd_per_h is None
    assert problem.accuracy.value({op.name: op.variants[0].name for op in problem.operators}) == pytest.approx(1.5)


def test_models_are_told_from_the_folder_of_all(shop: Path) -> None:
    (shop / "workflows/count/models").mkdir()
    (shop / "workflows/count/models/small.onnx").write_bytes(MODEL.read_bytes())
    digest = hashlib.sha256(MODEL.read_bytes()).hexdigest()
    named = f"variants: {{small: {{model: models/small.onnx, sha256: {digest}}}}}"
    edit(shop / "workflows/count/workflow.yaml", "variants: [small]", named)
    (detect, *_) = build_problem(load_any_project(shop)).operators
    assert detect.variants[0].model is not None
    assert detect.variants[0].model.path == "workflows/count/models/small.onnx"
    assert (shop / detect.variants[0].model.path).is_file()


def test_a_workflow_is_a_project_of_its_own_on_the_same_fleet(shop: Path) -> None:
    project = load_any_project(shop / "workflows" / "count")
    assert isinstance(project, Project)
    problem = build_problem(project)
    assert [pool.name for pool in problem.pools] == ["box", "gpu"]
    assert [op.name for op in problem.operators] == ["detect"]
    assert problem.workflows == ()


def test_what_works_with_one_workflow_says_where(shop: Path) -> None:
    with pytest.raises(DocumentError, match=r"has 2 workflows .* name the folder of one: .*workflows/count or"):
        load_project(shop)


def test_options_reach_a_workflow_by_name_and_the_fleet_without(shop: Path) -> None:
    of_one = ["parcels.slo.accuracy=93", "count.sources.camera.rate=7/s", "count.profiles.hop=4 ms"]
    problem = build_problem(load_any_project(shop, [*of_one, "workers.box.count=9", "limits.budget=3 USD/h"]))
    assert [w.slo.accuracy for w in problem.workflows] == [None, 93.0]
    assert problem.source_by_name["count/camera"].rate_per_s == 7.0
    assert problem.source_by_name["parcels/camera"].rate_per_s == 12.0
    assert problem.pool_by_name["box"].count == 9
    assert problem.slo.budget_usd_per_h == 3.0
    assert problem.hop_s == 0.004


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("slo.accuracy=93", "the project has several workflows: name one; write --set count.slo.accuracy=93"),
        ("profiles.hop=1 ms", "the project has several workflows: name one"),
        ("count.workers.box.count=1", "the fleet is shared by all workflows; remove the workflow's name"),
        ("cuont.slo.accuracy=93", "did you mean 'count'?"),
        ("count.slo.acuracy=93", "did you mean 'accuracy'"),
        ("count.slo.accuracy=93", "the target is accuracy 93, but the profiles have no accuracy"),
        (
            "parcels.slo.budget=5 USD/h",
            "workflows that share a fleet have one budget; write it into infrastructure.yaml",
        ),
    ],
)
def test_wrong_options_are_told_at_the_option(shop: Path, option: str, text: str) -> None:
    (problem,) = told(shop, [option])
    assert problem.startswith(f"--set {option}: ")
    assert text in problem


def test_every_problem_of_every_workflow_at_once_with_file_and_line(shop: Path) -> None:
    edit(shop / "workflows/parcels/workflow.yaml", "[small, large]", "[small, lrage]")
    edit(shop / "workflows/count/workflow.yaml", "tier: edge", "tier: egde")
    edit(shop / "workflows/count/profiles.yaml", "30 ms", "30 MiB")
    edit(shop / "infrastructure.yaml", "to: cloud", "to: clod")
    assert {problem.split(": ")[0].rpartition(":")[0] for problem in told(shop)} == {
        "workflows/count/workflow.yaml:4",
        "workflows/count/profiles.yaml:5",
        "workflows/parcels/profiles.yaml:9",
        "workflows/parcels/profiles.yaml:19",
        "infrastructure.yaml:7",
    }


def test_a_worker_type_is_known_to_some_workflow(shop: Path) -> None:
    load_any_project(shop)  # counting knows no t4
    edit(shop / "infrastructure.yaml", "type: t4", "type: t5")
    (problem,) = told(shop)
    assert problem.startswith("infrastructure.yaml:5:")
    assert "workers.gpu.type: no profile has the worker type 't5'; types with profiles: box, t4" in problem


def test_files_that_would_be_left_unread_are_refused(shop: Path) -> None:
    (shop / "workflow.yaml").write_text(WORKFLOW, encoding="utf-8")
    (shop / "workflows/count/infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (shop / "workflows/slo").mkdir()
    (shop / "workflows/slo/workflow.yaml").write_text(COUNTING, encoding="utf-8")
    (shop / "workflows/slo/profiles.yaml").write_text(COUNTED, encoding="utf-8")
    problems = "\n".join(told(shop))
    assert "workflow.yaml: a project has one workflow here or several in workflows/, not both" in problems
    assert "a second fleet; all workflows use" in problems
    assert "a workflow cannot be named slo" in problems


def test_a_budget_of_all_is_none_of_one(folder: Path) -> None:
    edit(folder / "infrastructure.yaml", "sharing: shared", "sharing: shared, budget: 3 USD/h")
    with pytest.raises(DocumentError, match=r"infrastructure.yaml:8.*limits.budget: limits.budget is for several"):
        load_project(folder)


def test_profiles_may_be_missing_until_they_are_asked_for(shop: Path) -> None:
    (shop / "workflows/count/profiles.yaml").unlink()
    project = load_any_project(shop, profiles=False)
    assert isinstance(project, MultiWorkflowProject)
    assert list(project.workflows) == ["count", "parcels"]
    assert any("workflows/count/profiles.yaml" in problem for problem in told(shop))
