"""Simulation of a plan that ends as soon as it is certain that a p99 target is missed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jellybean.planning.simulation import WARMUP_SHARE, simulate_plan, window_s
from jellybean_solver import Plan, SimulationResult, StopSimulationError, request_streams

SLOWER_THAN_P99 = 0.01  # share of the requests that may miss a p99 target
DEVIATIONS = 6.0  # a Poisson count exceeds its mean by this many standard deviations once in a billion windows


def simulate_until_missed(plan: Plan, seed: int, targets_s: Mapping[str, float]) -> tuple[SimulationResult, bool]:
    """The result of a prediction's simulation, and whether it is whole: it ends once a target is missed for certain.

    `targets_s`: workflow -> p99 target in seconds. Most late plans miss it after a tenth of their requests.
    """
    observer = _LateRequests(plan, targets_s)
    result = simulate_plan(plan, seed=seed, observer=observer)
    return result, result.complete and not observer.stopped


class _LateRequests:
    """Counts requests of the window that miss their target; ends the simulation once they are too many in any case."""

    def __init__(self, plan: Plan, targets_s: Mapping[str, float]) -> None:
        self.targets_s, self.stopped, duration_s = targets_s, False, window_s(plan)
        self.start_s = WARMUP_SHARE * duration_s
        self.end_s = self.start_s + duration_s
        self.allowed: dict[str, float] = dict.fromkeys(targets_s, 1.0)
        for stream in request_streams(plan):
            mean = stream.rate_per_s * duration_s
            most = SLOWER_THAN_P99 * (mean + DEVIATIONS * math.sqrt(mean))
            self.allowed[stream.workflow] = self.allowed.get(stream.workflow, 1.0) + most

    def arrived(self, now: float, workflow: str) -> None:
        """No use for arrivals."""

    def busy(self, place: str, begin_s: float, end_s: float) -> None:
        """No use for runs."""

    def answered(self, arrived_s: float, now: float, workflow: str) -> None:
        """Count a late request."""
        target_s = self.targets_s.get(workflow, math.inf)
        if now - arrived_s > target_s and self.start_s <= arrived_s < self.end_s:
            self.allowed[workflow] -= 1.0
            if self.allowed[workflow] < 0.0:
                self.stopped = True
                raise StopSimulationError
