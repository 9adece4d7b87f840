"""The accuracy of what a plan served, estimated without labels from how often its answers were the reference's.

A is the accuracy of the served answers, R the reference's, p the share of answers on which they agree. An answer that
is right on one side only differs, so |A - R| <= 1 - p whatever the errors are: these are the bounds. The estimate is
sharper, as it takes what was measured on held-out requests (A0, R, p0) as known. Of the answers that newly differ,
those that were right are lost: at most the share A0 / p0 of them. Those that newly agree gain what the reference has
more where answers differ: (R - A0) / (1 - p0). The interval is that of p - p0, from the score intervals of both shares
(Newcombe 1998, method 10), as p0 is measured too.

A plan that mixes variants gives requests unlike selections, each with an A0 and p0 of its own. Selections are strata,
and p is the sum of their agreements, weighted by the planned share of the requests times what a difference costs there
(strata.py); p0 is that of the same sums. Agreements of all selections were measured on the same requests, so p0 is a
mean over these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jellybean.ledger.answers import wilson
from jellybean.ledger.audits import FIRST_AUDITS, AuditLine
from jellybean.report.drift.strata import Counted, ScoreInterval, stratified_share
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
class SelectionAgreement:
    """The audits of requests that get one selection: their agreement, and the `usual` one, in percent.

    `share`: of the requests, as planned.
    """

    name: str
    share: float
    audits: int
    agreement: Interval
    usual: float


@dataclass(frozen=True, slots=True)
class AuditedAccuracy:
    """What audits say of a plan's accuracy, in percent. `expected`, `estimate`: None until enough is known.

    `shed`, `lost`: audits without a result. `bounds`: of the accuracy, if the reference is as accurate as measured.
    `selections`: of a plan that mixes variants.
    """

    audits: int
    shed: int
    lost: int
    planned: float | None
    agreement: Interval
    expected: ExpectedAgreement | None
    estimate: Interval | None
    bounds: tuple[float, float]
    selections: tuple[SelectionAgreement, ...] = ()

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
            **({"selections": [asdict(one) for one in self.selections]} if self.selections else {}),
        }


def expected_agreement(
    audit: PlannedAudit, lines: Sequence[AuditLine]
) -> tuple[ExpectedAgreement | None, list[AuditLine]]:
    """What is expected of a plan's audits, and the lines that are compared with it. `lines`: all, in order of time."""
    if audit.agreement is not None:
        return ExpectedAgreement(audit.agreement / 100, audit.requests, True), [*lines]
    count, agreed, last_s = 0, 0.0, -math.inf
    for number, line in enumerate(lines):
        if count >= FIRST_AUDITS and line.begin_s > last_s:  # not within an interval, which has a line by selection
            return ExpectedAgreement(agreed / count, count, False), [*lines[number:]]
        count, last_s = count + line.audits, line.begin_s
        agreed += line.agreed
    return None, [*lines]


def audited_accuracy(
    audit: PlannedAudit, planned: float | None, expected: ExpectedAgreement | None, lines: Iterable[AuditLine]
) -> AuditedAccuracy | None:
    """The accuracy by the audits of `lines`; None if none was compared. `planned`: of the plan, in percent."""
    known = list(lines)
    if not any(line.audits for line in known):
        return None
    strata = _strata(audit, planned, expected, known)
    share = stratified_share([one.counted(1.0) for one in strata])
    most = 100 * (1 - share.low)
    estimate = None
    if expected is not None and planned is not None:
        estimate = _estimate(audit.accuracy / 100, planned / 100, expected.requests, strata)
    return AuditedAccuracy(
        sum(line.audits for line in known),
        sum(line.shed for line in known),
        sum(line.lost for line in known),
        planned,
        Interval(100 * share.value, 100 * share.low, 100 * share.high),
        expected,
        estimate,
        (max(0.0, audit.accuracy - most), min(100.0, audit.accuracy + most)),
        tuple(one.figures() for one in strata if one.name),
    )


