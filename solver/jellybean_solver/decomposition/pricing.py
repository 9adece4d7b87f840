"""The cheapest plans of many workflows at given prices, those of equal shape together, others alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from jellybean_solver.decomposition.alike_parts import alike_parts
from jellybean_solver.decomposition.alike_search import AlikeSearch
from jellybean_solver.decomposition.local_program import Answer, LocalProgram
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.outcome import Clock

MOST_ALIKE, MOST_ALONE = 250, 50  # workflows of a group; with more alike ones, arrays would not fit a core's cache


class Group(Protocol):
    """Workflows that are solved together."""

    @property
    def numbers(self) -> tuple[int, ...]: ...

    def solve(self, prices: Prices) -> list[Answer]: ...


class Pricing:
    """Answers for these parts of a split. `gap`: relative, of alike parts; `local_gap`: of exact programs.

    `programs`: those of parts that are known already. They also solve alike parts that are left with a larger gap.
    `clock`: once it ends, alike parts keep the bounds that they have.
    """

    def __init__(
        self,
        split: Split,
        numbers: Sequence[int],
        pool: Executor,
        gap: float,
        local_gap: float,
        programs: Mapping[int, LocalProgram],
        clock: Clock,
    ) -> None:
        arrays, alone = alike_parts(split, numbers, MOST_ALIKE)
        self._pool, self._gap, self._known, self._clock = pool, gap, programs, clock
        self.groups: list[Group] = [AlikeSearch(split, each, gap, local_gap, clock) for each in arrays]
        self.groups += [
            _Alone(split, alone[start : start + MOST_ALONE], pool, local_gap, programs)
            for start in range(0, len(alone), MOST_ALONE)
        ]

    def solve(self, prices: Prices, group: Group) -> Iterator[tuple[int, Answer]]:
        """Per part of this group its number and answer; those with a large gap get their program's, if it is known."""
        found = dict(zip(group.numbers, group.solve(prices), strict=True))
        wide = [n for n, answer in found.items() if n in self._known and answer.gap_at(prices) > self._gap]
        for number, answer in zip(wide, self._pool.map(lambda n: self._exactly(n, prices), wide), strict=True):
            if answer is not None:
                found[number] = answer.closer(found[number], prices)
        yield from found.items()

    def _exactly(self, number: int, prices: Prices) -> Answer | None:
        """The answer of a part's program; None once time has ended."""
        return None if self._clock.left() == 0.0 else self._known[number].solve(prices)


class _Alone:
    """Parts that are solved one by one; their programs are kept, as only prices change."""

    def __init__(
        self, split: Split, numbers: Sequence[int], pool: Executor, gap: float, programs: Mapping[int, LocalProgram]
    ) -> None:
        self.numbers = tuple(numbers)
        self._split, self._pool, self._gap, self._known = split, pool, gap, programs
        self._programs: list[LocalProgram] = []

    def solve(self, prices: Prices) -> list[Answer]:
        """An answer for each part, in order."""
        if not self._programs:
            self._programs = [
                self._known.get(number) or LocalProgram(self._split, number, self._gap) for number in self.numbers
            ]
        return list(self._pool.map(lambda program: program.solve(prices), self._programs))
