"""What plans say of their audit: its cost, what is expected, and that it compares a selection with itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean.report import audit_json
from jellybean.report.plans.audit_view import audit_cost, audit_lines
from jellybean_solver import Plan, evaluate
from tests.support.audited_project import make_audited_project
from tests.support.command_line import jellybean


def planned(folder: Path, *options: str) -> Plan:
    found = plan_project(load_project(folder, options), compare=False)
    assert found.plan is not None
    if found.plan.audit is not None:  # the cost that is shown is that of the only scorer
        by_operator = evaluate(found.problem, found.plan).by_operator
        own = [cost.total_usd_per_h for name, cost in by_operator.items() if name.startswith("audit.")]
        assert audit_cost(found.plan).total_usd_per_h == pytest.approx(sum(own))
    return found.plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audited_project(tmp_path_factory.mktemp("view"))


def test_a_plan_tells_its_audit_and_what_it_costs(folder: Path) -> None:
    plan = planned(folder)
    (line,) = audit_lines(plan)
    assert line.startswith("audit of 5 %, 20.0/s: these are also answered by classify large, of accuracy 98.00; ")
    assert "expected to be the same in 99.50 % (1,000 held-out requests)" in line
    found = audit_json(plan)["audit"]
    assert (found["share"], found["metric"], found["answer"]) == (0.05, "top1", "classify")
    assert found["reference"] == {"classify": "large"}
    assert found["cost_usd_per_h"]["total"] >= 0.2  # the server, which nothing else needs
    plain = planned(folder, "slo.audit=null")
    assert (list(audit_lines(plain)), audit_json(plain)) == ([], {})


def test_an_audit_of_the_reference_itself_is_said(folder: Path) -> None:
    first, second = audit_lines(planned(folder, "slo.accuracy=98", "sources.x.rate=100/s"))
    assert "also answered by the same variants, of accuracy 98.00; " in first
    assert "it finds only workers that answer wrongly" in second


def test_commands_show_the_audit(folder: Path) -> None:
    assert "audit of 5 %" in jellybean("plan", str(folder)).stdout
    assert json.loads(jellybean("plan", str(folder), "--json").stdout)["audit"]["agreement"] == 99.5
    assert "audit of 5 %" in jellybean("report", str(folder)).stdout
    nothing = jellybean("accuracy", str(folder))
    assert "no labels yet" in nothing.stderr
    assert json.loads(jellybean("accuracy", str(folder), "--json").stdout)["audits"] is None


def test_what_limits_an_audited_plan_is_in_the_documents(folder: Path) -> None:
    told = jellybean("explain", str(folder), "--set", "sources.x.rate=5000/s", status=3).stdout
    assert "sources.x.rate" in told
    assert "sources.audit" not in told
    assert "audit.x" not in told
