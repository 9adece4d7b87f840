"""The accuracy that audits show: bounds that always hold, an estimate, and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from jellybean.report.drift.strata import Counted, ScoreInterval, stratified_share
from jellybean_solver import PlannedAudit
from jellybean_solver.model.audit import AuditedSelection

AUDIT = PlannedAudit(0.05, "top1", "read", 97.0, 95.0, 1000)
PLANNED = 94.0


def line(
    audits: int, agreed: float, begin_s: float = 0.0, shed: int = 0, lost: int = 0, selection: str = ""
) -> AuditLine:
    return AuditLine(begin_s, 10.0, "w", "plan", "", audits, agreed, shed, lost, selection)


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
        of_audits = ScoreInterval(share, *wilson(share, 150))
        low, high = difference_interval(of_audits, ScoreInterval(usual, *wilson(usual, 1000)))
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


# -- plans that mix variants ------------------------------------------------------------------------------------------

# name, share of the requests, accuracy, agreement (0 to 1): the reference is right in 97 %
SELECTIONS = (("read=small", 0.5, 0.90, 0.92), ("read=big", 0.3, 0.94, 0.96), ("read=large", 0.2, 0.97, 1.0))
REFERENCE = 0.97


def mixed(selections: Sequence[tuple[str, float, float, float]] = SELECTIONS) -> tuple[PlannedAudit, float]:
    """The audit of a plan of these selections, and its mean accuracy in percent."""
    own = tuple(AuditedSelection(name, share, 100 * right, 100 * p0) for name, share, right, p0 in selections)
    usual = sum(share * p0 for _, share, _, p0 in selections)
    accuracy = sum(share * right for _, share, right, _ in selections)
    return PlannedAudit(0.05, "top1", "read", 100 * REFERENCE, 100 * usual, 1000, own), 100 * accuracy


def of_lines(audit: PlannedAudit, planned: float, lines: Sequence[AuditLine]) -> AuditedAccuracy:
    expected, compared = expected_agreement(audit, lines)
    found = audited_accuracy(audit, planned, expected, compared)
    assert found is not None
    return found


def test_selections_are_strata_with_the_slopes_of_their_own() -> None:
    audit, planned = mixed()
    usual = [
        line(count, count * p0, selection=name)
        for (name, _, _, p0), count in zip(SELECTIONS, (500, 300, 200), strict=True)
    ]
    found = of_lines(audit, planned, usual)
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(planned)
    assert [one.name for one in found.selections] == [name for name, *_ in SELECTIONS]
    worse = [line(500, 500 * 0.82, selection="read=small"), *usual[1:]]
    found = of_lines(audit, planned, worse)
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(planned - 100 * 0.5 * 0.1 * 0.90 / 0.92)
    assert found.is_below_plan
    assert found.to_json()["selections"][0]["agreement"]["value"] == pytest.approx(82.0)
    # Audits of which more were shed with one selection than with another count by the planned shares.
    fewer = [line(50, 50 * 0.82, selection="read=small"), *usual[1:]]
    again = of_lines(audit, planned, fewer)
    assert again.estimate is not None
    assert again.estimate.value == pytest.approx(found.estimate.value)
    assert again.estimate.low < found.estimate.low


def test_one_stratum_is_a_plan_of_one_selection() -> None:
    """And selections that are alike are as good as one."""
    plain = shown(900, 1000)
    (name, *_), share, accuracy, p0 = SELECTIONS[0], 1.0, PLANNED / 100, 0.95
    alone = PlannedAudit(0.05, "top1", "read", 97.0, 95.0, 1000, (AuditedSelection(name, share, 94.0, 95.0),))
    found = of_lines(alone, PLANNED, [line(1000, 900, selection=name)])
    assert found.estimate == plain.estimate
    parts = tuple(AuditedSelection(str(n), 0.1, 100 * accuracy, 100 * p0) for n in range(10))
    many = PlannedAudit(0.05, "top1", "read", 97.0, 95.0, 1000, parts)
    found = of_lines(many, PLANNED, [line(100, 90, selection=str(n)) for n in range(10)])
    assert found.estimate is not None
    assert plain.estimate is not None
    assert found.estimate.value == pytest.approx(plain.estimate.value)
    assert found.estimate.low == pytest.approx(plain.estimate.low, abs=0.1)
    assert found.estimate.high == pytest.approx(plain.estimate.high, abs=0.1)


def test_of_selections_that_were_not_audited_nothing_is_known() -> None:
    audit, planned = mixed()
    found = of_lines(audit, planned, [line(500, 460, selection="read=small"), line(300, 288, selection="read=big")])
    assert found.agreement.high > 95.0
    assert found.bounds[0] < 97.0 - 20.0  # a fifth of the requests may be answered in any way
    unknown = of_lines(audit, planned, [line(500, 460, selection="read=other"), line(300, 288, selection="read=big")])
    assert unknown.selections == ()
    assert unknown.agreement.value == pytest.approx(100 * 748 / 800)


def test_without_measured_agreements_the_first_audits_of_all_selections_are_expected() -> None:
    audit, planned = mixed()
    unmeasured = replace(
        audit, agreement=None, requests=0, selections=tuple(replace(one, agreement=None) for one in audit.selections)
    )
    first = [line(100, 90, selection="read=small"), line(100, 96, selection="read=big")]
    last = [line(60, 55, 10.0, selection="read=small"), line(60, 58, 10.0, selection="read=big")]
    after = [line(50, 40, 20.0, selection="read=small"), line(50, 48, 20.0, selection="read=big")]
    expected, compared = expected_agreement(unmeasured, [*first, *last, *after])
    assert expected == ExpectedAgreement(299 / 320, 320, False)  # the lines of an interval are not torn apart
    assert compared == after
    assert of_lines(unmeasured, planned, [*first, *last, *after]).estimate is not None


@pytest.mark.parametrize("audits", [60, 150, 600])
@pytest.mark.parametrize("worse", [(0.0, 0.0, 0.0), (0.06, 0.0, 0.0), (0.03, 0.03, 0.03), (-0.04, -0.02, 0.0)])
def test_the_interval_of_a_mixture_covers_its_accuracy(audits: int, worse: tuple[float, float, float]) -> None:
    """Of draws of audits and of held-out requests, on which all selections were measured alike."""
    rng = np.random.default_rng(7)
    shares = np.array([share for _, share, _, _ in SELECTIONS])
    right, agree = (np.array([row[n] for row in SELECTIONS]) for n in (2, 3))
    now = agree - np.array(worse)
    slopes = np.where(now < agree, right / agree, (REFERENCE - right) / np.maximum(1 - agree, 1e-9))
    truth = 100 * float(shares @ (right + slopes * (now - agree)))
    covered, draws, below = 0, 600, 0
    for _ in range(draws):
        hard = rng.random(1000)  # a held-out request that is hard for one selection is so for the others
        measured = tuple((name, share, a0, float((hard < p0).mean())) for name, share, a0, p0 in SELECTIONS)
        audit, planned = mixed(measured)
        counts = rng.multinomial(audits, shares)
        lines = [
            line(int(count), float(rng.binomial(count, p)), selection=name)
            for (name, *_), count, p in zip(SELECTIONS, counts, now, strict=True)
        ]
        estimate = of_lines(audit, planned, lines).estimate
        assert estimate is not None
        covered += estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        below += estimate.high < truth
    assert covered / draws >= 0.93
    assert below / draws <= 0.045  # a false alarm


def test_the_stratified_interval_covers_the_share_of_a_population() -> None:
    rng = np.random.default_rng(3)
    for shares, now, counts in (
        ((0.5, 0.5), (0.95, 0.6), (100, 100)),
        ((0.9, 0.1), (0.99, 0.9), (135, 15)),
        ((0.2, 0.3, 0.5), (0.8, 0.9, 1.0), (30, 45, 75)),
        ((0.25,) * 4, (0.97,) * 4, (8, 8, 8, 8)),
        ((0.5, 0.5), (0.7, 1.0), (10, 140)),
    ):
        truth = float(np.dot(shares, now))
        draws = [[rng.binomial(n, p) for n, p in zip(counts, now, strict=True)] for _ in range(1000)]
        found = [
            stratified_share([Counted(w, n, float(k)) for w, n, k in zip(shares, counts, one, strict=True)])
            for one in draws
        ]
        covered = sum(one.low <= truth <= one.high for one in found) / len(found)
        assert covered >= 0.925, (shares, now, counts, covered)
