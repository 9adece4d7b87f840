"""Which worker a message goes to: by its route, and where children are spread, by their index too.

Children are spread round-robin over a group of identical workers. All senders compute where the round of a request
begins from the number at the end of its id: multiples of the golden ratio are spread evenly over the group, whatever
the numbers of children.

A plan of N routes whose children are spread has 2 N numbers: over route N + r the children of a request are spread,
over route r they all go to the workers of route r. So a request can avoid a worker that is gone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jellybean_agent.brain.messages import FanOutPath

Group = tuple[str, ...]  # identical workers
_GOLDEN = (5**0.5 - 1) / 2
_DIGITS = 9  # of an id's number that count: more would lose the fraction


def round_robin_offset(request: str) -> float:
    """Where in [0, 1) of a group the round of a request's children begins, as in the solver's spreading.py."""
    digits = request.rpartition("-")[2][-_DIGITS:]
    number = int(digits) if digits.isascii() and digits.isdigit() else zlib.crc32(request.encode())
    return number * _GOLDEN % 1.0


@dataclass(frozen=True, slots=True)
class RouteTable:
    """`routes`: operator -> worker, one mapping per route. `groups`: (operator, worker) -> the group it belongs to."""

    routes: Sequence[Mapping[str, str]]
    groups: Mapping[tuple[str, str], Group] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.routes) * (2 if self.groups else 1)

    def plain(self, number: int) -> int:
        """The number of the same route without spread children."""
        return number if number < len(self.routes) else number - len(self.routes)

    def spread(self, number: int) -> int:
        """The number of the same route with spread children; unchanged if the plan spreads none."""
        return number + len(self.routes) if self.groups and number < len(self.routes) else number

    def covers(self, number: int, operator: str) -> bool:
        """True if requests on this route visit an operator: of several workflows, only those of its own do."""
        return operator in self.routes[self.plain(number)]

    def worker(self, number: int, operator: str, path: FanOutPath, request: str) -> str:
        """The worker that runs an operator for a request, or for its child at `path` (for a gather, its parent's)."""
        if number < len(self.routes):
            return self.routes[number][operator]
        base = self.routes[number - len(self.routes)][operator]
        group = self.groups.get((operator, base)) if path else None
        if group is None:
            return base
        return group[(int(round_robin_offset(request) * len(group)) + sum(index for index, _ in path)) % len(group)]

    def runs(self, worker: str, number: int, operator: str, path: FanOutPath, request: str) -> bool:
        """True if `worker` would name this worker; False for a route or operator that the plan does not have."""
        if number < len(self.routes):
            return self.routes[number].get(operator) == worker
        known = number < len(self) and self.covers(number, operator)
        return known and self.worker(number, operator, path, request) == worker

    def workers(self, number: int, counts: Callable[[str], bool] = lambda _: True) -> frozenset[str]:
        """All workers that a request on this route may reach, by the operators that count."""
        route = {name: worker for name, worker in self.routes[self.plain(number)].items() if counts(name)}
        found = set(route.values())
        if number >= len(self.routes):
            for pair in route.items():
                found.update(self.groups.get(pair, ()))
        return frozenset(found)
