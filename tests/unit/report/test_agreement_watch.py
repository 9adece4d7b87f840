"""A drop of the agreement with the reference is told soon, and steady traffic seldom raises an alarm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from jellybean.ledger import AuditLine
from jellybean.report.drift.agreement_watch import DROP, FALSE_ALARM_S, NAME, AgreementWatch, chart_of
from jellybean.report.drift.audited_accuracy import ExpectedAgreement
from tests.support.examples import NIGHTLY

SEEDS = range(20 if NIGHTLY else 4)
INTERVAL_S, DAYS, HELD_OUT = 10.0, 10, 1000
RATE_PER_S, SHARE = 1.0, 0.05  # of requests, and of these of audits
AUDITS_PER_S = RATE_PER_S * SHARE


def expected(differing: float, requests: int = HELD_OUT) -> ExpectedAgreement:
    return ExpectedAgreement(1.0 - differing, requests, True)


def virtual(seed: int, differing: float, audits: int, begin_s: float = 0.0) -> Iterator[AuditLine]:
    """Audits one by one, at the planned rate."""
    rng = np.random.default_rng(seed)
    for number, differs in enumerate(rng.random(audits) < differing):
        at_s = begin_s + number / AUDITS_PER_S
        yield AuditLine(at_s, 1 / AUDITS_PER_S, "w", "plan", "", 1, float(not differs), 0, 0)


@pytest.mark.parametrize("differing", [0.0, 0.005, 0.02, 0.1])
def test_the_alarm_is_at_the_stated_rate_of_false_alarms(differing: float) -> None:
    chart = chart_of(expected(differing), AUDITS_PER_S)
    least = FALSE_ALARM_S * AUDITS_PER_S
    assert chart.audits_by_chance(chart.alarm) >= least
    assert chart.audits_by_chance(chart.alarm - 1) < least
    assert differing < chart.differing < differing + 0.025  # what held-out requests say is uncertain too


def test_the_mean_time_to_an_alarm_is_that_of_the_chain() -> None:
    """Simulated runs of a chart whose alarms are frequent."""
    chart = chart_of(ExpectedAgreement(0.95, 10_000, True), 20_000 / FALSE_ALARM_S)
    rng, lengths = np.random.default_rng(0), []
    for _ in range(60):
        steps, count = 0, 0
        while steps < chart.alarm:
            differs = rng.random(4096) < chart.differing
            for one in differs:
                steps = max(0, steps + (chart.up if one else 0) - chart.down)
                count += 1
                if steps >= chart.alarm:
                    break
        lengths.append(count)
    mean, error = float(np.mean(lengths)), float(np.std(lengths) / np.sqrt(len(lengths)))
    assert abs(mean - chart.audits_by_chance(chart.alarm)) < 3.5 * error


def alarms(seed: int, measured: float, differing: float) -> int:
    """Number of alarms in ten days of steady traffic. `measured`: on held-out requests."""
    watch, was_off, found = AgreementWatch(expected(measured), AUDITS_PER_S), False, 0
    for line in virtual(seed, differing, int(DAYS * 86_400 * AUDITS_PER_S)):
        watch.see(line)
        is_off = bool(watch.drifted)
        found += is_off and not was_off
        was_off = is_off
    return found


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@pytest.mark.parametrize("differing", [0.002, 0.01])
def test_ten_days_of_steady_traffic_raise_at_most_one_alarm_in_twenty(differing: float) -> None:
    assert sum(alarms(seed, differing, differing) for seed in SEEDS) <= 1


@pytest.mark.slow
@pytest.mark.timeout(1800 if NIGHTLY else 120)
def test_held_out_samples_that_are_off_seldom_raise_alarms() -> None:
    """The held-out requests are a sample: one in twenty is off by more than the chart allows for, others nearly so."""
    measured = [np.random.default_rng(1000 + seed).binomial(HELD_OUT, 0.01) / HELD_OUT for seed in SEEDS]
    assert sum(alarms(seed, measured[seed], 0.01) > 0 for seed in SEEDS) <= len(SEEDS) // 4


def found_after(seed: int, differing: float, requests: int) -> int:
    """Audits until a model that is `DROP` worse is told, after a day as expected; 0: not within 100,000."""
    watch = AgreementWatch(expected(differing, requests), AUDITS_PER_S)
    watch.see_all(virtual(seed, differing, int(86_400 * AUDITS_PER_S)))
    assert not watch.drifted
    for number, line in enumerate(virtual(500 + seed, differing + DROP, 100_000, 86_400.0), start=1):
        watch.see(line)
        if watch.drifted:
            (one,) = watch.drifted
            assert one.name == NAME
            assert one.distance < 0.0
            assert one.once_in_s >= FALSE_ALARM_S
            assert one.since_s >= 86_400.0 - 3 * 3_600.0
            return number
    return 0


@pytest.mark.parametrize(
    ("differing", "requests", "most"),
    [
        (0.002, 1000, 150),
        pytest.param(0.005, 1000, 150, marks=pytest.mark.slow),
        (0.01, 3000, 150),
        pytest.param(0.02, 3000, 250, marks=pytest.mark.slow),
        pytest.param(0.05, 3000, 500, marks=pytest.mark.slow),
    ],
)
def test_a_model_five_points_worse_is_found_in_so_many_audits(differing: float, requests: int, most: int) -> None:
    """In the median of seeds. 150 audits are 3,000 requests at 5 %: enough where 99 % of the answers agree usually."""
    counts = [found_after(seed, differing, requests) for seed in range(100 if NIGHTLY else 21)]
    assert all(counts)
    assert float(np.median(counts)) <= most


def test_graded_agreements_and_intervals_without_audits_are_taken() -> None:
    watch = AgreementWatch(ExpectedAgreement(0.9, 1000, True), AUDITS_PER_S)
    for number in range(1000):
        watch.see(AuditLine(10.0 * number, 10.0, "w", "plan", "", 2, 1.8, 1, 1))
        watch.see(AuditLine(10.0 * number, 10.0, "w", "plan", "", 0, 0.0, 3, 0))
    assert watch.drifted == ()
    watch.see_all(AuditLine(1e5 + number, 10.0, "w", "plan", "", 10, 7.0, 0, 0) for number in range(200))
    (one,) = watch.drifted
    assert one.distance == pytest.approx(0.7 / 0.9 - 1, abs=0.05)
