"""A pipeline schedule as data: for every device, its actions in order.

Generators (schedules/) make them, `validate` checks them, `simulate` times them; drawings and the training runtime read
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind, parse_action


class Weights(Enum):
    """Which weights a micro-batch sees, from its forward to its backward at one stage.

    FLUSHED: all those of an iteration the same, as on one device. STASHED: the latest at its forward (PipeDream).
    VERTICAL_SYNC: at every stage the version that the first stage had. BUFFERED: one update behind, everywhere
    (PipeDream-2BW). GROUPED: the first group of stages one update behind, the second not (WPipe).
    """

    FLUSHED = "flushed"
    STASHED = "stashed"
    VERTICAL_SYNC = "vertical sync"
    BUFFERED = "double buffered"
    GROUPED = "grouped"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`device_of[pipe][stage]`: who runs it. `actions[device]` in order. Micro-batches count from 0.

    `pipes[microbatch]`: the copy of the model that it goes through. `period`: micro-batches per update.
    """

    name: str
    weights: Weights
    microbatches: int
    period: int
    device_of: tuple[tuple[int, ...], ...]
    pipes: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def devices(self) -> int:
        return len(self.actions)

    @property
    def stages(self) -> int:
        return len(self.device_of[0])

    @property
    def chunks(self) -> int:
        """Stages that a device holds, copies included."""
        return self.stages * len(self.device_of) // self.devices

    @property
    def flushes(self) -> bool:
        return self.weights is Weights.FLUSHED

    def to_text(self) -> str:
        """One line per device."""
        return "\n".join(" ".join(map(str, actions)) for actions in self.actions)

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        return ((device, action) for device, actions in enumerate(self.actions) for action in actions)


def parse_actions(text: str) -> tuple[tuple[Action, ...], ...]:
    """The devices' actions of `Schedule.to_text`."""
    return tuple(tuple(parse_action(word) for word in line.split()) for line in text.splitlines())


def straight(devices: int, chunks: int = 1) -> tuple[tuple[int, ...], ...]:
    """One pipe; stages go round the devices `chunks` times."""
    return (tuple(stage % devices for stage in range(devices * chunks)),)


def at_least(name: str, what: str, given: int, least: int) -> None:
    """SolverError unless `given` is large enough."""
    if given < least:
        raise SolverError(f"{name} needs at least {least} {what}, not {given}")


def flushed(
    name: str,
    microbatches: int,
    device_of: tuple[tuple[int, ...], ...],
    computes: list[list[Action]],
    pipes: tuple[int, ...] | None = None,
) -> Schedule:
    """A synchronous iteration: the given computing actions, then one update of every stage that a device holds.

    Copies of a stage sum their gradients first; all devices do so in the stages' order, so that none waits in a circle.
    """
    last = microbatches - 1
    held = sorted((stage, pipe, device) for pipe, places in enumerate(device_of) for stage, device in enumerate(places))
    if len(device_of) > 1:
        for stage, pipe, device in held:
            computes[device].append(Action(Kind.REDUCE, stage, last, 0, pipe))
    for stage, pipe, device in held:
        computes[device].append(Action(Kind.UPDATE, stage, last, 1, pipe))
    actions = tuple(map(tuple, computes))
    return Schedule(name, Weights.FLUSHED, microbatches, microbatches, device_of, pipes or (0,) * microbatches, actions)


def one_by_one(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """`warm_up` forwards, then one backward and one forward in turn, then the backwards that are left."""
    found = forwards[:warm_up]
    for index, backward in enumerate(backwards):
        found.append(backward)
        found += forwards[warm_up + index : warm_up + index + 1]
    return found
