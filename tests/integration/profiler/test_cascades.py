"""A cascade from its profile to its answers: measured, planned, served, and each answer that of the two models."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from jellybean.documents import build_problem, load_project
from jellybean.errors import DocumentError, StaleProfilesError
from jellybean.frontier import find_frontier
from jellybean.planning import (
    PlanFile,
    WrittenPlan,
    current_plan,
    explain_project,
    plan_project,
    planned_cascades,
    replan_project,
)
from jellybean.profiler import measurements, profile
from jellybean.report.plans.plan_view import cascade_lines
from jellybean.serving import Client
from jellybean.serving.local import launcher
from jellybean.serving.local.running import down
from jellybean_agent import Executor
from jellybean_solver import Verdict, evaluate, to_document
from tests.support.known_hop import keep_hop
from tests.support.paths import EXAMPLES

WHEN = "softmax(scores) < 0.9"
TARGET = "slo.accuracy=95.5"  # more than either model alone has: it takes the cascade


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plates example with a cascade of its models, profiled quickly."""
    found = tmp_path_factory.mktemp("cascade")
    shutil.copy(EXAMPLES / "split/infrastructure.yaml", found)
    for name in ("models", "data"):
        shutil.copytree(EXAMPLES / "split" / name, found / name, ignore=shutil.ignore_patterns("stages"))
    text = (EXAMPLES / "split/workflow.yaml").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if "cuts:" not in line) + "\n"
    cascade = f'both: {{cascade: {{first: small, then: wide, when: "{WHEN}"}}}}'
    (found / "workflow.yaml").write_text(text.replace("labels:", f"      {cascade}\nlabels:", 1), encoding="utf-8")
    keep_hop(found)
    profile(load_project(found, profiles=False), seconds_per_point=0.02)
    return found


