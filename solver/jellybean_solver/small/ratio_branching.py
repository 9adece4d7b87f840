"""The best of a problem whose ratios depend on the variants, for searches that know plain ratios only.

Branch and bound on the operators that ratios depend on. A node leaves each of them some variants; with the least of
their ratios it is a plain problem, whose bound holds for the node. Its answer is the node's own where the variants
chosen have these ratios; else the node is split by an operator whose variant has not.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from jellybean_solver.model.problem import Problem
from jellybean_solver.model.variant_ratios import plain, settled
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock, Outcome, termination_of

T = TypeVar("T")


Ask = Callable[[Problem, bool, Clock, float], Outcome[T]]


def over_ratios(problem: Problem, ask: Ask[T], gap: float, clock: Clock) -> Outcome[T]:
    """The least outcome over all ratios, to a relative gap.

    `ask` is given plain problems, whether their ratios are true whatever the selection, the time that it may take, and
    the value of the best outcome so far. Where the ratios are not true it need only relax the problem: its bound
    counts, and the selection that it names says where to split. Before a first outcome each takes half of the rest.
    """
    open_: list[tuple[float, int, Problem]] = [(-math.inf, 0, problem)]
    best: Outcome[T] | None = None
    closed, tried, number = math.inf, 0, 0  # `closed`: the least bound of the nodes that are no longer open

    def value() -> float:
        return best.value if best is not None else math.inf

    while open_ and open_[0][0] < _enough(value(), gap) and not (tried and clock.left() == 0.0):
        bound, _, node = heapq.heappop(open_)
        limit = _halved(clock) if best is None and (node.varying or open_) else clock
        found = ask(plain(node), not node.varying, limit, value())
        tried += max(1, found.tried)
        bound = max(bound, found.bound)
        wrong = _wrong(node, found.selection) or (_wrong(node, None) if found.found is None else None)
        if not wrong:
            closed = min(closed, bound)
            if found.found is not None and found.value < value():
                best = found
        elif bound < math.inf:
            for child in _split(node, wrong):
                number += 1
                heapq.heappush(open_, (bound, number, child))
    bound = min(closed, value(), *(entry[0] for entry in open_))
    if best is None:
        ended = termination_of(math.inf, bound, out_of_time=clock.left() == 0.0)
        return Outcome(math.inf, None, None, bound, tried, ended)
    ended = termination_of(best.value, bound, gap=gap, out_of_time=clock.left() == 0.0)
    return replace(best, bound=bound, tried=tried, termination=ended)


def _enough(value: float, gap: float) -> float:
    return value - max(gap * abs(value), VALUE_TOLERANCE * max(1.0, abs(value))) if math.isfinite(value) else value


def _halved(clock: Clock) -> Clock:
    left = clock.left()
    return clock if left is None or clock.now is None else Clock(clock.now, clock.now() + left / 2)


def _wrong(node: Problem, selection: Mapping[str, str] | None) -> str | None:
    """An operator whose variant has other ratios than the least that the node leaves; the first, were none chosen."""
    if selection is None:
        return node.varying[0] if node.varying else None
    chosen = settled(node, selection)
    return next((name for name in node.varying if _ratios(chosen, name) != _ratios(node, name)), None)


def _ratios(problem: Problem, name: str) -> dict[str, float]:
    return {edge.downstream: edge.ratio for edge in problem.edges if edge.upstream == name}


def _split(node: Problem, name: str) -> Iterator[Problem]:
    """The node's variants of an operator, by their ratios; the least first, which are served most easily."""
    variants = sorted(node.operator_by_name[name].variants, key=lambda variant: sum(variant.ratios.values()))
    for index, variant in enumerate(variants):
        if all(variant.ratios != before.ratios for before in variants[:index]):
            yield settled(node, {name: variant.name})
