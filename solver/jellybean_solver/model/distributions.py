"""Random variables of the simulator: service times from measured quantiles, child counts from their mean."""

from __future__ import annotations

import functools
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from jellybean_solver.model.workflow import ServiceTime, Times

Sampler = Callable[[random.Random, int], float]  # random generator, requests in the batch -> service time in seconds
Quantiles = Callable[[float], float]  # level in [0, 1) -> seconds
SAME_RATIO = 0.05  # relative: if the measured mean differs more from the ratio, the ratio was overridden by the user


def service_sampler(times: Times) -> Sampler:
    """A sampler of service times in seconds. For a profiled batch size the mean of the samples is `mean_s`.

    Between two profiled sizes, quantiles are interpolated at equal level. A batch above the largest profiled size is
    never drawn.
    """
    sizes = sorted(times)
    by_size = {size: _quantiles(times[size]) for size in sizes}
    constant = all(quantiles is None for quantiles in by_size.values())

    def at(size: int, level: float) -> float:
        quantiles = by_size[size]
        return times[size].mean_s if quantiles is None else quantiles(level)

    def draw(rng: random.Random, size: int) -> float:
        level = 0.0 if constant else rng.random()
        if size in by_size:
            return at(size, level)
        above = bisect_right(sizes, size)
        low, high = sizes[above - 1], sizes[above]
        part = (size - low) / (high - low)
        return (1.0 - part) * at(low, level) + part * at(high, level)

    return draw


def _quantiles(service: ServiceTime) -> Quantiles | None:
    """The quantile function; None if the service time is constant.

    Piecewise linear through the measured quantiles, constant below the first, extrapolated above the last, and rescaled
    to the mean from which capacity and load are computed.
    """
    points = quantile_points(service)
    if not points:
        return None
    levels = [level for level, _ in points[1:-1]]
    starts = points[:-1]
    slopes = [(high - low) / (right - left) for (left, low), (right, high) in pairwise(points)]

    def value_at(level: float) -> float:
        segment = bisect_right(levels, level)
        left, value = starts[segment]
        return value + slopes[segment] * (level - left)

    return value_at


def quantile_points(service: ServiceTime) -> tuple[tuple[float, float], ...]:
    """(level, seconds) points of the quantile function from level 0 to 1, with mean `mean_s`; empty if constant."""
    points = _extended(service.quantiles)
    raw = quantile_mean(points) if len(points) >= 2 else 0.0
    return tuple((level, value * service.mean_s / raw) for level, value in points) if raw > 0 else ()


def quantile_mean(points: tuple[tuple[float, float], ...]) -> float:
    """Mean of the piecewise linear quantile function through (level, value) points from level 0 to level 1."""
    return sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))


def child_count(ratio: float, level: float, shares: Sequence[float] = ()) -> int:
    """Number of child requests of one fan-out output, for a uniform random `level` in [0, 1); its mean is `ratio`.

    The last number takes what rounding leaves.
    """
    count, rest = 0, level
    for count, probability in child_distribution(ratio, tuple(shares)).items():
        rest -= probability
        if rest < 0:
            return count
    return count


@functools.lru_cache(maxsize=1024)
def child_distribution(ratio: float, shares: tuple[float, ...] = ()) -> Mapping[int, float]:
    """Number of child requests -> its probability; without numbers that never occur.

    It is that of `shares`, the measured fractions of outputs with 0, 1, 2, ... rows, if their mean is within 5 % of the
    ratio; else it is of the integers above and below the ratio.
    """
    mean, total = sum(count * share for count, share in enumerate(shares)), sum(shares)
    if shares and abs(mean - ratio) <= SAME_RATIO * ratio and total > 0.0:
        return {count: share / total for count, share in enumerate(shares) if share > 0.0}
    whole = int(ratio)
    part = ratio - whole
    return {whole + 1: part, whole: 1.0 - part} if part > 0.0 else {whole: 1.0}


def least_s(service: ServiceTime) -> float:
    """The least seconds that `service_sampler` draws for a batch of a profiled size."""
    return min((seconds for _, seconds in quantile_points(service)), default=service.mean_s)


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
