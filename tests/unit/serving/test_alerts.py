"""Alert rules where a gateway serves several workflows: what is compared with what."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jellybean.serving import alert_rules
from jellybean.serving.top.alerts import BURN_RULES, RULES
from tests.support.skips import NotInstalled

EXPRESSIONS = {rule.alert: rule.expr for rule in RULES}
PROCESS = ["job", "instance"]
BY_WORKFLOW = [*PROCESS, "workflow"]


def labels_of(keyword: str, expr: str) -> list[list[str]]:
    """The labels of each `by (...)` or `on (...)`."""
    return [found.split(", ") for found in re.findall(rf"{keyword} \(([^)]*)\)", expr)]


@pytest.mark.parametrize(
    ("alert", "matched"), [("JellyBeanLatencyAboveTarget", BY_WORKFLOW), ("JellyBeanOverBudget", PROCESS)]
)
def test_sums_have_the_labels_by_which_they_are_compared(alert: str, matched: list[str]) -> None:
    """The target of latency is each workflow's, the budget that of all together: two series for one match none."""
    expr = EXPRESSIONS[alert]
    assert labels_of("on", expr) == [matched]
    assert [[label for label in labels if label != "le"] for labels in labels_of("by", expr)] == [matched]


def test_other_rules_compare_each_workflow_with_itself() -> None:
    summed = {"JellyBeanLatencyAboveTarget", "JellyBeanOverBudget", "JellyBeanOverload", "JellyBeanRelayNotDialled"}
    others = EXPRESSIONS.keys() - summed
    assert all(not re.search(r"\b(by|on|without) \(", EXPRESSIONS[alert]) for alert in others)


def test_overload_is_that_of_one_gateway_or_of_several_together() -> None:
    """Each workflow is compared with itself: of one gateway by all labels, of several without their `instance`."""
    of_one, of_several = EXPRESSIONS["JellyBeanOverload"].split(" or ")
    assert not re.search(r"\b(by|on|without) \(", of_one)
    assert {tuple(labels) for labels in labels_of("by", of_several)} == {("job", "workflow")}
    assert {tuple(labels) for labels in labels_of("on", of_several)} == {tuple(PROCESS)}
    assert of_several.count("and on (job, instance) jellybean_gateway_replicas") == 4, "only those that are several"


def test_certificates_warn_in_their_last_third_and_are_critical_in_their_last_tenth() -> None:
    """Those that the operator renews by itself, hourly from a third on, do not warn."""
    rules = {rule.alert: rule for rule in RULES}
    third, tenth = rules["JellyBeanCertificateNotRenewed"], rules["JellyBeanCertificateExpires"]
    left = "jellybean_certificate_expires_timestamp_seconds - time()"
    assert third.expr == f"{left} < jellybean_certificate_lifetime_seconds / 3"
    assert (third.severity, third.lasting) == ("warning", "2h")
    assert tenth.expr == f"{left} < 0.1 * jellybean_certificate_lifetime_seconds"
    assert (tenth.severity, tenth.lasting) == ("critical", "1m")


PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=Path(sys.executable).parent)
with_promtool = pytest.mark.skipif(PROMTOOL is None, reason=NotInstalled.PROMTOOL)
AT = 'job="g",instance="i"'
JOB_G = 'job="g"'
YARD = f'{AT},workflow="yard"'


def test_every_burn_rate_has_a_long_and_a_short_window() -> None:
    windows = [re.findall(r"received_total\[(\w+)\]", rule.expr) for rule in BURN_RULES]
    assert windows == [["1h", "5m", "6h", "30m"], ["3d", "6h"]]
    assert [re.findall(r"> ([0-9.]+)\)", rule.expr) for rule in BURN_RULES] == [
        ["0.144", "0.144", "0.06", "0.06"],
        ["0.01", "0.01"],
    ]


def counted(labels: str, *, offered: str, slow: str = "0x1000", failed: str = "0x1000") -> list[dict[str, str]]:
    """The series of a workflow that the budget is computed from."""
    ended = "jellybean_gateway_requests_total"
    return [
        {"series": f"jellybean_gateway_received_total{{{labels}}}", "values": offered},
        {"series": f"jellybean_gateway_over_target_total{{{labels}}}", "values": slow},
        {"series": f'{ended}{{{labels},outcome="shed"}}', "values": failed},
        {"series": f'{ended}{{{labels},outcome="client_error"}}', "values": "0+100x1000"},
        {"series": f'{ended}{{{labels},outcome="cancelled"}}', "values": "0x1000"},
    ]


def firing(alert: str, at: str, series: list[dict[str, str]], *labels: str) -> dict[str, Any]:
    """A case of promtool: the series of each minute, and the label sets that fire at a time."""
    wanted = [{"exp_labels": dict(re.findall(r'(\w+)="([^"]*)"', one))} for one in labels]
    test = {"eval_time": at, "alertname": alert, "exp_alerts": wanted}
    return {"interval": "1m", "input_series": series, "alert_rule_test": [test]}


