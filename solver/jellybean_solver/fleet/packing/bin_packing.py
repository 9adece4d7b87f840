"""Packing: which worker of a class holds which models, given the number of workers and each operator's load.

An exclusive worker holds one operator. On a shared class an operator fills most of its workers alone; the remainders
of all operators are packed onto the other workers, within time and memory. Both workers of a cut load hold its model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jellybean_solver.demand.memory import NONE, Memory, MemoryLimits
from jellybean_solver.fleet.worker_classes import WorkerClass
from jellybean_solver.small.assignment import SPARE, Group

LITTLE = 1e-10  # share of a worker's time: smaller values are rounding errors

Seats = list[tuple[int, Mapping[str, float]]]  # numbers of workers that are alike: operator -> share of its requests


@dataclass(frozen=True, slots=True)
class Load:
    """An operator's load on one class: the share of its requests served there, and the resources that it needs."""

    name: str
    share: float
    workers: float  # number of workers kept busy
    memory: Memory  # of one model


@dataclass(slots=True)
class _Seat:
    """One worker: the free share of its time, the memory that its models take, each operator's share of time."""

    time: float
    held: Memory = NONE
    parts: dict[str, float] = field(default_factory=dict)

    def has_room(self, load: Load, limits: MemoryLimits) -> bool:
        return (self.time > LITTLE or load.workers <= LITTLE) and self.held.beside(load.memory).fits(limits)

    def take(self, load: Load, time: float) -> None:
        self.parts[load.name] = time
        self.time -= time
        self.held = self.held.beside(load.memory)


def workers_of(loads: Sequence[Load]) -> int:
    """Least number of workers whose time suffices for the loads."""
    return max(1, math.ceil(sum(load.workers for load in loads) - SPARE))


def pack(loads: Sequence[Load], most: int, limits: MemoryLimits) -> Seats | None:
    """Workers that serve the loads: as few as their time allows, up to `most` if memory requires more; else None."""
    for count in range(workers_of(loads), most + 1):
        even = max(sum(load.workers for load in loads) / count, LITTLE)
        for time in (even, 1.0 + SPARE):  # utilisation of a worker: equal on all, else full
            seats = _seated(loads, count, time, limits)
            if seats is not None:
                return seats
    return None


def _seated(loads: Sequence[Load], count: int, time: float, limits: MemoryLimits) -> Seats | None:
    """The loads on `count` workers, None if they do not fit. `time`: utilisation of a full worker.

    An operator has workers that hold only its model: those that it fills, less one.
    """
    own = {load.name: max(0, math.floor(load.workers / time + LITTLE) - 1) for load in loads}
    if count < sum(own.values()):
        return None
    taken = {load.name: min(load.workers, own[load.name] * time) for load in loads}
    left = {load.name: load.workers - taken[load.name] for load in loads}
    rests = [load for load in loads if left[load.name] > LITTLE or not own[load.name]]
    large = sorted(rests, key=lambda load: (-load.memory.scarcer, load.name))
    for order in (rests, _in_turn(large), large):
        for fill in (_end_to_end, _best_fit):
            seats = [_Seat(time) for _ in range(count - sum(own.values()))]
            if fill(order, left, seats, limits):
                by_name = {load.name: load for load in loads}
                whole = [(own[name], {name: share_of(by_name[name], taken[name])}) for name in own if own[name]]
                rest = [{name: share_of(by_name[name], part) for name, part in seat.parts.items()} for seat in seats]
                return [*whole, *((1, shares) for shares in rest if shares)]
    return None


def _in_turn(large: Sequence[Load]) -> list[Load]:
    """Order that alternates large and small models, as neighbours share a worker in `_end_to_end`."""
    half = (len(large) + 1) // 2
    turns = itertools.zip_longest(large[:half], reversed(large[half:]))
    return [load for pair in turns for load in pair if load is not None]


def share_of(load: Load, time: float) -> float:
    """Share of an operator's requests that is served in `time` (in workers kept busy)."""
    return load.share * time / load.workers if load.workers > LITTLE else load.share


def _end_to_end(order: Sequence[Load], left: Mapping[str, float], seats: Sequence[_Seat], limits: MemoryLimits) -> bool:
    """Fill the seats in order, cutting a load where a worker is full (McNaughton's wrap-around rule, 1959).

    `left`: per operator, workers still to be kept busy. False if memory or time does not suffice.
    """
    at = 0
    for load in order:
        rest = left[load.name]
        while True:
            while at < len(seats) - 1 and seats[at].time <= LITTLE and rest > LITTLE:
                at += 1
            if at >= len(seats) or not seats[at].held.beside(load.memory).fits(limits):
                return False
            time = min(rest, seats[at].time) if at < len(seats) - 1 else rest
            if time > seats[at].time + len(seats) * LITTLE:
                return False
            seats[at].take(load, time)
            rest -= time
            if rest <= LITTLE:
                break
    return True


def _best_fit(order: Sequence[Load], left: Mapping[str, float], seats: Sequence[_Seat], limits: MemoryLimits) -> bool:
    """Best fit: each load goes to the fullest worker with room for it; it is cut only if it fits on none.

    `left`: per operator, workers still to be kept busy. False if memory or time does not suffice.
    """
    for load in order:
        rest = left[load.name]
        while load.name not in _names(seats) or rest > LITTLE:
            room = [seat for seat in seats if load.name not in seat.parts and seat.has_room(load, limits)]
            if not room:
                return False
            enough = [seat for seat in room if seat.time >= rest - LITTLE]
            seat = min(enough, key=lambda seat: seat.time) if enough else max(room, key=lambda seat: seat.time)
            time = min(rest, max(seat.time, 0.0)) if rest > LITTLE else rest
            seat.take(load, time)
            rest -= time
    return True


def _names(seats: Iterable[_Seat]) -> set[str]:
    return {name for seat in seats for name in seat.parts}


def in_pools(kind: WorkerClass, groups: Iterable[tuple[int, Mapping[str, float]]]) -> list[Group]:
    """Distribute groups of workers over the class's pools, cheapest pool first.

    A group that needs several pools is divided, and its shares in proportion to the workers.
    """
    pools = iter(kind.pools)
    pool = next(pools)
    room = pool.count
    found = []
    for count, shares in groups:
        rest = count
        while rest > 0:
            if room == 0:
                pool = next(pools)
                room = pool.count
            taken = min(rest, room)
            found.append(Group(pool.name, {name: share * taken / count for name, share in shares.items()}, taken))
            rest -= taken
            room -= taken
    return found
