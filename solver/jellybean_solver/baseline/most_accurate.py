"""The most accurate selection of a problem; of those that are equally accurate, the one of least price per request."""

from __future__ import annotations

import heapq

from jellybean_solver.baseline.greedy import price_per_request
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, Selection


def most_accurate_selection(problem: Problem) -> Selection | None:
    """The most accurate selection that the fleet's devices can run; None if no accuracy is known."""
    network = Network(problem)
    return find_most_accurate(network, Clock()) if all(network.runnable.values()) else None


def find_most_accurate(network: Network, clock: Clock) -> Selection | None:
    """Best-first search over upper bounds on the accuracy, then lower bounds on the price; None if none is known.

    OutOfTimeError if the clock ends first.
    """
    model, names = network.problem.accuracy, network.names[::-1]
    prices = {name: _prices(network, name) for name in names}
    least = sum(min(own.values()) for own in prices.values())
    # Minus the bound on the accuracy, the bound on the price, minus the depth, and the variants.
    heap: list[tuple[float, float, int, tuple[str, ...]]] = [(0.0, least, 0, ())]
    while heap:
        if clock.left() == 0.0:
            raise OutOfTimeError("time ended before the most accurate selection was found")
        _, price, _, variants = heapq.heappop(heap)
        chosen = dict(zip(names, variants, strict=False))
        if len(variants) == len(names):
            return chosen
        name = names[len(variants)]
        cheapest = min(prices[name].values())
        for variant, own in prices[name].items():
            partial = {**chosen, name: variant}
            reach = model.value(partial) if len(partial) == len(names) else model.upper_bound(partial)
            if reach is not None:
                heapq.heappush(heap, (-reach, price + own - cheapest, -len(partial), (*variants, variant)))
    return None


def _prices(network: Network, name: str) -> dict[str, float]:
    """Variant -> USD per hour of the busy time of its requests in the cheapest pool."""
    operator, rate_per_s = network.problem.operator_by_name[name], network.problem.rate_per_s[name]
    return {one: rate_per_s * price_per_request(network, operator, one)[0] for one in network.runnable[name]}
