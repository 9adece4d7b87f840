"""Random quantities of the simulator: service times from measured quantiles, numbers of children from their mean."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from jellybean_solver.problem import ServiceTime

Sampler = Callable[[random.Random], float]
SAME_RATIO = 0.05  # relative; measured shares of a ratio that was overridden say nothing about the new one


def service_sampler(service: ServiceTime, batch: int = 1) -> Sampler:
    """Draws the seconds that one request keeps a worker busy; the draws' mean is `mean_s / batch` exactly.

    The quantile function is piecewise linear through the measured quantiles, constant below the first, and goes on
    with the last slope above the last; it is then rescaled, because capacity and predicted load come from the mean.
    """
    mean_s = service.mean_s / batch
    points = [(level, value / batch) for level, value in quantile_points(service)]
    if not points:
        return lambda rng: mean_s
    levels = [level for level, _ in points[1:-1]]
    starts = points[:-1]
    slopes = [(high - low) / (right - left) for (left, low), (right, high) in pairwise(points)]

    def draw(rng: random.Random) -> float:
        level = rng.random()
        segment = bisect_right(levels, level)
        left, value = starts[segment]
        return value + slopes[segment] * (level - left)

    return draw


def quantile_points(service: ServiceTime) -> tuple[tuple[float, float], ...]:
    """The quantile function of a run's seconds from level 0 to level 1, with the mean `mean_s`; empty: a constant."""
    points = _extended(service.quantiles)
    raw = quantile_mean(points) if len(points) >= 2 else 0.0
    return tuple((level, value * service.mean_s / raw) for level, value in points) if raw > 0 else ()


def quantile_mean(points: tuple[tuple[float, float], ...]) -> float:
    """Mean of the piecewise linear quantile function through (level, value) points from level 0 to level 1."""
    return sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))


def child_count(ratio: float, level: float, shares: Sequence[float] = ()) -> int:
    """How many children an output has, at a uniform `level` in [0, 1); the mean is `ratio`.

    Drawn from the measured `shares` of outputs with 0, 1, 2, ... rows where their mean is the ratio to 5 %; else the
    whole number next below or above the ratio.
    """
    mean = sum(count * share for count, share in enumerate(shares))
    if shares and abs(mean - ratio) <= SAME_RATIO * ratio:
        rest = level * sum(shares)
        for count, share in enumerate(shares):
            rest -= share
            if rest < 0:
                return count
        return len(shares) - 1
    whole = int(ratio)
    return whole + (level < ratio - whole)


def _extended(quantiles: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """The points with levels 0 and 1 added and equal levels removed."""
    points = sorted({level: value for level, value in quantiles if 0.0 <= level <= 1.0}.items())
    if points and points[0][0] > 0.0:
        points.insert(0, (0.0, points[0][1]))
    if len(points) < 2:
        return ()
    if points[-1][0] < 1.0:
        (left, low), (right, high) = points[-2], points[-1]
        slope = max(0.0, (high - low) / (right - left))
        points.append((1.0, high + slope * (1.0 - right)))
    return tuple(points)