CASES = {  # offered: 1100 a minute, of which 100 are client errors
    "a burst of late answers fires fast": firing(
        "JellyBeanErrorBudgetBurnsFast", "90m", counted(AT, offered="0+1100x1000", slow="0x60 0+200x900"), JOB_G
    ),
    "a tenth of that does not": firing(
        "JellyBeanErrorBudgetBurnsFast", "90m", counted(AT, offered="0+1100x1000", slow="0x60 0+20x900")
    ),
    "what has ended does not": firing(
        "JellyBeanErrorBudgetBurnsFast", "125m", counted(AT, offered="0+1100x1000", slow="0+200x90 18000x900")
    ),
    "refused requests of one workflow of two": firing(
        "JellyBeanErrorBudgetBurnsFast",
        "90m",
        [
            *counted(f'{AT},workflow="shop"', offered="0+1100x1000"),
            *counted(YARD, offered="0+1100x1000", failed="0+300x1000"),
        ],
        f'{JOB_G},workflow="yard"',
    ),
    "a budget that goes on with the next gateway": firing(
        "JellyBeanErrorBudgetBurnsFast",
        "94m",
        [
            *counted(AT, offered="0+1100x90", slow="0x60 0+200x30"),
            *counted(f'{JOB_G},instance="next"', offered="_x88 0+1100x900", slow="_x88 0+200x900"),
        ],
        JOB_G,
    ),
    "a new gateway whose first minutes are bad": firing(
        "JellyBeanErrorBudgetBurnsFast",
        "94m",
        [
            *counted(AT, offered="0+1100x90", slow="0x1000"),
            *counted(f'{JOB_G},instance="next"', offered="_x88 0+1100x900", slow="_x88 0+200x900"),
        ],
    ),
    "2 % for three days fires slowly": firing(
        "JellyBeanErrorBudgetBurnsSlowly", "900m", counted(AT, offered="0+1100x1000", slow="0+20x1000"), JOB_G
    ),
    "a spool that grows": firing(
        "JellyBeanSpoolGrows", "120m", [{"series": f"jellybean_gateway_kept{{{AT}}}", "values": "0+10x200"}], AT
    ),
    "a spool that goes up and down": firing(
        "JellyBeanSpoolGrows", "120m", [{"series": f"jellybean_gateway_kept{{{AT}}}", "values": "5 9 " * 100}]
    ),
    "an old request": firing(
        "JellyBeanSpoolOld",
        "90m",
        [{"series": f"jellybean_gateway_kept_oldest_seconds{{{AT}}}", "values": "0+60x200"}],
        AT,
    ),
    "a relay that no tunnel dials": firing(
        "JellyBeanRelayNotDialled",
        "20m",
        [{"series": f'jellybean_relay_offers{{{AT},worker="edge-{n}"}}', "values": f"{n}x3 0x60"} for n in (1, 2)],
        AT,
    ),
    "a relay that some tunnels dial": firing(
        "JellyBeanRelayNotDialled",
        "20m",
        [{"series": f'jellybean_relay_offers{{{AT},worker="edge-{n}"}}', "values": f"{n}x90"} for n in (0, 1)],
    ),
    "an earlier plan": firing(
        "JellyBeanStalePlan",
        "20m",
        [
            {"series": 'jellybean_operator_resource_stale{namespace="n",name="a"}', "values": "1x60"},
            {"series": 'jellybean_operator_resource_stale{namespace="n",name="b"}', "values": "1x10 0x50"},
        ],
        'namespace="n",name="a"',
    ),
    "a resource that is not ready": firing(
        "JellyBeanResourceNotReady",
        "20m",
        [{"series": 'jellybean_operator_resource_condition{name="a",condition="Ready"}', "values": "-1x60"}],
        'name="a",condition="Ready"',
    ),
    "an operator that hangs": firing(
        "JellyBeanOperatorNotReconciling",
        "40m",
        [{"series": 'jellybean_operator_resource_reconciled_timestamp_seconds{name="a"}', "values": "60x60"}],
        'name="a"',
    ),
    "operators none of which leads": firing(
        "JellyBeanOperatorAbsent",
        "10m",
        [{"series": 'jellybean_operator_leader{job="o"}', "values": "0x60"}],
        'job="o"',
    ),
    "an operator that is gone": firing(
        "JellyBeanOperatorAbsent",
        "60m",
        [{"series": 'jellybean_operator_leader{job="o"}', "values": "1x30"}],
        'job="o"',
    ),
    "an operator that leads": firing(
        "JellyBeanOperatorAbsent",
        "60m",
        [{"series": f'jellybean_operator_leader{{job="o",instance="{n}"}}', "values": f"{n}x90"} for n in (0, 1)],
    ),
}


@with_promtool
@pytest.mark.slow
def test_rules_fire_when_and_for_whom_they_are_meant_to(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(alert_rules(), encoding="utf-8")
    groups = yaml.safe_load(alert_rules())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    for rule in rules.values():
        del rule["annotations"]  # promtool would compare their texts
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    tests = []
    for name, case in CASES.items():
        (test,) = case["alert_rule_test"]
        labels = rules[test["alertname"]]["labels"]
        wanted = [{"exp_labels": one["exp_labels"] | labels} for one in test["exp_alerts"]]
        tests.append({"name": name, **case, "alert_rule_test": [test | {"exp_alerts": wanted}]})
    text = yaml.safe_dump({"rule_files": ["bare.yaml"], "evaluation_interval": "1m", "tests": tests})
    (tmp_path / "tests.yaml").write_text(text, encoding="utf-8")
    for command in (("check", "rules", "rules.yaml"), ("test", "rules", "tests.yaml")):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
