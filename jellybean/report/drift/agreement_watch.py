"""Finds a drop of the agreement with the reference: a Bernoulli CUSUM with a stated rate of false alarms.

Each audit adds to a sum how far it differs (0 to 1), less an allowance; a sum never falls below 0 (Page 1954). The
allowance is that of the likelihood ratio of the expected share of differing answers and one that is `DROP` larger
(Reynolds and Stoumbos 1999). The alarm is at the sum that audits without a change reach once in `FALSE_ALARM_S` at the
planned rate, by the Markov chain of the sum, which is exact but for the rounding of the allowance. What is expected is
measured on a sample, so the chart is for the upper end of its one-sided 95 % interval: where the sample was right,
false alarms are rarer. Graded agreements vary less than answers that agree or differ, so they raise fewer, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from jellybean.ledger.answers import wilson
from jellybean.ledger.audits import AuditLine
from jellybean.report.drift.audited_accuracy import ExpectedAgreement
from jellybean.report.drift.drift_watch import Drifted

DROP = 0.05  # of the agreement that is found soonest: smaller ones take longer, below half of it they are tolerated
FALSE_ALARM_S = 10 * 86_400.0  # mean time to a false alarm, if the expected share is at the end of its interval
_ONE_SIDED_Z = 1.644854  # 95 % quantile of the normal distribution
NAME = "agreement with the reference"
_FINE = 4  # steps of a small allowance's inverse: rounding it is then below 3 %
_COARSE_FROM = 20.0  # inverse allowances that need no finer steps
_MOST_STEPS = 1_500  # of a sum: chains of more take seconds


@dataclass(frozen=True, slots=True)
class Chart:
    """The design of a sum. It counts in steps: an audit adds `up` for each whole difference, less `down`.

    `alarm`: steps from which it is told. `differing`: share of answers that differ without a change, at most.
    """

    up: int
    down: int
    alarm: int
    differing: float

    def audits_by_chance(self, steps: int) -> float:
        """Mean number of audits until a sum reaches so many steps by chance."""
        return _mean_audits(self.differing, self.up, self.down, max(1, min(steps, _MOST_STEPS)))


@lru_cache(maxsize=64)
def chart_of(expected: ExpectedAgreement, audits_per_s: float) -> Chart:
    """The chart for an expected agreement, and audits at this rate."""
    usual, counted = 1 - expected.share, expected.requests
    differing = min(1 - 2 * DROP, wilson(usual, counted, _ONE_SIDED_Z)[1])
    dropped = differing + DROP
    stays = -math.log((1 - dropped) / (1 - differing))
    differs = math.log(dropped * (1 - differing) / (differing * (1 - dropped)))
    down = 1 if differs / stays >= _COARSE_FROM else _FINE
    up = round(down * differs / stays)
    least = max(2.0, FALSE_ALARM_S * audits_per_s)
    low, high = up - 1, up
    while high < _MOST_STEPS and _mean_audits(differing, up, down, high) < least:
        low, high = high, min(_MOST_STEPS, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        if _mean_audits(differing, up, down, middle) < least:
            low = middle
        else:
            high = middle
    return Chart(up, down, high, differing)


@lru_cache(maxsize=512)
def _mean_audits(differing: float, up: int, down: int, alarm: int) -> float:
    """Mean number of audits until a sum of whole differences, from 0 on, reaches the alarm."""
    steps = np.arange(alarm)
    chain = np.zeros((alarm, alarm))
    chain[steps, np.maximum(0, steps - down)] += 1 - differing
    rising = steps[steps + up - down < alarm]
    chain[rising, rising + up - down] += differing
    return float(np.linalg.solve(np.eye(alarm) - chain, np.ones(alarm))[0])


class AgreementWatch:
    """Takes audits in the order of time; `drifted` says whether fewer agree than expected now."""

    def __init__(self, expected: ExpectedAgreement, audits_per_s: float) -> None:
        """`audits_per_s`: planned."""
        self._expected, self._audits_per_s = expected, audits_per_s
        self.chart = chart_of(expected, audits_per_s)
        self._steps = 0.0
        self._since_s = 0.0
        self._audits, self._agreed = 0, 0.0  # since the sum was 0

    def see(self, line: AuditLine) -> None:
        """Take the audits of an interval."""
        if not line.audits:
            return
        if self._steps == 0.0:
            self._since_s, self._audits, self._agreed = line.begin_s, 0, 0.0
        self._audits += line.audits
        self._agreed += line.agreed
        differing = line.audits - line.agreed
        self._steps = max(0.0, self._steps + self.chart.up * differing - self.chart.down * line.audits)

    def see_all(self, lines: Iterable[AuditLine]) -> AgreementWatch:
        """Take many."""
        for line in lines:
            self.see(line)
        return self

    @property
    def drifted(self) -> Sequence[Drifted]:
        """The drop of the agreement, if there is one now; its distance is a part of the expected agreement."""
        if self._steps < self.chart.alarm:
            return ()
        distance = self._agreed / self._audits / self._expected.share - 1 if self._expected.share > 0 else 0.0
        once_s = self.chart.audits_by_chance(int(self._steps)) / self._audits_per_s
        return (Drifted(NAME, self._since_s, distance, once_s),)
