"""Greedy list scheduling in unit time slots, for schedules that are best described by priorities.

The actions of one (kind, pipe, stage) run in order of micro-batches. In every slot, an idle device starts the action of
smallest priority value among those that are ready and fit into its activation memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind

Priority = Callable[[Action], tuple[int, ...]]
HasMemory = Callable[[Action, int], bool]  # (forward, live activations of its device) -> it may start


@dataclass(frozen=True, slots=True)
class ListRules:
    """`slots`: duration of each kind of action in slots. `frees_activation`: the kind that frees an activation.

    `priority`: the smallest value runs first. `has_memory`: asked before every forward.
    """

    slots: Mapping[ActionKind, int]
    frees_activation: ActionKind
    priority: Priority
    has_memory: HasMemory


@dataclass(frozen=True, slots=True)
class SlottedAction:
    """An action and its start slot."""

    slot: int
    action: Action


def list_schedule(
    queues: Sequence[Sequence[Sequence[Action]]], last: int, rules: ListRules
) -> list[list[SlottedAction]]:
    """The actions of each device in execution order.

    `queues[device]`: one sequence per (kind, pipe, stage), in order of micro-batches. `last`: index of the last stage.
    SolverError on deadlock.
    """
    return _ListScheduler(queues, last, rules).orders()


class _ListScheduler:
    def __init__(self, queues: Sequence[Sequence[Sequence[Action]]], last: int, rules: ListRules) -> None:
        self.queues, self.last, self.rules = queues, last, rules
        self.ended: dict[tuple[ActionKind, int, int], int] = {}  # (kind, stage, micro-batch) -> end slot
        self.live = [0] * len(queues)  # live activations by device

    def orders(self) -> list[list[SlottedAction]]:
        """Run slot by slot until all queues are empty. Returns the actions of each device in execution order."""
        orders: list[list[SlottedAction]] = [[] for _ in self.queues]
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
                ready = [
                    (self.rules.priority(action), i, action) for action, i in heads if self._ready(action, device, slot)
                ]
                if ready:
                    _, i, action = min(ready, key=lambda item: item[:2])
                    positions[device][i] += 1
                    free[device] = slot + self.rules.slots[action.kind]
                    self.ended[action.kind, action.stage, action.microbatch] = free[device]
                    self.live[device] += (action.kind is ActionKind.FORWARD) - (
                        action.kind is self.rules.frees_activation
                    )
                    orders[device].append(SlottedAction(slot, action))
                    left -= 1
            slot += 1
            if left and slot > max(free) + 1:
                raise SolverError(f"greedy list scheduling deadlocks with {left} actions left")
        return orders

    def _ready(self, action: Action, device: int, slot: int) -> bool:
        kind, stage, microbatch = action.kind, action.stage, action.microbatch
        if kind is ActionKind.FORWARD:
            arrived = not stage or self._computed(ActionKind.FORWARD, stage - 1, microbatch, slot)
            return arrived and self.rules.has_memory(action, self.live[device])
        if kind is ActionKind.WEIGHT_GRADIENT:
            return self._computed(ActionKind.INPUT_GRADIENT, stage, microbatch, slot)
        arrived = stage == self.last or self._computed(kind, stage + 1, microbatch, slot)
        return arrived and self._computed(ActionKind.FORWARD, stage, microbatch, slot)

    def _computed(self, kind: ActionKind, stage: int, microbatch: int, slot: int) -> bool:
        ended = self.ended.get((kind, stage, microbatch))
        return ended is not None and ended <= slot
