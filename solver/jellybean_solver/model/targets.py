"""Targets of a plan: accuracy, p99 latency, budget, and what it must do without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

LIMIT_TOLERANCE = 1e-6  # relative: a limit counts as broken if it is exceeded by more than this


class LossKind(StrEnum):
    """What a plan can be asked to do without, one at a time.

    SITE: all workers of a tier in one place, where no source is; LINK: the way from one tier to another.
    """

    WORKER = "worker"
    SPOT_WORKER = "spot worker"
    SITE = "site"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Margin:
    """By how much figures may be wrong while all targets hold: 0.2 is 20 % more than stated.

    `times`: service times of all operators; `rates`: of all sources. Both at once, at any worker and link.
    """

    times: float = 0.0
    rates: float = 0.0

    @property
    def work(self) -> float:
        """Factor on the time that workers are busy."""
        return (1.0 + self.times) * (1.0 + self.rates)

    @property
    def text(self) -> str:
        """`times +20 % and rates +50 %`."""
        stated = (("times", self.times), ("rates", self.rates))
        return " and ".join(f"{name} +{100.0 * share:g} %" for name, share in stated if share)


NO_MARGIN = Margin()


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets; None: no target.

    `accuracy`: of the selection that any request gets. `mean_accuracy`: of all requests together; it lets a plan mix
    variants (mixture/). `survives`: what may be lost, one at a time, while everything else holds (loss.py).
    `penalty_usd_per_h`: the mean accuracy is soft, and each percent point below it counts so much; None: it is hard.
    `soft_latency_p99_s`: a p99 latency that a plan may exceed, where each second above it counts
    `latency_penalty_usd_per_h_per_s`; `latency_p99_s` is then None, so that no plan is refused for it, but in a search,
    which sets it to one value after another. `margin`: all of this holds if figures are worse by so much, but for the
    penalties, which are of the figures as they are stated.
    """

    accuracy: float | None = None
    latency_p99_s: float | None = None
    budget_usd_per_h: float | None = None
    mean_accuracy: float | None = field(default=None, metadata={"said": "if it is stated"})
    survives: tuple[LossKind, ...] = field(default=(), metadata={"said": "if anything may be lost"})
    penalty_usd_per_h: float | None = field(default=None, metadata={"said": "if the mean accuracy is soft"})
    soft_latency_p99_s: float | None = field(default=None, metadata={"said": "if the p99 latency is soft"})
    latency_penalty_usd_per_h_per_s: float | None = field(default=None, metadata={"said": "if the p99 latency is soft"})

    margin: Margin = field(default=NO_MARGIN, metadata={"said": "if there is one"})

    @property
    def accuracy_of_plan(self) -> float | None:
        """What a plan's accuracy, the mean of all requests, must reach."""
        stated = [target for target in (self.accuracy, self.hard_mean) if target is not None]
        return max(stated, default=None)

    @property
    def hard_mean(self) -> float | None:
        """The mean accuracy that a plan must reach; None if there is none, or it is soft."""
        return self.mean_accuracy if self.penalty_usd_per_h is None else None

    @property
    def promised_p99_s(self) -> float | None:
        """The p99 latency that a plan must keep, also after losses; None if there is none, or it is soft."""
        return self.latency_p99_s if self.soft_latency_p99_s is None else None

    @property
    def is_soft(self) -> bool:
        """True if a target is soft, so that certificates are of cost and penalties together."""
        return self.penalty_usd_per_h is not None or self.soft_latency_p99_s is not None

    def survives_loss(self, kind: LossKind, *, is_spot: bool = False) -> bool:
        """True if the targets hold after such a loss. `is_spot`: of a worker that may be taken away at short notice."""
        return kind in self.survives or (is_spot and kind is LossKind.WORKER and LossKind.SPOT_WORKER in self.survives)

    def latency_penalty(self, p99_s: float) -> float:
        """USD per hour that a plan of a p99 latency counts for what it exceeds the soft target."""
        if self.soft_latency_p99_s is None or self.latency_penalty_usd_per_h_per_s is None:
            return 0.0
        return self.latency_penalty_usd_per_h_per_s * max(0.0, p99_s - self.soft_latency_p99_s)

    def penalty(self, accuracy: float | None) -> float:
        """USD per hour that a plan of a mean accuracy counts for what it lacks of the soft target."""
        if self.penalty_usd_per_h is None or self.mean_accuracy is None:
            return 0.0
        return self.penalty_usd_per_h * max(0.0, self.mean_accuracy - (accuracy or 0.0))


NO_TARGETS = Slo()


def largest_margin(targets: Iterable[Slo]) -> Margin:
    """The margin that covers those of all workflows."""
    margins = [slo.margin for slo in targets]
    return Margin(
        max((margin.times for margin in margins), default=0.0), max((margin.rates for margin in margins), default=0.0)
    )
