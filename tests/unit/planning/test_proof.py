"""What a certificate leaves open, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.report.plans.proof import unproven
from jellybean_solver import Certificate, Slo, Termination
from tests import report_plans

SOFT = (
    Slo(mean_accuracy=90.0, penalty_usd_per_h=0.1),
    Slo(soft_latency_p99_s=0.06, latency_penalty_usd_per_h_per_s=0.3),
)


@pytest.mark.parametrize("slo", SOFT)
def test_with_a_soft_target_the_gap_is_of_cost_and_penalty(slo: Slo) -> None:
    plan = replace(report_plans.one_worker(), certificate=Certificate.of(1.0, 0.75, Termination.GAP))
    hard, soft = unproven(plan), unproven(replace(plan, slo=slo))
    assert hard == "the optimum may cost up to 25.00% less than this plan: the search stopped at this gap"
    assert soft is not None and soft.startswith(
        "cost and penalty of the optimum may be up to 25.00% less than those of"
    )
    nothing = replace(plan, slo=slo, certificate=Certificate.of(1.0, 0.0, Termination.TIME_LIMIT))
    assert unproven(nothing) == "no lower bound on the cost and penalty was proven: the search reached its time limit"
    assert unproven(replace(plan, certificate=Certificate.of(1.0, 1.0, Termination.OPTIMAL))) is None


def test_with_the_accuracy_as_objective_the_gap_is_in_points() -> None:
    proof = Certificate.of_accuracy(89.64, 90.44, Termination.GAP)
    text = unproven(replace(report_plans.one_worker(), certificate=proof))
    assert text == "a mean accuracy up to 0.80 points higher may be possible: the search stopped at this gap"
