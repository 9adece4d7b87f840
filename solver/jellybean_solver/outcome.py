"""How a search ended, when it must end, and the tolerances that every search shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Selection = Mapping[str, str]  # operator -> variant
Found_co = TypeVar("Found_co", covariant=True)

RELATIVE = 1e-9  # answers closer than this are equal: the first found stays
ACCURACY_SLACK = 1e-9  # percent points; a target equal to a measured figure is met


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Found_co]):
    """Where the search ended. `bound` <= the optimum; `finished` when the answer (or its absence) is proven.

    `stopped`: optimal, time_limit, or gap (bound and value are as close as was asked for, or as can be told).
    """

    value: float
    found: Found_co | None
    selection: Selection | None
    bound: float
    finished: bool
    tried: int
    stopped: str


@dataclass(frozen=True, slots=True)
class Clock:
    """Time left until a limit. Without a limit there is no need of a clock."""

    now: Callable[[], float] | None = None
    end: float = math.inf

    def left(self) -> float | None:
        """Seconds, not below 0; None when there is no limit."""
        return None if self.now is None or math.isinf(self.end) else max(0.0, self.end - self.now())
