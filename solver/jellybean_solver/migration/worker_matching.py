"""Distributes operators' requests over single workers, so that workers of a running plan load few models.

The assignment only counts workers; `assign_workers` turns these counts into single workers, each new or continuing a
running one. Requests go first to workers that already hold the model, the remainder to a worker with room for all of
it. This is a heuristic; its caller has a lower bound. `balance_loads` evens out the loads of workers without loading
models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jellybean_solver.migration.running_plan import HeldModels
from jellybean_solver.milp.highs_program import Program, SolveLimits
from jellybean_solver.time_limit import work_limit

SHARE_TOLERANCE = 1e-9  # shares of requests or workers below this are rounding errors
MOST_SWEEPS = 100
LEAST_S = 0.2  # for matching the workers of one group, whatever the time limit: small groups take hundredths
BALANCE_TOLERANCE = 1e-7  # busy fraction: sweeps end when no worker's load changes by more

Served = dict[str, float]  # operator -> fraction of its requests


@dataclass(slots=True)
class WorkerShare:
    """One worker: the models it held before, the share of each operator's requests it serves, its busy fraction."""

    held: HeldModels
    shares: Served = field(default_factory=dict)
    busy: float = 0.0

    def serve(self, name: str, share: float, workers: float) -> None:
        """Add a share of an operator's requests; all requests of the operator keep `workers` workers busy."""
        self.shares[name] = self.shares.get(name, 0.0) + share
        self.busy += share * workers


def assign_workers(
    shares: Mapping[str, float],
    count: int,
    busy: Mapping[str, float],
    running: Counter[HeldModels],
    price: Mapping[str, float],
) -> list[WorkerShare]:
    """`count` workers that serve `shares` (operator -> fraction of its requests).

    `running`: models held -> number of running workers; those that continue are subtracted. `busy`: operator -> workers
    that all its requests keep busy. `price`: operator -> USD per hour of loading its model on one worker.
    """
    going_on, free = _free(shares, count, busy, running, price)
    singles: list[WorkerShare] = []
    left = dict(shares)
    for held, many in going_on.items():
        running[held] -= many
        filled = _fill(held, many, {name: free.get((held, name), 0.0) for name in shares if name in held}, busy)
        for single in filled:
            for name, share in single.shares.items():
                left[name] -= share
        singles += filled
    singles += [WorkerShare(frozenset()) for _ in range(count - len(singles))]
    for name in sorted(left, key=lambda name: (-left[name] * busy[name], name)):
        _place(name, left[name], busy[name], singles)
    return singles


def loads_usd_per_h(singles: Iterable[WorkerShare], price: Mapping[str, float]) -> float:
    """USD per hour of the models that these workers must load."""
    return sum(price[name] for single in singles for name in single.shares if name not in single.held)


def _free(
    shares: Mapping[str, float],
    count: int,
    busy: Mapping[str, float],
    running: Mapping[HeldModels, int],
    price: Mapping[str, float],
) -> tuple[dict[HeldModels, int], dict[tuple[HeldModels, str], float]]:
    """Running workers that continue, and the shares they serve with models they hold, so that few loads remain.

    Returns models held -> number of such workers, and (models held, operator) -> fraction of the operator's requests;
    nothing if the time limit of the work comes first. Arguments as for `assign_workers`.
    """
    kinds = {held: many for held, many in running.items() if many > 0 and held.intersection(shares)}
    if not kinds:
        return {}, {}
    program = Program()
    workers: dict[HeldModels, int] = {}
    served: dict[tuple[HeldModels, str], int] = {}
    for held, many in kinds.items():
        workers[held] = program.column(0.0, min(many, count), integer=True)
        load = program.row(-math.inf, 0.0, [workers[held]], -1.0)
        for name in held.intersection(shares):
            column = served[held, name] = program.column(-SHARE_TOLERANCE)
            program.row(-math.inf, 0.0, [column, workers[held]], [1.0, -1.0])
            program.fill([load], [column], busy[name])
    program.row(-math.inf, count, [*workers.values()])
    for name, share in shares.items():
        there = [column for (_, other), column in served.items() if other == name]
        loads = program.column(max(price[name], SHARE_TOLERANCE), integer=True)
        program.row(-math.inf, share, there)
        for needed in (1.0, busy[name]):
            least = share * needed - SHARE_TOLERANCE
            program.row(least, math.inf, [*there, loads], [*(needed for _ in there), 1.0])
    left_s = work_limit().left()
    within_s = None if left_s is None else max(left_s, LEAST_S)
    values = program.solve(SolveLimits(1e-3, within_s)).values
    if values is None:
        return {}, {}
    return (
        {held: round(values[column]) for held, column in workers.items() if round(values[column]) > 0},
        {place: max(0.0, float(values[column])) for place, column in served.items()},
    )


