"""The result of a search (incumbent, lower bound, termination), its time limit, and the tolerances of all searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Selection = Mapping[str, str]  # operator -> variant
Found_co = TypeVar("Found_co", covariant=True)

VALUE_TOLERANCE = 1e-9  # relative: objective values closer than this are equal, and the first one found is kept
COST_TOLERANCE = 1e-6  # relative: costs from two different programs closer than this are equal
ACCURACY_TOLERANCE = 1e-6  # percent points: accuracies closer than this are equal
ACCURACY_SLACK = 1e-9  # percent points: a target equal to a measured accuracy is met


class Termination(StrEnum):
    """Why a search ended. The values are those of plan documents."""

    OPTIMAL = "optimal"  # the incumbent is proven optimal, or infeasibility is proven
    GAP = "gap"  # the incumbent is within the requested gap, or no candidate is left that could narrow the gap
    TIME_LIMIT = "time_limit"


def is_gap_closed(value: float, bound: float, tolerance: float = VALUE_TOLERANCE) -> bool:
    """True if a value and its lower bound differ by at most a relative tolerance (absolute for values below 1)."""
    return bound >= value or (math.isfinite(value) and value - bound <= tolerance * max(1.0, abs(value)))


def relative_gap(value: float, bound: float, tolerance: float = VALUE_TOLERANCE) -> float:
    """(value - bound) / value, for values above 0; 0 if the two are equal within the tolerance."""
    return 0.0 if is_gap_closed(value, bound, tolerance) else (value - bound) / value


def termination_of(value: float, bound: float, *, out_of_time: bool, gap: float = 0.0) -> Termination:
    """Why a search ended, from its incumbent's `value` (inf without one), its lower bound and the requested `gap`."""
    if is_gap_closed(value, bound):
        return Termination.OPTIMAL
    within_gap = math.isfinite(value) and value - bound <= gap * value
    return Termination.TIME_LIMIT if out_of_time and not within_gap else Termination.GAP


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Found_co]):
    """The result of a search that minimises `value`.

    `value`: the incumbent's objective, inf without an incumbent. `bound`: lower bound on the optimum, inf if
    infeasibility is proven. `found`, `selection`: the incumbent. `tried`: number of selections solved exactly.
    """

    value: float
    found: Found_co | None
    selection: Selection | None
    bound: float
    tried: int
    termination: Termination

    @property
    def is_conclusive(self) -> bool:
        """True if the incumbent is proven optimal, or infeasibility is proven."""
        return self.termination == Termination.OPTIMAL

    @property
    def gap(self) -> float:
        """Relative gap between value and bound; 0 if optimal, inf without an incumbent."""
        return math.inf if self.found is None else relative_gap(self.value, self.bound)


@dataclass(frozen=True, slots=True)
class Clock:
    """Time left until a limit. `now` gives seconds from any origin; `end` is the limit on the same scale.

    Without a limit (`end` inf) `now` may be None.
    """

    now: Callable[[], float] | None = None
    end: float = math.inf

    def left(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self.now is None or math.isinf(self.end) else max(0.0, self.end - self.now())

    def earlier(self, seconds: float, part: float) -> Clock:
        """A clock that ends so much earlier, but by no more than a part of the time left."""
        left = self.left()
        return self if left is None else Clock(self.now, self.end - min(seconds, part * left))

    def share(self, part: float) -> Clock:
        """A clock whose limit comes after the fraction `part` (0 to 1) of the time left."""
        left = self.left()
        return self if left is None or self.now is None else Clock(self.now, self.now() + part * left)
