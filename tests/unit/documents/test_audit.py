"""`slo.audit` in workflow.yaml: what is refused, and which selection is the reference."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from jellybean.documents import build_problem, load_any_project, load_project, read_rate_trace
from jellybean.errors import DocumentError
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
        ({"accuracy: 97,": "accuracy: {mean: 97},"}, "a plan that may mix variants (a mean accuracy) is not audited"),
        ({"metric: top1": "metric: top1\nobjective: mean_accuracy"}, "a plan that may mix variants"),
        ({"audit: 5 %": "audit: 5 %, survive: 1 worker"}, "a plan that bears losses (slo.survive) is not audited"),
        ({"arrivals: periodic": "arrivals: periodic, deliver: eventually"}, "`deliver: eventually` are not audited"),
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


def test_a_cascade_beside_an_audit_is_refused(folder: Path) -> None:
    cascade = '      both: {cascade: {first: small, then: large, when: "softmax(y) < 0.8"}}\nlabels:'
    rewrite(folder / "workflow.yaml", {"labels:": cascade})
    assert any("a workflow with a cascade is not audited" in one for one in problems(folder))


def test_one_of_several_workflows_is_not_audited(folder: Path, tmp_path: Path) -> None:
    several = tmp_path / "several"
    (several / "workflows").mkdir(parents=True)
    shutil.move(folder / "infrastructure.yaml", several)
    shutil.move(folder, several / "workflows/audited")
    assert any("workflows that share a fleet are not audited" in one for one in problems(several))


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
    assert audit.planned({"classify": "small"}).agreement == 99.5
    assert audit.planned({"classify": "small"}).requests == 1000


def test_without_agreements_the_most_accurate_selection_is_the_reference(folder: Path) -> None:
    rewrite(
        folder / "profiles.yaml",
        {", agreement: 99.5": "", ", agreement: 100": "", "  reference: {classify: large}\n  requests: 1000\n": ""},
    )
    audit = build_problem(load_project(folder)).audit
    assert audit is not None
    assert (dict(audit.reference), audit.accuracy) == ({"classify": "large"}, 98.0)
    assert audit.planned({"classify": "small"}).agreement is None


def test_agreements_with_a_selection_that_is_not_the_best_any_more_are_not_used(folder: Path) -> None:
    rewrite(folder / "profiles.yaml", {"accuracy: 97.5": "accuracy: 98.5"})
    audit = build_problem(load_project(folder)).audit
    assert audit is not None
    assert (dict(audit.reference), audit.accuracy) == ({"classify": "small"}, 98.5)
    assert audit.planned({"classify": "small"}).agreement is None


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
