"""Whole streams on whole workers: an allotment says how many streams of each task one worker takes.

A stream keeps to one route, so a worker that is half free takes no half of one. Where workers run several operators,
what one can take is a set of allotments, the largest of which are columns of the program (flow_rows.py). Where these
are too many, streams are small, and of n workers all but one are taken to be fuller by the largest stream: then there
is room for each stream at the least busy worker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MOST_ALLOTMENTS = 200  # of the workers that hold the same instances; each is an integer column of every flow
ROUNDING = 1e-9  # of a worker, or of a stream: less is a rounding error

Task = tuple[str, str, float]  # operator, variant, requests per second if all requests of the block came
Allotment = Mapping[Task, int]


@dataclass(frozen=True, slots=True)
class Room:
    """What a worker can take. `size`: task -> share of the worker for one stream; `most`: of them alone.

    `allotments`: the largest ones; empty if they are too many, or need not be known.
    """

    size: Mapping[Task, float]
    most: Allotment
    allotments: tuple[Allotment, ...] = ()

    @classmethod
    def of(cls, size: Mapping[Task, float], counts: Mapping[str, int], *, listed: bool) -> Room:
        """The room for these streams. `counts`: of all streams by operator; `listed`: with allotments."""
        most = {one: _fitting(own, 1.0, counts[one[0]]) for one, own in size.items()}
        if not listed:
            return cls(size, most)
        found = tuple(itertools.islice(_largest(size, most), MOST_ALLOTMENTS + 1))
        return cls(size, most, found if len(found) <= MOST_ALLOTMENTS else ())


NO_ROOM = Room({}, {})


def _fitting(size: float, free: float, most: int) -> int:
    return most if size <= 0 else min(most, math.floor(free / size + ROUNDING))


def _largest(size: Mapping[Task, float], most: Allotment) -> Iterator[Allotment]:
    """The allotments of which none is part of another one."""
    names = sorted(size, key=size.__getitem__)

    def extended(index: int, free: float) -> Iterator[dict[Task, int]]:
        name = names[index]
        fitting = _fitting(size[name], free, most[name])
        for count in range(fitting, -1, -1) if index else (fitting,):
            rest = extended(index - 1, free - count * size[name]) if index else ({},)
            yield from ({**one, name: count} for one in rest)

    for one in extended(len(names) - 1, 1.0):
        free = 1.0 - math.fsum(count * size[name] for name, count in one.items())
        if not any(one[name] < most[name] and _fitting(size[name], free, 1) for name in names):
            yield one
