"""The accuracy of what a plan served, estimated without labels from how often its answers were the reference's.

A is the accuracy of the served answers, R the reference's, p the share of answers on which they agree. An answer that
is right on one side only differs, so |A - R| <= 1 - p whatever the errors are: these are the bounds. The estimate is
sharper, as it takes what was measured on held-out requests (A0, R, p0) as known. Of the answers that newly differ,
those that were right are lost: at most the share A0 / p0 of them. Those that newly agree gain what the reference has
more where answers differ: (R - A0) / (1 - p0). The interval is that of p - p0, from the score intervals of both shares
(Newcombe 1998, method 10), as p0 is measured too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jellybean.ledger.answers import wilson
from jellybean.ledger.audits import FIRST_AUDITS, AuditLine
from jellybean_solver import PlannedAudit


@dataclass(frozen=True, slots=True)
class ExpectedAgreement:
    """The share of answers that are expected to be the reference's, from so many requests.

    `is_measured`: on held-out requests; else it is that of the plan's first audits.
    """

    share: float
    requests: int
    is_measured: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure in percent, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AuditedAccuracy:
    """What audits say of a plan's accuracy, in percent. `expected`, `estimate`: None until enough is known.

    `shed`, `lost`: audits without a result. `bounds`: of the accuracy, if the reference is as accurate as measured.
    """

    audits: int
    shed: int
    lost: int
    planned: float | None
    agreement: Interval
    expected: ExpectedAgreement | None
    estimate: Interval | None
    bounds: tuple[float, float]

    @property
    def is_below_plan(self) -> bool:
        """True if the estimate's interval lies below the planned accuracy."""
        return self.estimate is not None and self.planned is not None and self.estimate.high < self.planned - 1e-9

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        expected = self.expected
        return {
            "audits": self.audits,
            "shed": self.shed,
            "lost": self.lost,
            "agreement": asdict(self.agreement),
            "expected_agreement": None if expected is None else 100 * expected.share,
            "expected_of_requests": None if expected is None else expected.requests,
            "expected_is_measured": None if expected is None else expected.is_measured,
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "bounds": {"low": self.bounds[0], "high": self.bounds[1]},
            "below_plan": self.is_below_plan,
        }


def expected_agreement(
    audit: PlannedAudit, lines: Sequence[AuditLine]
) -> tuple[ExpectedAgreement | None, list[AuditLine]]:
    """What is expected of a plan's audits, and the lines that are compared with it. `lines`: all, in order of time."""
    if audit.agreement is not None:
        return ExpectedAgreement(audit.agreement / 100, audit.requests, True), [*lines]
    count, agreed = 0, 0.0
    for number, line in enumerate(lines):
        if count >= FIRST_AUDITS:
            return ExpectedAgreement(agreed / count, count, False), [*lines[number:]]
        count += line.audits
        agreed += line.agreed
    return None, [*lines]


def audited_accuracy(
    audit: PlannedAudit, planned: float | None, expected: ExpectedAgreement | None, lines: Iterable[AuditLine]
) -> AuditedAccuracy | None:
    """The accuracy by the audits of `lines`; None if none was compared. `planned`: of the plan, in percent."""
    known = list(lines)
    audits, agreed = sum(line.audits for line in known), math.fsum(line.agreed for line in known)
    if not audits:
        return None
    share = min(1.0, agreed / audits)
    low, high = wilson(share, audits)
    most = 100 * (1 - low)
    estimate = None
    if expected is not None and planned is not None:
        estimate = _estimate(audit.accuracy / 100, planned / 100, expected, share, audits)
    return AuditedAccuracy(
        audits,
        sum(line.shed for line in known),
        sum(line.lost for line in known),
        planned,
        Interval(100 * share, 100 * low, 100 * high),
        expected,
        estimate,
        (max(0.0, audit.accuracy - most), min(100.0, audit.accuracy + most)),
    )


def _estimate(reference: float, planned: float, expected: ExpectedAgreement, share: float, audits: int) -> Interval:
    """The accuracy, from 0 to 1 as all arguments, for a share of answers that are the reference's; in percent."""
    usual = expected.share
    falls = min(1.0, planned / usual) if usual > 0 else 1.0
    rises = min(1.0, max(0.0, (reference - planned) / (1 - usual))) if usual < 1 else 0.0

    def accuracy(difference: float) -> float:
        slope = falls if difference < 0 else rises
        return 100 * min(1.0, max(0.0, planned + slope * difference))

    low, high = difference_interval(share, audits, usual, expected.requests)
    return Interval(accuracy(share - usual), accuracy(low), accuracy(high))


def difference_interval(share: float, count: int, usual: float, usual_count: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two shares (Newcombe's hybrid score interval)."""
    low, high = wilson(share, count)
    usual_low, usual_high = wilson(usual, usual_count)
    difference = share - usual
    return (
        difference - math.hypot(share - low, usual_high - usual),
        difference + math.hypot(high - share, usual - usual_low),
    )