def _fill(held: HeldModels, many: int, shares: Mapping[str, float], busy: Mapping[str, float]) -> list[WorkerShare]:
    """`many` workers that hold equal models and serve `shares`, filled one after the other: the last has most room."""
    singles = [WorkerShare(held) for _ in range(many)]
    at = 0
    for name, share in shares.items():
        rest = share
        while rest > SHARE_TOLERANCE:
            room = math.inf if busy[name] == 0 else (1.0 - singles[at].busy) / busy[name]
            part = rest if at == many - 1 else min(rest, room)
            if part > SHARE_TOLERANCE:
                singles[at].serve(name, part, busy[name])
            rest -= part
            if rest > SHARE_TOLERANCE:
                at += 1
    return singles


def _place(name: str, share: float, workers: float, singles: Sequence[WorkerShare]) -> None:
    """Place the remaining `share` of an operator: on the fullest worker with room for all of it, else the least busy.

    `workers`: number that all requests of the operator keep busy.
    """
    while share > SHARE_TOLERANCE:
        roomy = [single for single in singles if 1.0 - single.busy >= share * workers - SHARE_TOLERANCE]
        if roomy:
            best = max(roomy, key=lambda single: (name in single.held, single.busy))
            part = share
        else:
            best = min(singles, key=lambda single: single.busy)
            part = min(share, (1.0 - best.busy) / workers)
            if part <= SHARE_TOLERANCE:  # even the least busy worker is full up to rounding errors
                part = share
        best.serve(name, part, workers)
        share -= part


def balance_loads(workers: Sequence[Served], busy: Mapping[str, float]) -> list[Served]:
    """Redistribute requests among workers that hold the operator's model, so that loads are as even as possible.

    Operator by operator, by water-filling, until no load changes. Each step lowers the sum of squared loads and never
    raises the highest load. `busy`: operator -> workers that all its requests keep busy.
    """
    levelled = [dict(shares) for shares in workers]
    hosts: dict[str, list[int]] = {}
    for index, shares in enumerate(levelled):
        for name in shares:
            if busy[name] > 0:
                hosts.setdefault(name, []).append(index)
    loads = [sum(share * busy[name] for name, share in shares.items()) for shares in levelled]
    several = {name: at for name, at in hosts.items() if len(at) > 1}
    for _ in range(MOST_SWEEPS):
        moved = 0.0
        for name, at in several.items():
            others = {index: loads[index] - levelled[index].get(name, 0.0) * busy[name] for index in at}
            water = _water(sorted(others.values()), sum(levelled[index].get(name, 0.0) for index in at) * busy[name])
            for index, other in others.items():
                load = max(0.0, water - other)
                moved = max(moved, abs(other + load - loads[index]))
                loads[index] = other + load
                levelled[index][name] = load / busy[name]
        if moved <= BALANCE_TOLERANCE:
            break
    return [{name: share for name, share in shares.items() if share > 0} for shares in levelled]


def _water(floors: Sequence[float], volume: float) -> float:
    """Water level if `volume` is poured over columns with heights `floors`, which ascend (water-filling)."""
    total = 0.0
    for count, floor in enumerate(floors, 1):
        total += floor
        reached = (volume + total) / count
        if count == len(floors) or reached <= floors[count]:
            return reached
    return volume
