"""How many requests run together at a worker, in closed form.

Runs hold what came while the last one went on, up to the batch size, and never wait for more. So their size is where
the time of a run of that size, and what else the worker does meanwhile, is the time in which as many come: a fixed
point, as in Inoue, Queueing analysis of GPU-based inference servers with dynamic batching (Performance Evaluation,
2021), here for several operators on a worker and for requests that come in groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jellybean_solver.problem import ServiceTime, Times

LEAST_FREE = 0.05  # of a worker's time, for any of its operators
CLOSE = 1e-4  # a change of size that ends the search
_ROUNDS = 20  # of the fixed point, at most


@dataclass(frozen=True, slots=True)
class Fed:
    """An operator on a worker: requests per second, `group` at a time, and the squared variation of when they come.

    `jobs` of a group are one request's children.
    """

    times: Times
    batch: int
    per_s: float
    group: float
    roughness: float
    jobs: float = 1.0


@dataclass(frozen=True, slots=True)
class Runs:
    """Requests per run of an operator on a worker: the mean, and the mean over the requests (large runs have more).

    `turn_s`: mean seconds until the operator's next run, where runs hold several: half of what goes on in between, by
    the chance that something does; for regular arrivals, only where runs of one would not keep up.
    """

    mean: float = 1.0
    seen: float = 1.0
    turn_s: float = 0.0


def runs(fed: Sequence[Fed]) -> list[Runs]:
    """Runs of all operators of one worker."""
    found = [Runs(min(float(one.batch), one.group)) for one in fed]
    if all(one.batch == 1 for one in fed):
        return found
    behind = sum(busy(one.times, one.per_s, 1.0) for one in fed) > 1.0
    for _ in range(_ROUNDS):
        used = [busy(one.times, one.per_s, now.mean) for one, now in zip(fed, found, strict=True)]
        once = sum(mean_s(one.times, now.mean) for one, now in zip(fed, found, strict=True) if one.batch > 1)
        singles = sum(own for one, own in zip(fed, used, strict=True) if one.batch == 1)
        longest_s = once / max(LEAST_FREE, 1.0 - singles)
        free = [1.0 - sum(used) + own for own in used]
        before = found
        found = [_next(one, now, left, longest_s, behind) for one, now, left in zip(fed, found, free, strict=True)]
        if all(abs(now.mean - last.mean) < CLOSE for now, last in zip(found, before, strict=True)):
            break
    return found


def busy(times: Times, per_s: float, size: float) -> float:
    """Share of a worker's time for requests in runs of a size."""
    return per_s * mean_s(times, size) / size


def _next(fed: Fed, now: Runs, free: float, longest_s: float, behind: bool) -> Runs:
    """One more round. `free`: share of the worker's time that is not of other operators; all run in `longest_s`.

    `behind`: runs of one would not keep up.
    """
    own_s = mean_s(fed.times, now.mean)
    cycle_s = min(own_s / max(free, LEAST_FREE), max(own_s, longest_s))
    come = fed.per_s / fed.group * cycle_s
    none = max(0.0, 1.0 - come)  # chance that nothing came, if as regular as can be
    none += fed.roughness * (math.exp(-come) - none)
    alone = none * (min(2.0, fed.group) - 1.0)  # who comes first to an idle worker runs before the rest of its group
    size = fed.group * (come + none) / (1.0 + alone)
    seen = fed.group * (come**2 + fed.roughness * come + none / (1.0 + alone)) / (come + none)
    drift = 1.0 + fed.group / size / 2.0 if behind else 0.0  # small runs fall behind, then a larger one catches up
    late = fed.roughness * (1.0 - none) + (1.0 - fed.roughness) * drift
    turn_s = late * cycle_s / 2.0 + none * (1.0 - fed.jobs / fed.group) * fed.times[1].mean_s
    most = float(fed.batch)
    return Runs(min(most, (now.mean + size) / 2.0), min(most, max(size, seen)), turn_s if most > 1 else 0.0)


def mean_s(times: Times, size: float) -> float:
    """Mean seconds of a run of a size, between profiled ones in proportion."""
    if size in times:
        return times[int(size)].mean_s
    above, below = max(times), 0
    for known in times:
        if known < size:
            below = max(below, known)
        if size - 1e-9 <= known < above:
            above = known
    below = below or above
    part = (size - below) / (above - below) if above > below else 0.0
    return (1.0 - part) * times[below].mean_s + part * times[above].mean_s


def service_of(times: Times, size: float) -> ServiceTime:
    """The same with its quantiles: spread as those of the next larger profiled size."""
    if size in times:
        return times[int(size)]
    above = min(known for known in times if known >= size - 1e-9)
    return replace(times[above], mean_s=mean_s(times, size))
