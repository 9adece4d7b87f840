"""The accuracy that audits show: bounds that always hold, an estimate, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.ledger import AuditLine, wilson
from jellybean.report import AuditedAccuracy
from jellybean.report.drift.audited_accuracy import (
    FIRST_AUDITS,
    ExpectedAgreement,
    audited_accuracy,
    difference_interval,
    expected_agreement,
)
from jellybean_solver import PlannedAudit

AUDIT = PlannedAudit(0.05, "top1", "read", 97.0, 95.0, 1000)
PLANNED = 94.0


def line(audits: int, agreed: float, begin_s: float = 0.0, shed: int = 0, lost: int = 0) -> AuditLine:
    return AuditLine(begin_s, 10.0, "w", "plan", "", audits, agreed, shed, lost)


def shown(agreed: int, audits: int) -> AuditedAccuracy:
    expected, lines = expected_agreement(AUDIT, [line(audits, agreed)])
    found = audited_accuracy(AUDIT, PLANNED, expected, lines)
    assert found is not None
    return found


def test_an_agreement_as_expected_is_the_planned_accuracy() -> None:
    found = shown(950, 1000)
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(PLANNED)
    assert found.estimate.low < PLANNED < found.estimate.high
    assert not found.is_below_plan
    assert found.agreement.value == 95.0
    low = 100 * wilson(0.95, 1000)[0]
    assert found.bounds == (pytest.approx(97.0 - (100 - low)), 100.0)


def test_answers_that_newly_differ_are_lost_and_those_that_newly_agree_gain_what_the_reference_has() -> None:
    worse, better = shown(900, 1000), shown(1000, 1000)
    assert worse.estimate is not None
    assert better.estimate is not None
    assert worse.estimate.value == pytest.approx(94.0 - 5.0 * 0.94 / 0.95)
    assert worse.is_below_plan
    assert better.estimate.value == pytest.approx(97.0)  # the served answers are the reference's
    assert better.bounds[1] == pytest.approx(97.0 + 100 * (1 - wilson(1.0, 1000)[0]))


def test_without_audits_or_expectation_nothing_is_estimated() -> None:
    unknown = PlannedAudit(0.05, "top1", "read", 97.0)
    assert audited_accuracy(unknown, PLANNED, None, [line(0, 0, shed=3)]) is None
    few = [line(200, 190.0), line(90, 80.0, 10.0)]
    expected, lines = expected_agreement(unknown, few)
    found = audited_accuracy(unknown, PLANNED, expected, lines)
    assert found is not None
    assert (found.expected, found.estimate, found.audits) == (None, None, 290)
    assert not found.is_below_plan


def test_the_first_audits_of_a_plan_say_what_is_expected_where_profiles_do_not() -> None:
    unknown = PlannedAudit(0.05, "top1", "read", 97.0)
    early = [line(200, 190.0), line(100, 95.0, 10.0)]
    later = [line(50, 40.0, 20.0, shed=1), line(50, 42.0, 30.0, lost=2)]
    expected, lines = expected_agreement(unknown, [*early, *later])
    assert expected == ExpectedAgreement(0.95, FIRST_AUDITS, False)
    assert lines == later
    found = audited_accuracy(unknown, PLANNED, expected, lines)
    assert found is not None
    assert (found.audits, found.shed, found.lost) == (100, 1, 2)
    assert found.is_below_plan


def test_bounds_hold_whatever_the_errors_are() -> None:
    """Models with errors of every kind, as answers that differ although both are wrong."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shares = rng.dirichlet(np.full(5, 0.5))
        both_right, only_served, only_reference, both_wrong_alike, _ = shares
        served, reference = both_right + only_served, both_right + only_reference
        agreement = both_right + both_wrong_alike
        audit = PlannedAudit(0.05, "top1", "read", 100 * reference, 95.0, 1000)
        found = audited_accuracy(audit, None, None, [line(10**6, 1e6 * agreement)])
        assert found is not None
        assert found.bounds[0] <= 100 * served <= found.bounds[1]
        assert found.estimate is None


def test_the_interval_of_a_difference_covers_it_in_about_95_percent() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        usual, share = rng.binomial(1000, 0.97) / 1000, rng.binomial(150, 0.93) / 150
        low, high = difference_interval(share, 150, usual, 1000)
        covered += low <= 0.93 - 0.97 <= high
    assert 0.93 <= covered / 2000 <= 0.97


@pytest.mark.parametrize("worse", [0.0, 0.05])
def test_three_thousand_requests_audited_at_five_percent_tell_five_points(worse: float) -> None:
    """150 audits of a selection that usually agrees in 99 %: its interval lies below the plan's accuracy."""
    audit = PlannedAudit(0.05, "top1", "read", 97.0, 99.0, 1000)
    below = 0
    for seed in range(200):
        agreed = np.random.default_rng(seed).binomial(150, 0.99 - worse)
        expected, lines = expected_agreement(audit, [line(150, float(agreed))])
        found = audited_accuracy(audit, 96.5, expected, lines)
        assert found is not None
        below += found.is_below_plan
    assert below >= 170 if worse else below <= 10
