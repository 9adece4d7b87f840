"""A greedy run in whole slots, for schedules that are best described by what a free device prefers.

Each (kind, pipe, stage) goes through its micro-batches in order. In every slot a free device starts the action of least
rank among those whose inputs are there and for which there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind

Rank = Callable[[Action], tuple[int, ...]]
Room = Callable[[Action, int], bool]  # action, activations that its device keeps -> whether it may start


@dataclass(frozen=True, slots=True)
class Rules:
    """`slots`: how long each kind takes. `keeps`: the kind with which an activation is let go."""

    slots: Mapping[Kind, int]
    keeps: Kind
    rank: Rank
    room: Room


@dataclass(frozen=True, slots=True)
class Placed:
    """An action and the slot in which it starts."""

    slot: int
    action: Action


def listed(queues: Sequence[Sequence[Sequence[Action]]], last: int, rules: Rules) -> list[list[Placed]]:
    """The order of each device. `queues[device]`: actions of one kind, stage and pipe each, in order; `last`: stage.

    SolverError when nobody can go on.
    """
    return _Run(queues, last, rules).orders()


class _Run:
    def __init__(self, queues: Sequence[Sequence[Sequence[Action]]], last: int, rules: Rules) -> None:
        self.queues, self.last, self.rules = queues, last, rules
        self.ended: dict[tuple[Kind, int, int], int] = {}  # kind, stage, micro-batch -> slot
        self.kept = [0] * len(queues)

    def orders(self) -> list[list[Placed]]:
        orders: list[list[Placed]] = [[] for _ in self.queues]
        free = [0] * len(self.queues)
        left = sum(len(queue) for own in self.queues for queue in own)
        positions = [[0] * len(own) for own in self.queues]
        slot = 0
        while left:
            for device, own in enumerate(self.queues):
                if free[device] > slot:
                    continue
                heads = [
                    (queue[at], i)
                    for i, (queue, at) in enumerate(zip(own, positions[device], strict=True))
                    if at < len(queue)
                ]
                able = [(self.rules.rank(action), i, action) for action, i in heads if self._able(action, device, slot)]
                if able:
                    _, i, action = min(able, key=lambda item: item[:2])
                    positions[device][i] += 1
                    free[device] = slot + self.rules.slots[action.kind]
                    self.ended[action.kind, action.stage, action.microbatch] = free[device]
                    self.kept[device] += (action.kind is Kind.FORWARD) - (action.kind is self.rules.keeps)
                    orders[device].append(Placed(slot, action))
                    left -= 1
            slot += 1
            if left and slot > max(free) + 1:
                raise SolverError(f"the greedy order stands still with {left} actions left")
        return orders

    def _able(self, action: Action, device: int, slot: int) -> bool:
        kind, stage, microbatch = action.kind, action.stage, action.microbatch
        if kind is Kind.FORWARD:
            came = not stage or self._there(Kind.FORWARD, stage - 1, microbatch, slot)
            return came and self.rules.room(action, self.kept[device])
        if kind is Kind.WEIGHT_GRADIENT:
            return self._there(Kind.INPUT_GRADIENT, stage, microbatch, slot)
        came = stage == self.last or self._there(kind, stage + 1, microbatch, slot)
        return came and self._there(Kind.FORWARD, stage, microbatch, slot)

    def _there(self, kind: Kind, stage: int, microbatch: int, slot: int) -> bool:
        ended = self.ended.get((kind, stage, microbatch))
        return ended is not None and ended <= slot
