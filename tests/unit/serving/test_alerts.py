"""Alert rules where a gateway serves several workflows: what is compared with what."""

from __future__ import annotations

import re

import pytest

from jellybean.serving.top.alerts import RULES

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
    others = EXPRESSIONS.keys() - {"JellyBeanLatencyAboveTarget", "JellyBeanOverBudget", "JellyBeanOverload"}
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
