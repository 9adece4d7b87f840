"""Several workflows on a fleet whose sites differ: each site has a workflow of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import MultiWorkflowProject, build_problem, load_any_project
from jellybean.errors import DocumentError
from jellybean.planning import PlanFile
from jellybean_solver import evaluate
from tests.support.unlike_sites import INFRASTRUCTURE, PROFILES, WORKFLOW

HEADER = (
    "site,shop.sources.camera.rate,till.sources.camera.rate,workers.box.count,till.slo.accuracy,shop.admission.worth"
)
ROWS = "berlin,2/s,1/s,1,,\nparis,6/s,2/s,4,90,\nrome,,,0,,0.01 USD/h\n"


def written(folder: Path, infrastructure: str, stores: str = "") -> Path:
    """Two workflows, `shop` and `till`, on a fleet."""
    for name in ("shop", "till"):
        own = folder / "workflows" / name
        own.mkdir(parents=True)
        (own / "workflow.yaml").write_text(WORKFLOW, encoding="utf-8")
        (own / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(infrastructure, encoding="utf-8")
    if stores:
        (folder / "stores.csv").write_text(stores, encoding="utf-8")
    return folder


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    return written(tmp_path / "stores", INFRASTRUCTURE, f"{HEADER}\n{ROWS}")


def test_each_site_has_each_workflow_with_what_the_file_states(stores: Path) -> None:
    project = load_any_project(stores)
    assert isinstance(project, MultiWorkflowProject)
    assert list(project.written) == ["shop", "till"]
    assert sorted(project.workflows) == [
        f"{name}@{site}" for name in ("shop", "till") for site in ("berlin", "paris", "rome")
    ]
    rates = {name: part.workflow.sources["camera"].rate_per_s for name, part in project.workflows.items()}
    assert rates["shop@berlin"] == 2
    assert rates["till@paris"] == 2
    assert rates["shop@rome"] == 4
    assert project.workflows["till@paris"].workflow.slo.accuracy == 90
    assert project.workflows["shop@paris"].workflow.slo.accuracy == 80
    problem = build_problem(project)
    assert {one.name: one.worth_usd_per_h for one in problem.workflows if one.worth_usd_per_h} == {"shop@rome": 0.01}
    counts = {pool.name: pool.count for pool in problem.pools}
    assert counts == {"berlin/box": 1, "paris/box": 4, "gpu": 6}


def test_a_plan_of_all_keeps_limits_and_targets(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(stores)]) == 0
    assert "3 sites" in capsys.readouterr().out
    assert run(["plan", str(stores)]) == 0
    problem, plan = build_problem(load_any_project(stores)), PlanFile(stores).load().plan
    assert evaluate(problem, plan).complaints == ()
    assert "shop@rome" in {one.name for one in plan.left_out}
    assert run(["plan", str(stores), "--from", str(stores), "--set", "till.sources.camera.rate=5/s", "--dry-run"]) == 0
    assert run(["simulate", str(stores), "--duration", "20s"]) == 0


def test_one_site_costs_what_its_workflows_cost_without_a_file(tmp_path: Path) -> None:
    one = written(tmp_path / "one", INFRASTRUCTURE, "site,workers.box.count\nberlin,2\n")
    plain = written(tmp_path / "plain", INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", ""))
    for folder in (one, plain):
        assert run(["plan", str(folder)]) == 0
    costs = [PlanFile(folder).load().plan.cost.total_usd_per_h for folder in (one, plain)]
    assert costs[0] == pytest.approx(costs[1])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("sources.camera.rate", "did you mean 'till.sources.camera.rate'"),
        ("bar.sources.camera.rate", "a site has no 'bar.sources.camera.rate'"),
        ("workers.gpu.count", "does not belong to a site"),
    ],
)
def test_columns_that_no_workflow_has_are_refused(tmp_path: Path, header: str, message: str) -> None:
    folder = written(tmp_path, INFRASTRUCTURE, f"site,{header}\nberlin,1\n")
    with pytest.raises(DocumentError, match=message):
        load_any_project(folder)
