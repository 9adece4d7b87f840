"""Chimera: two pipelines in opposite directions (Li and Hoefler 2021)."""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.list_scheduling import ListRules, SlottedAction, list_schedule
from jellybean_solver.pipeline.schedule.schedule import Schedule, synchronous_schedule

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def check_chimera(devices: int, microbatches: int) -> None:
    """SolverError unless the number of devices is even; any number of micro-batches will do."""
    if devices % 2:
        raise SolverError(f"chimera needs an even number of devices, not {devices}")


def chimera(devices: int, microbatches: int, backward_slots: int = 2) -> Schedule:
    """Concatenated units of as many micro-batches as devices, half in each direction (sections 3.1 and 3.5).

    Successive units start one device's compute time of a unit apart, so that the forwards of a unit fill the bubbles at
    the end of the previous one. `backward_slots`: assumed duration of a backward, as a multiple of a forward.
    """
    check_chimera(devices, microbatches)
    device_of = (tuple(range(devices)), tuple(reversed(range(devices))))
    work = (1 + backward_slots) * devices
    compute_actions = []
    for own in _unit(devices, backward_slots):
        placed = [
            SlottedAction(
                placed.slot + work * unit,
                replace(placed.action, microbatch=placed.action.microbatch + unit * devices),
            )
            for unit in range(-(-microbatches // devices))
            for placed in own
        ]
        placed.sort(key=lambda one: (one.slot, one.action.kind is F))
        compute_actions.append([one.action for one in placed if one.action.microbatch < microbatches])
    pipes = tuple(m % devices % 2 for m in range(microbatches))
    return synchronous_schedule("chimera", microbatches, device_of, compute_actions, pipes)


def _unit(devices: int, backward_slots: int) -> list[list[SlottedAction]]:
    """The actions of each device in one unit, with their slots.

    If a backward takes one slot, like a forward, the m-th micro-batch of a pipe runs forward at stage s of D in slot
    s + 2 m and backward in slot 2 D - 1 - s + 2 m. D is even, so the slots of the two pipes on a device differ in
    parity and never collide. With longer backwards, those slots are the priorities of a list schedule.
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
        return [[SlottedAction(slot(action), action) for queue in own for action in queue] for own in queues]
    rules = ListRules(
        {F: 1, B: backward_slots},
        frees_activation=B,
        priority=lambda action: (slot(action),),
        has_memory=lambda action, live: True,
    )
    return list_schedule(queues, devices - 1, rules)
