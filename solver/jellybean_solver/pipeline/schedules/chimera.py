"""Chimera: two pipelines in opposite directions (Li, Hoefler 2021)."""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule, flushed
from jellybean_solver.pipeline.schedule.slot_filling import Placed, Rules, listed

F, B = Kind.FORWARD, Kind.BACKWARD


def chimera(devices: int, microbatches: int, backward_slots: int = 2) -> Schedule:
    """Units of D micro-batches, half of them down and half up, one unit after the other (sections 3.1 and 3.5).

    The next unit begins when a device that never waits would be done with this one, so that its forwards fill the
    gaps at the end. `backward_slots`: how long a backward is, in forwards; the order suits that.
    """
    if devices % 2:
        raise SolverError(f"chimera needs an even number of devices, not {devices}")
    device_of = (tuple(range(devices)), tuple(reversed(range(devices))))
    work = (1 + backward_slots) * devices
    computes = []
    for own in _unit(devices, backward_slots):
        placed = [
            Placed(
                placed.slot + work * unit,
                replace(placed.action, microbatch=placed.action.microbatch + unit * devices),
            )
            for unit in range(-(-microbatches // devices))
            for placed in own
        ]
        placed.sort(key=lambda one: (one.slot, one.action.kind is F))
        computes.append([one.action for one in placed if one.action.microbatch < microbatches])
    pipes = tuple(m % devices % 2 for m in range(microbatches))
    return flushed("chimera", microbatches, device_of, computes, pipes)


def _unit(devices: int, backward_slots: int) -> list[list[Placed]]:
    """One unit. In equal slots, its m-th micro-batch of a pipe is at stage s in s + 2 m, back in 2 D - 1 - s + 2 m.

    As D is even, the pipes' slots on a device differ in parity, so nothing collides. Those slots rank a greedy run when
    backwards take longer.
    """

    def slot(action: Action) -> int:
        place = action.stage if action.kind is F else 2 * devices - 1 - action.stage
        return 2 * (action.microbatch // 2) + place

    queues = [
        [
            [Action(kind, stage, m, 0, pipe) for m in range(pipe, devices, 2)]
            for pipe, stage in enumerate((device, devices - 1 - device))
            for kind in (F, B)
        ]
        for device in range(devices)
    ]
    if backward_slots == 1:
        return [[Placed(slot(action), action) for queue in own for action in queue] for own in queues]
    rules = Rules(
        {F: 1, B: backward_slots}, keeps=B, rank=lambda action: (slot(action),), room=lambda action, kept: True
    )
    return listed(queues, devices - 1, rules)
