"""Overload in words, and the command that plans for what is offered."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean.serving import OutcomeKind
from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.outcomes import Outcome
from jellybean.serving.top.alerts import OFFERED_PER_S, RULES
from jellybean.serving.top.overload import Load, find_overload, replan_command
from jellybean_agent import PlanFigures, plan_view
from jellybean_solver import to_document
from tests import report_plans
from tests.support.paths import EXAMPLES
from tests.support.scales_project import make_scales_project

CALM = Load(10.0, 10.0, 10.0, late_per_s=0.0, shed_per_s=0.0, p99_s=1.0, target_p99_s=3.0)
DIGITS = EXAMPLES / "digits"


@pytest.fixture(scope="module")
def figures() -> PlanFigures:
    return plan_view(to_document(report_plans.digits())).figures


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"offered_per_s": 13.0}, ()),  # 3 standard deviations of 100 requests
        ({"offered_per_s": 13.2}, ("13.2/s offered, planned for 10/s",)),
        (
            {"offered_per_s": 20.0, "p99_s": 6.3},
            ("20/s offered, planned for 10/s", "p99 6.3 s, target 3 s"),
        ),
        ({"p99_s": 3.2}, ("p99 3.2 s, target 3 s",)),
        ({"p99_s": 3.2, "target_p99_s": None}, ()),
        ({"p99_s": None}, ()),
        (
            {"offered_per_s": 11.5, "shed_per_s": 1.25, "late_per_s": 0.2},
            ("11.5/s offered, planned for 10/s", "1.25/s shed", "0.2/s late"),
        ),
        ({"offered_per_s": 100.0, "planned_per_s": 100.0, "late_per_s": 1.0, "shed_per_s": 1.0}, ()),  # 1 % is no more
        ({"offered_per_s": 1050.0, "planned_per_s": 1000.0}, ()),  # above chance, but a plan has spare capacity
        ({"offered_per_s": 1101.0, "planned_per_s": 1000.0}, ("1,101/s offered, planned for 1,000/s",)),
        (
            {"offered_per_s": 1050.0, "planned_per_s": 1000.0, "p99_s": 3.2},
            ("1,050/s offered, planned for 1,000/s", "p99 3.2 s, target 3 s"),
        ),
        ({"planned_per_s": 0.0}, ()),  # unknown
    ],
)
def test_reasons(changes: dict[str, float], reasons: tuple[str, ...], figures: PlanFigures) -> None:
    load = replace(CALM, **changes)
    found = find_overload(load, figures, DIGITS)
    assert (found.reasons if found is not None else ()) == reasons
    if found is not None:
        assert found.is_above_plan == (found.command is not None) == (load.offered_per_s > load.planned_per_s)
        elsewhere = find_overload(load, figures, None)
        assert elsewhere == replace(found, command=None)


def test_alerts_have_the_thresholds_of_top() -> None:
    expr = {rule.alert: rule.expr for rule in RULES}
    planned, offered = "jellybean_plan_requests_per_second", f"({OFFERED_PER_S})"
    of_one, together = expr["JellyBeanOverload"].split(" or ")
    assert of_one == f"{offered} > 1.1 * {planned} > {planned} + 3.0 * sqrt({planned} / 300)"
    of_several = "and on (job, instance) jellybean_gateway_replicas"
    all_offered = f"sum by (job, workflow) ({offered} {of_several})"
    planned = f"max by (job, workflow) ({planned} {of_several})"
    assert together == f"{all_offered} > 1.1 * {planned} > {planned} + 3.0 * sqrt({planned} / 300)"
    for name, outcome in (("ShedsRequests", "shed"), ("LateRequests", "late"), ("Unavailable", "unavailable")):
        ended = f'rate(jellybean_gateway_requests_total{{outcome="{outcome}"}}[300s])'
        assert expr[f"JellyBean{name}"] == f"{ended} > ignoring (outcome) 0.01 * {offered}"


def test_the_command_plans_for_the_offered_rate_and_the_targets_of_the_running_plan(
    figures: PlanFigures, tmp_path: Path
) -> None:
    same = load_project(DIGITS, profiles=False, files=False).workflow.slo
    figures = replace(
        figures,
        slo_accuracy=same.accuracy,
        slo_latency_p99_s=same.latency_p99_s,
        slo_budget_usd_per_h=same.budget_usd_per_h,
    )
    assert figures.source_rates_per_s == {"strip": 12.0}
    command = replan_command(DIGITS, figures, 1.93)
    assert command == f"jellybean plan {DIGITS} --from running --set sources.strip.rate=24/s"  # 23.16, rounded up
    assert "rate=24/s" in replan_command(DIGITS, figures, 2.0)

    other = replace(figures, slo_latency_p99_s=0.75, slo_accuracy=None, slo_budget_usd_per_h=4.5, is_stale=True)
    words = shlex.split(replan_command(DIGITS, other, 2.0))
    settings = [word for word, before in zip(words[1:], words, strict=False) if before == "--set"]
    assert settings == [
        "sources.strip.rate=24/s",
        "slo.accuracy=null",
        "slo.latency_p99=750 ms",
        "slo.budget=4.5 USD/h",
    ]
    assert words[-1] == "--stale"
    slo = load_project(DIGITS, settings, profiles=False, files=False).workflow.slo
    assert (slo.accuracy, slo.latency_p99_s, slo.budget_usd_per_h) == (None, 0.75, 4.5)

    soft = replace(figures, slo_latency_p99_s=None, has_soft_latency=True)
    assert replan_command(DIGITS, soft, 2.0) == f"jellybean plan {DIGITS} --from running --set sources.strip.rate=24/s"

    made = ("operators.shape.variants=[mlp]", "sources.strip.rate=12/s", "slo.accuracy=80")
    words = shlex.split(replan_command(DIGITS, replace(figures, overrides=made, slo_accuracy=80.0), 2.0))
    settings = [word for word, before in zip(words[1:], words, strict=False) if before == "--set"]
    assert settings == ["operators.shape.variants=[mlp]", "slo.accuracy=80", "sources.strip.rate=24/s"]

    spaced = tmp_path / "my digits"
    assert shlex.split(replan_command(spaced, figures, 2.0))[2] == str(spaced)  # which has no documents


@pytest.mark.parametrize("soft", ["slo.accuracy={mean: 90, penalty: 0.1 USD/h}", "slo.mean_accuracy=90"])
def test_the_command_for_a_plan_with_a_soft_mean_accuracy_is_one_that_works(tmp_path: Path, soft: str) -> None:
    options = [soft, *(["slo.penalty=0.1 USD/h"] if soft == "slo.mean_accuracy=90" else [])]
    folder = make_scales_project(tmp_path / "scales")
    planned = plan_project(load_project(folder, options), compare=False)
    assert planned.plan is not None and planned.plan.slo.is_soft
    figures = plan_view(to_document(planned.plan)).figures
    words = shlex.split(replan_command(folder, figures, 2.0))
    settings = [word for word, before in zip(words[1:], words, strict=False) if before == "--set"]
    assert settings == [*options, "sources.x.rate=40/s"]
    assert load_project(folder, settings).workflow.slo.penalty_usd_per_h == pytest.approx(0.1)


def test_the_planned_rate_is_that_of_all_sites() -> None:
    document = to_document(replace(report_plans.one_worker(), sites={"edge": 3}))
    figures = plan_view(document).figures
    assert (figures.source_rates_per_s, figures.rate_per_s) == ({"camera": 5.0}, 15.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.CANCELLED, OutcomeKind.CANCELLED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, OutcomeKind.LATE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, OutcomeKind.SHED),
        (grpc.StatusCode.INVALID_ARGUMENT, OutcomeKind.CLIENT_ERROR),
        (grpc.StatusCode.NOT_FOUND, OutcomeKind.CLIENT_ERROR),
        (grpc.StatusCode.ALREADY_EXISTS, OutcomeKind.CLIENT_ERROR),
        (grpc.StatusCode.UNAVAILABLE, OutcomeKind.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, OutcomeKind.SERVER_ERROR),
    ],
)
def test_each_failure_is_counted_once(status: grpc.StatusCode, kind: OutcomeKind) -> None:
    counters = RequestCounters()
    counters.count(Outcome(status, "why"), 0.5, "")
    counters.count(None, 0.25, "")
    assert counters.ended == dict.fromkeys(OutcomeKind, 0) | {kind: 1, OutcomeKind.ANSWERED: 1}
    assert (counters.answered, counters.failed, counters.answered_s, counters.failed_s) == (1, 1, 0.25, 0.5)
