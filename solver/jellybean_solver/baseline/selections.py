"""Selections by a rule: those of the cheapest variants, and the most accurate one."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import ACCURACY_SLACK, Clock, Selection

Price = tuple[float, float]  # USD per hour of a variant's work in its cheapest pool; least workers that it keeps busy


def of_selection(problem: Problem, selection: Selection) -> Problem:
    """The problem whose operators have just the variant of a selection."""
    operators = (replace(one, variants=(one.variant(selection[one.name]),)) for one in problem.operators)
    return replace(problem, operators=tuple(operators))


def cheapest_selections(
    network: Network, target: float | None, most: int, clock: Clock
) -> list[tuple[float, Selection]]:
    """At most `most` selections that reach an accuracy target: those with the cheapest variants, and their prices.

    The price is that of the work in USD per hour. OutOfTimeError at the end of the clock.
    """
    grown: list[tuple[Price, Selection]] = [((0.0, 0.0), {})]
    for name in reversed(network.names):
        _check(clock)
        priced = _variant_prices(network, name).items()
        children = (
            ((usd + own_usd, busy + own_busy), {**chosen, name: variant})
            for (usd, busy), chosen in grown
            for variant, (own_usd, own_busy) in priced
        )
        within = (child for child in children if target is None or _reach(network, child[1]) >= target - ACCURACY_SLACK)
        grown = heapq.nsmallest(most, within, key=lambda child: child[0])
    return [(usd, chosen) for (usd, _), chosen in grown]


def most_accurate_selection(problem: Problem, clock: Clock = Clock()) -> Selection | None:
    """The most accurate selection that the fleet's devices can run; None if no accuracy is known.

    Of those that are equally accurate, the one whose work costs least. Best-first search over upper bounds on the
    accuracy, then lower bounds on the price. OutOfTimeError if the clock ends first.
    """
    network = Network(problem)
    names = network.names[::-1]
    prices = {name: {v: usd for v, (usd, _) in _variant_prices(network, name).items()} for name in names}
    # Minus the bound on the accuracy, the price above the cheapest variants', minus the depth, and the variants.
    heap: list[tuple[float, float, int, tuple[str, ...]]] = [(0.0, 0.0, 0, ())]
    while heap:
        _check(clock)
        _, price, _, variants = heapq.heappop(heap)
        chosen = dict(zip(names, variants, strict=False))
        if len(variants) == len(names):
            return chosen
        name = names[len(variants)]
        for variant, own in prices[name].items():
            reach = _reach(network, {**chosen, name: variant})
            if reach > -math.inf:
                more = own - min(prices[name].values())
                heapq.heappush(heap, (-reach, price + more, -len(variants), (*variants, variant)))
    return None


def _variant_prices(network: Network, name: str) -> dict[str, Price]:
    """Variant that can run -> its price."""
    found: dict[str, Price] = {}
    for variant in network.runnable[name]:
        busy = network.demand({name: variant}).workers[name]
        found[variant] = min(network.usd_per_h[pool] * own for pool, own in busy.items()), min(busy.values())
    return found


def _reach(network: Network, partial: Selection) -> float:
    """The most accuracy of the completions of a selection, in percent; -inf if it is not known."""
    accuracy = network.problem.accuracy
    reach = accuracy.value(partial) if len(partial) == len(network.names) else accuracy.upper_bound(partial)
    return -math.inf if reach is None else reach


def _check(clock: Clock) -> None:
    if clock.left() == 0.0:
        raise OutOfTimeError("time ended before the variants were chosen")
