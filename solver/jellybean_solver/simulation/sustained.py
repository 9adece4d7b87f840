"""Definition of a sustained rate, shared by simulator and measurements.

Requests are sent at a rate for a window of T seconds, evenly spaced if the highest rate is sought. The rate is
sustained if nothing failed and at least 98 % of the requests are answered by T + grace.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jellybean_solver.model.workflow import Arrivals

LEAST_WINDOW_S = 15.0  # shortest default window, for simulations and measurements
LEAST_LATENCIES = 10.0  # slow latencies in a default window: answers may be so late, and hide 1 / 10 too high a rate
LEAST_REQUESTS = 60  # in a default window: fewer differ too much in size and luck to tell a rate to a few per cent
ANSWERED = 0.98  # share of the offered requests
RATE_TOLERANCE = 0.04  # relative width of the bracket at which the search stops
LEAST_GRACE_S = 0.25
_GROWTH = 2.0
_MOST_STEPS = 60


def default_window_s(rate_per_s: float, slow_latency_s: float) -> float:
    """Seconds of a window at about this rate, unless another one is asked for.

    `slow_latency_s`: p99 latency without queueing.
    """
    return max(LEAST_WINDOW_S, LEAST_REQUESTS / rate_per_s, LEAST_LATENCIES * slow_latency_s)


def is_sustained(offered: int, answered_in_time: int, failed: int) -> bool:
    """True if a window's counts show a sustained rate; an empty window shows nothing and is not."""
    return failed == 0 and offered > 0 and answered_in_time >= ANSWERED * offered


def grace_s(slow_latency_s: float, rate_per_s: float, window_s: float, arrivals: Arrivals) -> float:
    """Seconds after the window in which answers still count as in time: a p99 latency without overload.

    `slow_latency_s`: p99 latency without queueing; 0.25 s is used if it is less. Random arrivals may end in a burst:
    one standard deviation of their number, sqrt(rate x window), takes sqrt(window / rate) seconds to serve.
    """
    burst_s = math.sqrt(window_s / rate_per_s) if arrivals is Arrivals.POISSON else 0.0
    return max(LEAST_GRACE_S, slow_latency_s) + burst_s


def highest_sustained(
    probe: Callable[[float], bool], low: float, high: float, tolerance: float = RATE_TOLERANCE
) -> float:
    """The highest rate for which `probe` returned True, within a relative `tolerance` of one for which it was False.

    `low` and `high` are a first bracket, which moves down or grows until it contains the result. 0.0 if no rate is
    sustained. `probe` is assumed to be monotone.
    """
    if not 0 < low < high:
        raise ValueError(f"a bracket needs 0 < low < high, got {low} and {high}")
    steps = 0
    while not probe(low):
        low, high, steps = low / _GROWTH, low, steps + 1
        if steps == _MOST_STEPS:
            return 0.0
    if steps == 0:
        while probe(high):
            low, high, steps = high, high * _GROWTH, steps + 1
            if steps == _MOST_STEPS:
                return low
    while high - low > tolerance * low:
        middle = (low + high) / 2
        if probe(middle):
            low = middle
        else:
            high = middle
    return low