def scores_of(folder: Path, variant: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pictures, labels, and the scores of a variant."""
    project = load_project(folder, profiles=False)
    spec = project.workflow.operators["read"].variants[variant]
    with np.load(folder / "data/heldout.npz") as data:
        plates, labels = data["plates"], data["labels"]
    whole = Executor(folder / str(spec.model), str(spec.sha256), ["plate"], batch=len(plates))
    return plates, labels, whole.run((plates,)).outputs["scores"]


def answers(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """What the cascade answers to each picture, computed here, and which of them it passes on."""
    _, _, first = scores_of(folder, "small")
    _, _, then = scores_of(folder, "wide")
    shares = np.exp(first - first.max(axis=1, keepdims=True))
    unsure = (shares / shares.sum(axis=1, keepdims=True)).max(axis=1) < 0.9
    return np.where(unsure[:, None], then, first), unsure


def test_profile_measures_what_is_passed_on_and_the_accuracy_of_both(folder: Path) -> None:
    project = load_project(folder)
    assert project.profiles is not None
    own = project.profiles.cascades["read"]["both"]
    expected, unsure = answers(folder)
    _, labels, _ = scores_of(folder, "small")
    assert own.operators["read.unsure"]["both"].mean_children == pytest.approx(unsure.mean(), abs=1e-6)
    assert own.accuracy is not None
    (row,) = own.accuracy.end_to_end or ()
    assert row.accuracy == pytest.approx(100 * (expected.argmax(axis=1) == labels).mean(), abs=1e-4)
    rates = build_problem(project.alternatives[0]).rate_per_s
    assert rates["read.then"] == pytest.approx(20 * unsure.mean(), rel=1e-6)
    again = profile(load_project(folder, profiles=False), seconds_per_point=0.02)
    assert not again.written
    assert not again.todo.measure


@pytest.mark.slow
def test_another_condition_is_another_cascade(folder: Path, tmp_path: Path) -> None:
    """Its own entries are stale, and measured again; those of the models are kept."""
    shutil.copytree(folder, tmp_path / "other")
    file = tmp_path / "other/workflow.yaml"
    before = load_project(folder).profiles
    file.write_text(file.read_text(encoding="utf-8").replace(WHEN, "softmax(scores) < 0.5"), encoding="utf-8")
    with pytest.raises(StaleProfilesError, match=r"stale: .*read\.unsure both"):
        build_problem(load_project(file.parent))
    todo = measurements(load_project(file.parent, profiles=False))
    assert {entry.operator for entry in todo.measure} == {"read.unsure", "read.then", "read", ""}  # not the first
    profile(load_project(file.parent, profiles=False), seconds_per_point=0.02)
    after = load_project(file.parent).profiles
    assert before is not None
    assert after is not None
    assert after.operators == before.operators
    shares = [one.cascades["read"]["both"].operators["read.unsure"]["both"].mean_children for one in (before, after)]
    assert shares[1] < shares[0]
    assert set(after.runs) >= {origin.run for origin in after.origins if origin.run is not None}


@pytest.mark.slow
def test_a_cascade_that_is_no_more_leaves_the_profiles(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    file = tmp_path / "other/workflow.yaml"
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(line for line in lines if "cascade" not in line) + "\n", encoding="utf-8")
    known = load_project(folder).profiles
    with pytest.raises(
        DocumentError, match=r"profiles.yaml:.*cascades\.read\.both: the workflow's read has no cascade"
    ):
        load_project(file.parent)
    assert profile(load_project(file.parent, profiles=False), seconds_per_point=0.02).written
    after = load_project(file.parent).profiles
    assert known is not None
    assert after is not None
    assert (after.operators, after.accuracy, after.cascades) == (known.operators, known.accuracy, {})
    assert plan_project(load_project(file.parent)).plan is not None


@pytest.mark.slow
def test_the_plan_takes_the_cascade_where_it_is_needed(folder: Path) -> None:
    project = load_project(folder, [TARGET, "sources.plate.rate=2/s", "slo.latency_p99=5 s"])
    planned = plan_project(project)
    plan = planned.plan
    assert plan is not None
    (cascade,) = planned_cascades(plan)
    assert (cascade.operator, cascade.first, cascade.then, cascade.when) == ("read", "small", "wide", WHEN)
    (line,) = cascade_lines(plan)
    assert line.startswith("read is a cascade: small first, in ")
    assert evaluate(build_problem(project), plan).complaints == ()
    alone = {found.name: found for found in planned.baselines}["no cascade"]
    assert alone.cost_usd_per_h is None
    PlanFile(folder).write(planned)
    assert current_plan(project) == (plan, "")
    assert replan_project(project, PlanFile(folder).load(), horizon_h=1.0).decision.verdict is Verdict.KEEP
    explained = explain_project(project)
    assert explained.explanation.plan is not None
    assert planned_cascades(explained.explanation.plan)
    curves = find_frontier(load_project(folder, ["sources.plate.rate=2/s", "slo.latency_p99=5 s"]))
    best = curves.curve.points[-1]
    assert best.plan is not None
    assert best.x == pytest.approx(plan.accuracy)
    assert planned_cascades(best.plan)


@pytest.mark.slow
def test_a_running_plan_adopts_the_cascade_and_drops_it(folder: Path) -> None:
    """As soon as the accuracy asks for it, and as soon as one model alone is cheaper."""
    project = load_project(folder, ["slo.accuracy=80", "slo.latency_p99=null"])
    plain = plan_project(project).plan
    assert plain is not None and not planned_cascades(plain)
    better = load_project(folder, [TARGET, "slo.latency_p99=null"])
    adopted = replan_project(better, WrittenPlan(to_document(plain), plain), horizon_h=24.0).decision
    assert adopted.verdict is Verdict.REPLACE and adopted.best is not None
    assert planned_cascades(adopted.best)
    dropped = replan_project(project, WrittenPlan(to_document(adopted.best), adopted.best), horizon_h=1000.0).decision
    assert dropped.verdict is Verdict.REPLACE and dropped.best is not None
    assert not planned_cascades(dropped.best)


def test_the_plan_is_the_cheapest_with_and_without(folder: Path) -> None:
    """At a low accuracy the cheap model alone is enough, and the proof covers the cascade too."""
    project = load_project(folder, ["slo.accuracy=80", "slo.latency_p99=null"])
    planned = plan_project(project)
    assert planned.plan is not None
    assert planned.status == "optimal"
    cheapest = min(
        plan.cost.total_usd_per_h for one in project.candidates if (plan := plan_project(one).plan) is not None
    )
    assert planned.plan.cost.total_usd_per_h == pytest.approx(cheapest)


def test_no_plan_says_that_no_cascade_gives_one_either(folder: Path) -> None:
    planned = plan_project(load_project(folder, ["slo.accuracy=99.9"]))
    assert planned.plan is None
    assert planned.reasons[-1] == "that is without a cascade; with one, none of 1 gives a plan either"


@pytest.mark.slow
def test_served_answers_are_those_of_the_two_models(folder: Path) -> None:
    project = load_project(folder, [TARGET, "sources.plate.rate=2/s", "slo.latency_p99=5 s"])
    plan, _ = current_plan(project)
    plates, _, _ = scores_of(folder, "small")
    expected, unsure = answers(folder)
    assert 0 < unsure.sum() < len(unsure)
    launcher.up(folder, to_document(plan))
    try:
        with Client.of(folder) as client:
            for row in range(24):
                answer = client.infer({"plate": plates[row : row + 1]})
                np.testing.assert_allclose(answer["read"], expected[row : row + 1], rtol=0, atol=1e-4)
    finally:
        down(folder, timeout_s=1.0)


def test_the_file_has_the_cascade_in_order(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    found = YAML(typ="safe").load(text)
    assert list(found["cascades"]["read"]["both"]["operators"]) == ["read.first", "read.unsure", "read.then", "read"]
    assert "- {selection: {}, accuracy: " in text
