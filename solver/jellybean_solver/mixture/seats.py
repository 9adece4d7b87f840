"""A solution of the program of ways: shares of the requests by way, and seats for them, also for after each loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jellybean_solver.mixture.ways import Instance, Way
from jellybean_solver.mixture.whole_streams import NO_ROOM, Allotment, Room, Task
from jellybean_solver.model.targets import LossKind

Held = tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """What the program does: minimise the cost, or maximise the mean over the blocks in `most_accurate`.

    Each of them has the same weight in that mean accuracy, and one that is left out counts as 0. `budget`: most USD per
    hour. `most_usd_per_h`: of any plan. `keeps_mean`: the mean accuracies of these blocks are targets, as those of the
    others are. `survives`: what may be lost, one at a time, while the rest holds. `most`: of resources.
    """

    most_accurate: tuple[int, ...] = ()
    budget: float = float("inf")
    most_usd_per_h: float = float("inf")
    keeps_mean: bool = True
    survives: tuple[LossKind, ...] = ()
    most: Mapping[str, float] = field(default_factory=dict)

    @property
    def points_per_usd(self) -> float:
        """Weight of the cost where the accuracy is maximised, in percent points per USD per hour."""
        return TIE / self.most_usd_per_h if self.most_usd_per_h > 0 else 0.0


@dataclass(frozen=True, slots=True)
class HeldSets:
    """Sets of instances that one worker of a shared pool may hold: `are_all`, or only the largest ones."""

    sets: tuple[Held, ...]
    are_all: bool = False


TIE = 0.01  # points of accuracy that all workers together weigh where it is maximised: of alike plans the cheapest


@dataclass(frozen=True, slots=True)
class Lost:
    """A loss as the program knows it: one worker `of` those of a pool that hold `held`; a tier; two tiers of a link."""

    kind: LossKind
    of: tuple[str, ...]
    held: Held = ()


@dataclass(frozen=True, slots=True)
class Seats:
    """`count` workers of a pool that hold the same instances. `served`: instance -> requests per second, all sites.

    `batches`: instance -> the largest run. `streams`: of those whose requests come in whole streams, how many
    there are in each site; `room`: for them; `allotted`: how many of the workers take at most what, empty if any even
    way of dealing them out fits.
    """

    pool: str
    held: Held
    served: Mapping[Instance, float]
    count: int
    batches: Mapping[Instance, int]
    streams: Mapping[Task, int] = field(default_factory=dict)
    room: Room = NO_ROOM
    allotted: tuple[tuple[Allotment, int], ...] = ()

    def streams_by_worker(self, workers: int) -> list[dict[Task, int]]:
        """The streams of each of so many workers: one after another, to the least busy one that has room for it."""
        left = [dict(one) for one, times in self.allotted for _ in range(times)]
        left += [{} if self.allotted else dict(self.room.most) for _ in range(workers - len(left))]
        found, busy = [dict[Task, int]() for _ in range(workers)], [0.0] * workers
        for task in sorted(self.streams, key=lambda task: -self.room.size[task]):
            for _ in range(self.streams[task]):
                able = [number for number in range(workers) if left[number].get(task, 0) > 0]
                worker = min(able, key=lambda number: (busy[number], found[number].get(task, 0)))
                left[worker][task] -= 1
                found[worker][task] = found[worker].get(task, 0) + 1
                busy[worker] += self.room.size[task]
        return found


@dataclass(frozen=True, slots=True)
class Mixture:
    """`ways`: each that is taken, with its share of the requests. `value`: of what the goal minimises; `bound`: on it.

    `after`: what is taken instead after each loss, by workers whose counts are those of `seats`.
    """

    ways: tuple[tuple[Way, float], ...]
    seats: tuple[Seats, ...]
    value: float
    bound: float
    after: Mapping[Lost, Mixture] = field(default_factory=dict)

    @property
    def all_seats(self) -> tuple[Seats, ...]:
        """Those of the usual flow, and of the flows after losses."""
        return self.seats + tuple(seats for flow in self.after.values() for seats in flow.seats)

    @property
    def groups(self) -> list[tuple[str, Held]]:
        """Pools with what workers there hold, sorted."""
        return sorted({(seats.pool, seats.held) for seats in self.all_seats})

    def with_spare_workers(self) -> Mixture:
        """The mixture with one more worker of each that hold the same instances, so that any one of them may be lost.

        The requests then spread as with everything there: the workers that are left of a group do what it did without
        the spare one.
        """
        lost = {Lost(LossKind.WORKER, (pool,), held): replace(self, after={}) for pool, held in self.groups}
        flows = {loss: flow._with_one_more() for loss, flow in {**self.after, **lost}.items()}
        return replace(self._with_one_more(), after=flows)

    def _with_one_more(self) -> Mixture:
        return replace(self, seats=tuple(replace(seats, count=seats.count + 1) for seats in self.seats))
