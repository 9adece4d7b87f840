"""The share of successes in a population of strata that were sampled apart, with its score interval.

The interval is Wilson's for the effective size of the sample, as of surveys (Kott and Carr 1997, Franco et al. 2019):
the size of a simple sample whose error is that of the weighted sum. It is the whole sample where strata are sampled in
proportion to their weights, and smaller where one with much weight has few. Of one stratum it is Wilson's interval. Of
a stratum that was not sampled nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jellybean.ledger.answers import wilson


@dataclass(frozen=True, slots=True)
class Counted:
    """A stratum. `weight`: in the sum, in proportion to the others'; `count`: of its sample; `successes`: in it."""

    weight: float
    count: int
    successes: float

    @property
    def share(self) -> float:
        """Of successes in the sample."""
        return min(1.0, self.successes / self.count)

    @property
    def variance(self) -> float:
        """Of one draw; half a success and half a failure more are counted, so that it is not 0 without failures."""
        drawn = (self.successes + 0.5) / (self.count + 1)
        return drawn * (1 - drawn)


@dataclass(frozen=True, slots=True)
class ScoreInterval:
    """A share, from 0 to 1, with its 95 % interval."""

    value: float
    low: float
    high: float


def stratified_share(strata: Sequence[Counted]) -> ScoreInterval:
    """The share in the population; of what was not sampled it may be anything. ValueError if nothing was sampled."""
    known = [one for one in strata if one.count and one.weight > 0]
    total, sampled = math.fsum(one.weight for one in strata), math.fsum(one.weight for one in known)
    if not known:
        raise ValueError("no stratum was sampled")
    share = math.fsum(one.weight * one.share for one in known) / sampled
    # Parts of the sum's variance, by the variances of the strata, and as if all had that of the whole.
    parts = [(one.weight / sampled) ** 2 / one.count for one in known]
    own = math.fsum(part * one.variance for part, one in zip(parts, known, strict=True))
    alike = Counted(1.0, sum(one.count for one in known), share * sum(one.count for one in known)).variance
    low, high = wilson(share, min(1 / math.fsum(parts), alike / own))
    missing = max(0.0, total - sampled) / total
    return ScoreInterval(share, low * (1 - missing), high * (1 - missing) + missing)
