"""What workers cost beyond their time where they are paid in whole units of it, such as started hours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from jellybean_solver.model.plan import Plan
from jellybean_solver.replanning.by_time import Period

ROUNDING = 1e-9  # of a unit: a run that is longer by less is not a unit more


def unused_usd(
    periods: Sequence[Period], plans: Sequence[Plan], billing_s: Mapping[str, float], *, repeats: bool
) -> float:
    """USD for the rest of the last unit of each worker's run. `plans`: of each period; `billing_s`: pool -> its unit.

    The workers of a pool that are needed least are stopped first, so the n-th one runs while at least n are needed.
    """
    found = 0.0
    counts = [Counter(worker.pool for worker in plan.workers) for plan in plans]
    prices = {w.pool: w.price_usd_per_h * plan.sites_of(w.tier) for plan in plans for w in plan.workers}
    for pool, unit_s in billing_s.items():
        needed = [count[pool] for count in counts]
        for level in range(1, max(needed, default=0) + 1):
            runs = _runs([count >= level for count in needed], periods, repeats=repeats)
            unused_s = sum(math.ceil(run_s / unit_s - ROUNDING) * unit_s - run_s for run_s in runs)
            found += prices[pool] * unused_s / 3600.0
    return found


def _runs(is_on: Sequence[bool], periods: Sequence[Period], *, repeats: bool) -> Iterator[float]:
    """Seconds of each stretch of periods in which a worker is on; none if it never stops."""
    if repeats and all(is_on):
        return
    order = list(range(len(periods)))
    if repeats:  # begin where it is off, so that no stretch is cut
        first = next(number for number in order if not is_on[number])
        order = order[first:] + order[:first]
    run_s = 0.0
    for number in order:
        if is_on[number]:
            run_s += periods[number].end_s - periods[number].start_s
        elif run_s:
            yield run_s
            run_s = 0.0
    if run_s:
        yield run_s


def improved(chosen: Sequence[int], total: Callable[[Sequence[int]], float], candidates: int) -> list[int]:
    """A sequence of plans that no exchange of one stretch makes cheaper. `total`: what a sequence costs.

    `cheapest_sequence` knows no units, as what a worker costs then depends on all of its run; this goes on from there.
    """
    best, least = list(chosen), total(chosen)
    while True:
        found = min(((total(other), other) for other in _exchanged(best, candidates)), default=(least, best))
        if found[0] >= least - ROUNDING * abs(least):
            return best
        least, best = found


def _exchanged(chosen: Sequence[int], candidates: int) -> Iterator[list[int]]:
    """The sequences that differ in the plan of one stretch of equal plans."""
    start = 0
    while start < len(chosen):
        end = next((n for n in range(start, len(chosen)) if chosen[n] != chosen[start]), len(chosen))
        for other in range(candidates):
            if other != chosen[start]:
                yield [*chosen[:start], *[other] * (end - start), *chosen[end:]]
        start = end
