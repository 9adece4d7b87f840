"""`slo.audit` in workflow.yaml: what is refused, and which selection is the reference."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from jellybean.documents import build_problem, load_any_project, load_project, read_rate_trace
from jellybean.errors import DocumentError
from jellybean.planning import plan_project
from jellybean.report.plans.audit_view import audit_json, audit_lines
from jellybean_solver import request_streams
from tests.support.audited_project import RATE_PER_S, make_audited_project

ACCURACY = "slo: {accuracy: 97, audit: 5 %}"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audited_project(tmp_path_factory.mktemp("audit") / "base")


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "project")


def rewrite(path: Path, changes: Mapping[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def problems(folder: Path) -> list[str]:
    try:
        build_problem(load_any_project(folder))
    except DocumentError as error:
        return [f"{problem.path}: {problem.message}; {problem.hint}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"audit: 5 %": "audit: 0 %"}, "slo.audit: "),
        ({"audit: 5 %": "audit: 101 %"}, "slo.audit: "),
        ({"audit: 5 %": "audit: often"}, "slo.audit: "),
        ({"classify:": "audit.x:"}, "the audit calls its part of x audit.x, but that name is in use"),
        ({"classify:": f"{'c' * 60}:"}, "which is too long"),
    ],
)
def test_what_is_not_audited_is_refused_with_its_place(folder: Path, changes: dict[str, str], told: str) -> None:
    rewrite(folder / "workflow.yaml", changes)
    found = [one for one in problems(folder) if one.startswith("slo.audit")]
    assert [one for one in found if told in one], problems(folder)
    if told != "slo.audit: ":
        assert all(one.rpartition("; ")[2] for one in found)  # a next step


def test_the_audit_of_a_state_would_follow_whole_streams(folder: Path) -> None:
    state = "    inputs: [x]\n    state: {by: stream, tensors: {memory: memory_next}}\n"
    rewrite(folder / "workflow.yaml", {"    inputs: [x]\n": state})
    assert any("classify keeps a state by stream: its audit would follow whole" in one for one in problems(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy: 97,": "accuracy: {mean: 97.7},"},
        {"metric: top1": "metric: top1\nobjective: mean_accuracy"},
        {"audit: 5 %": "audit: 5 %, survive: 1 worker"},
        {"arrivals: periodic": "arrivals: periodic, deliver: eventually"},
    ],
)
def test_audits_compose_with(folder: Path, changes: dict[str, str]) -> None:
    rewrite(folder / "workflow.yaml", changes)
    rewrite(folder / "infrastructure.yaml", {"tier: edge, count: 1": "tier: edge, count: 2"})
    rewrite(folder / "profiles.yaml", {"latency: {box: 0.5 ms}": "latency: {box: 0.5 ms, server: 0.5 ms}"})
    found = plan_project(load_project(folder), compare=False)
    assert found.plan is not None
    assert found.plan.audit is not None
    assert found.plan.operator_by_name["audit.classify"].rate_per_s == pytest.approx(20.0)
    if found.plan.mixes:
        assert {one.name for one in found.plan.audit.selections} == {"classify=small", "classify=large"}
        assert found.plan.audit.agreement == pytest.approx(
            sum(one.share * (one.agreement or 0.0) for one in found.plan.audit.selections)
        )


def test_each_of_several_workflows_states_its_audit(folder: Path, tmp_path: Path) -> None:
    several = tmp_path / "several"
    (several / "workflows").mkdir(parents=True)
    shutil.move(folder / "infrastructure.yaml", several)
    shutil.copytree(folder, several / "workflows/rare")
    rewrite(several / "workflows/rare/workflow.yaml", {"audit: 5 %": "audit: 1 %"})
    shutil.copytree(folder, several / "workflows/never")
    rewrite(several / "workflows/never/workflow.yaml", {", audit: 5 %": ""})
    shutil.move(folder, several / "workflows/often")
    rewrite(several / "infrastructure.yaml", {"count: 1,": "count: 3,"})
    problem = build_problem(load_any_project(several))
    assert {name: audit.share for name, audit in problem.audits.items()} == {"rare": 0.01, "often": 0.05}
    assert [name for name in problem.operator_by_name if "audit." in name] == [
        "often/audit.classify",
        "rare/audit.classify",
    ]
    plan = plan_project(load_any_project(several), compare=False).plan
    assert plan is not None
    assert plan.audits["often"].agreement == 99.5
    assert [line.partition(" of ")[0] for line in audit_lines(plan)] == ["often: audit", "rare: audit"]
    assert set(audit_json(plan, "rare")["audit"]["reference"]) == {"classify"}
    assert audit_json(plan, "never") == {}


def test_only_what_the_compared_answer_needs_is_audited(folder: Path) -> None:
    """Of several request streams that of the labelled answer."""
    rewrite(
        folder / "workflow.yaml",
        {
            "operators:": "  y: {tier: edge, rate: 7/s, message: 44 B, inputs: data/heldout.npz#x}\noperators:",
            "labels:": "  other: {inputs: [y], variants: [one]}\nlabels_of: classify\nlabels:",
        },
    )
    other = "  other:\n    one: {message: 4 B, latency: {box: 1 ms}}\n"
    rewrite(folder / "profiles.yaml", {"accuracy:\n": f"{other}accuracy:\n"})
    problem = build_problem(load_project(folder, files=False))
    assert [name for name in problem.rate_per_s if name.startswith("audit.")] == ["audit.x", "audit.classify"]
    (first, second, audit) = request_streams(problem)
    assert (first.is_audit, second.is_audit, audit.is_audit) == (False, False, True)
    assert audit.rate_per_s == pytest.approx(20.0)


def test_several_answers_need_one_that_is_compared(folder: Path) -> None:
    other = "  other: {inputs: [x], variants: [one]}\nlabels:"
    rewrite(folder / "workflow.yaml", {"labels:": other})
    assert any("2 operators answer, and one answer is compared" in one for one in problems(folder))


def test_an_audit_needs_a_known_accuracy(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    (folder / "profiles.yaml").write_text(text.partition("accuracy:")[0], encoding="utf-8")
    rewrite(folder / "workflow.yaml", {"accuracy: 97, ": ""})
    (told,) = problems(folder)
    assert "but no accuracy was measured" in told
    assert "jellybean profile" in told


def test_the_reference_is_the_one_that_agreements_were_measured_with(folder: Path) -> None:
    audit = build_problem(load_project(folder)).audit
    assert audit is not None
    assert (audit.share, audit.metric, audit.answer) == (0.05, "top1", "classify")
    assert (dict(audit.reference), audit.accuracy) == ({"classify": "large"}, 98.0)
    assert (audit.agreements["small",], audit.requests) == (99.5, 1000)


def test_without_agreements_the_most_accurate_selection_is_the_reference(folder: Path) -> None:
    rewrite(
        folder / "profiles.yaml",
        {", agreement: 99.5": "", ", agreement: 100": "", "  reference: {classify: large}\n  requests: 1000\n": ""},
    )
    audit = build_problem(load_project(folder)).audit
    assert audit is not None
    assert (dict(audit.reference), audit.accuracy) == ({"classify": "large"}, 98.0)
    assert ("small",) not in audit.agreements


def test_agreements_with_a_selection_that_is_not_the_best_any_more_are_not_used(folder: Path) -> None:
    rewrite(folder / "profiles.yaml", {"accuracy: 97.5": "accuracy: 98.5"})
    audit = build_problem(load_project(folder)).audit
    assert audit is not None
    assert (dict(audit.reference), audit.accuracy) == ({"classify": "small"}, 98.5)
    assert ("small",) not in audit.agreements


def test_agreements_need_a_reference(folder: Path) -> None:
    rewrite(folder / "profiles.yaml", {"  reference: {classify: large}\n": ""})
    assert any("not with which selection" in one for one in problems(folder))


def test_traces_of_rates_are_of_the_workflows_sources(folder: Path) -> None:
    trace = folder / "trace.csv"
    trace.write_text("time_s,source,rate_per_s\n0,x,100\n60,x,800\n", encoding="utf-8")
    rates = [one.rates_per_s for one in read_rate_trace(trace, build_problem(load_project(folder))).trace.stretches]
    assert rates == [{"x": 100.0}, {"x": 800.0}]
    assert RATE_PER_S == 400.0
    trace.write_text("time_s,source,rate_per_s\n0,audit.x,100\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"no source 'audit\.x'"):
        read_rate_trace(trace, build_problem(load_project(folder)))