@dataclass(frozen=True, slots=True)
class _Stratum:
    """A selection, with its share of the requests, its accuracy and usual agreement (0 to 1), and its audits."""

    name: str
    share: float
    accuracy: float
    usual: float
    audits: int
    agreed: float

    def counted(self, weight: float) -> Counted:
        """Its part of a stratified share in which it has `weight` times its share of the requests."""
        return Counted(weight * self.share, self.audits, self.agreed)

    def figures(self) -> SelectionAgreement:
        low, high = wilson(self.agreed / self.audits, self.audits) if self.audits else (0.0, 1.0)
        value = self.agreed / self.audits if self.audits else self.usual
        return SelectionAgreement(
            self.name, self.share, self.audits, Interval(100 * value, 100 * low, 100 * high), 100 * self.usual
        )


def _strata(
    audit: PlannedAudit, planned: float | None, expected: ExpectedAgreement | None, lines: Sequence[AuditLine]
) -> list[_Stratum]:
    """The selections of a plan; one for all where it has one, or too little is known of each."""
    known = {one.name: one for one in audit.selections if one.accuracy is not None and one.agreement is not None}
    is_known = bool(known) and len(known) == len(audit.selections)
    if not is_known or any(line.audits and line.selection not in known for line in lines):
        usual, accuracy = (0.0 if expected is None else expected.share), (planned or 0.0) / 100
        audits, agreed = sum(line.audits for line in lines), math.fsum(line.agreed for line in lines)
        return [_Stratum("", 1.0, accuracy, usual, audits, agreed)]
    found = []
    for name, one in known.items():
        own = [line for line in lines if line.selection == name]
        audits, agreed = sum(line.audits for line in own), math.fsum(line.agreed for line in own)
        accuracy, usual = (one.accuracy or 0.0) / 100, (one.agreement or 0.0) / 100
        found.append(_Stratum(name, one.share, accuracy, usual, audits, agreed))
    return found


def _estimate(reference: float, planned: float, requests: int, strata: Sequence[_Stratum]) -> Interval:
    """The accuracy, from 0 to 1 as all arguments, by the agreement with the reference; in percent.

    `requests`: on which the usual agreements were measured.
    """

    def falls(one: _Stratum) -> float:
        return min(1.0, one.accuracy / one.usual) if one.usual > 0 else 1.0

    def rises(one: _Stratum) -> float:
        return min(1.0, max(0.0, (reference - one.accuracy) / (1 - one.usual))) if one.usual < 1 else 0.0

    lost, gained = _change(strata, requests, falls), _change(strata, requests, rises)

    def accuracy(loss: float, gain: float) -> float:
        return 100 * min(1.0, max(0.0, planned + (loss if loss < 0 else max(0.0, gain))))

    pairs = zip(lost, gained, strict=True)
    return Interval(*(accuracy(loss, gain) for loss, gain in pairs))


def _change(
    strata: Sequence[_Stratum], requests: int, slope: Callable[[_Stratum], float]
) -> tuple[float, float, float]:
    """Value and interval of the change of the accuracy, if an answer that newly differs changes it by `slope`."""
    slopes = [slope(one) for one in strata]
    scale = sum(one.share * each for one, each in zip(strata, slopes, strict=True))
    if scale == 0.0:
        return 0.0, 0.0, 0.0
    now = stratified_share([one.counted(each) for one, each in zip(strata, slopes, strict=True)])
    usual = sum(one.share * each * one.usual for one, each in zip(strata, slopes, strict=True)) / scale
    low, high = difference_interval(now, ScoreInterval(usual, *wilson(min(1.0, usual), requests)))
    return scale * (now.value - usual), scale * low, scale * high


def difference_interval(share: ScoreInterval, usual: ScoreInterval) -> tuple[float, float]:
    """The 95 % interval of the difference of two shares (Newcombe's hybrid score interval)."""
    difference = share.value - usual.value
    return (
        difference - math.hypot(share.value - share.low, usual.high - usual.value),
        difference + math.hypot(share.high - share.value, usual.value - usual.low),
    )
