"""From one local plan for each workflow to workers: the loads on common shared pools are packed together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jellybean_solver.decomposition.local_plan import LocalPlan
from jellybean_solver.decomposition.split import Split
from jellybean_solver.demand.memory import NONE, Memory, MemoryLimits, is_device_scarcer
from jellybean_solver.fleet.packing.bin_packing import LITTLE, Load, share_of
from jellybean_solver.fleet.worker_classes import LEAST_BYTES, WorkerClass
from jellybean_solver.model.left_out import left_out
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.small.assignment import SPARE, Group
from jellybean_solver.small.routes import Placed, plan_of

OPEN = 60  # workers with room that a load may go to: more would take long and gain little


class Packing:
    """Workers of the common shared pools for these local plans. `short`: pool -> workers that it has too few."""

    def __init__(self, split: Split, plans: Sequence[LocalPlan]) -> None:
        self.groups: list[Group] = []
        self.short: dict[str, int] = {}
        self.used: dict[str, int] = {}
        for pool in split.shared:
            loads = [load for plan in plans for load in plan.loads.get(pool.name, ())]
            if not loads:
                continue
            scarcer = is_device_scarcer(pool, split.problem.operators)
            kind = WorkerClass((pool,), split.problem.unit_usd_per_h(pool), scarcer)
            workers = packed(loads, kind.limits)
            self.used[pool.name] = len(workers)
            if len(workers) > pool.count:
                self.short[pool.name] = len(workers) - pool.count
            self.groups += [Group(pool.name, shares, 1) for shares in workers]


def packed(loads: Sequence[Load], limits: MemoryLimits) -> list[Mapping[str, float]]:
    """Workers that serve these loads, each as operator -> fraction of its requests; no more than a few are not full.

    Loads of more than a worker fill whole ones first. The rests go, those that fill the most of a worker's time or
    memory first, to the fullest worker with room; a rest that fits nowhere is cut to fill the time that is left.
    """
    full: list[Mapping[str, float]] = []
    rests: list[tuple[float, Load]] = []
    for load in loads:
        whole = math.floor(load.workers + SPARE)
        full += [{load.name: share_of(load, 1.0)}] * whole
        rest = load.workers - whole
        if rest > SPARE or not whole:
            rests.append((max(rest, 0.0), load))
    seats: list[_Seat] = []
    done: list[_Seat] = []
    for rest, load in sorted(rests, key=lambda one: -_size(one[0], one[1].memory, limits)):
        left: float | None = rest
        while left is not None:
            left = _seated(seats, load, left, limits)
        if len(seats) > OPEN:
            seats.sort(key=lambda seat: seat.time)
            done += seats[: len(seats) - OPEN]
            del seats[: len(seats) - OPEN]
    return [*full, *(seat.parts for seat in (*done, *seats))]


class _Seat:
    """A worker: the share of its time that is free, and what its models take."""

    __slots__ = ("held", "parts", "time")

    def __init__(self) -> None:
        self.time, self.held = 1.0 + SPARE, NONE
        self.parts: dict[str, float] = {}


def _seated(seats: list[_Seat], load: Load, left: float, limits: MemoryLimits) -> float | None:
    """Seat a load, or a part of it that fills a worker; returns what is left of it, None if nothing is."""
    room = [
        seat
        for seat in seats
        if (seat.time > LITTLE or left <= LITTLE)
        and load.name not in seat.parts
        and seat.held.beside(load.memory).fits(limits)
    ]
    enough = [seat for seat in room if seat.time >= left - LITTLE]
    if enough:
        seat = min(enough, key=lambda one: one.time)
    elif room and _worth_cutting(load, limits):
        seat = max(room, key=lambda one: one.time)
    else:
        seat = _Seat()
        seats.append(seat)
    time = min(left, max(seat.time, 0.0))
    seat.parts[load.name] = share_of(load, time) if load.workers > LITTLE else load.share
    seat.time -= time
    seat.held = seat.held.beside(load.memory)
    return left - time if left - time > LITTLE else None


def _worth_cutting(load: Load, limits: MemoryLimits) -> bool:
    """True if a second copy of the model takes less of a worker's memory than the load takes of its time."""
    return _filled(load.memory, limits) <= max(load.workers, LITTLE)


def _filled(memory: Memory, limits: MemoryLimits) -> float:
    """Largest share of one of a worker's memories that a model takes."""
    limited = [(size, limit) for size, limit in zip(memory, limits, strict=True) if limit is not None]
    return max((size / max(limit, LEAST_BYTES) for size, limit in limited), default=0.0)


def _size(time: float, memory: Memory, limits: MemoryLimits) -> float:
    return max(time, _filled(memory, limits))


def assembled(split: Split, plans: Sequence[LocalPlan], packing: Packing, certificate: Certificate) -> Plan:
    """The plan of all workflows that have one; its cost and accuracy are placeholders, as of `plan_of`."""
    selection = {name: variant for plan in plans for name, variant in plan.selection.items()}
    busy = {key: workers for plan in plans for key, workers in plan.busy.items()}
    bags = tuple(bag for plan in plans for bag in zip(plan.bags, plan.fractions, strict=True))
    groups = (*(group for plan in plans for group in plan.groups), *packing.groups)
    placed = Placed(bags, groups, lambda name, pool: busy[name, pool])
    workflows = split.problem.workflows
    served = {workflows[plan.part].name for plan in plans}
    problem = split.problem if len(served) == len(workflows) else restricted(split.problem, served)
    gone = [workflow.name for workflow in workflows if workflow.name not in served]
    plan = plan_of(settled(problem, selection), selection, placed, certificate)
    return replace(plan, left_out=left_out(split.problem, gone))
