"""A pipeline schedule as data: the ordered actions of every device.

The generators in schedules/ create schedules, `validate` checks them and `simulate` computes their times. Drawings and
the training runtime read nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind, parse_action


class WeightPolicy(Enum):
    """Which weight version a micro-batch uses at a stage, the same in its forward and its backward.

    FLUSHED: one version for all micro-batches of an iteration, as on a single device.
    STASHED: the latest version at the time of the forward (weight stashing, PipeDream).
    VERTICAL_SYNC: at every stage the version that the first stage used (PipeDream with vertical sync).
    BUFFERED: one update behind at every stage (double-buffered weights, PipeDream-2BW).
    GROUPED: the first group of stages one update behind, the second group up to date (WPipe).
    """

    FLUSHED = "flushed"
    STASHED = "stashed"
    VERTICAL_SYNC = "vertical sync"
    BUFFERED = "double buffered"
    GROUPED = "grouped"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Actions of every device, with the placement of stages on devices. Micro-batches count from 0.

    `device_of[pipe][stage]`: the device that holds a stage of a model replica ("pipe"; Chimera has two). Pipes may
    share devices: a device holds one copy of a stage for all of them. `pipes[microbatch]`: the pipe that processes a
    micro-batch. `period`: micro-batches per weight update. `actions[device]`: in execution order. `edges`: (from, to)
    stages between which tensors are sent, from lower to higher numbers; None: from each stage to the next.
    """

    name: str
    weights: WeightPolicy
    microbatches: int
    period: int
    device_of: tuple[tuple[int, ...], ...]
    pipes: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    edges: tuple[tuple[int, int], ...] | None = None

    @property
    def sends(self) -> tuple[tuple[int, int], ...]:
        """(from, to) stages between which tensors are sent."""
        if self.edges is not None:
            return self.edges
        return tuple((stage, stage + 1) for stage in range(self.stages - 1))

    def producers(self, stage: int) -> tuple[int, ...]:
        """The stages from which a stage receives activations, in order."""
        return tuple(one for one, other in self.sends if other == stage)

    def consumers(self, stage: int) -> tuple[int, ...]:
        """The stages to which a stage sends activations, in order."""
        return tuple(other for one, other in self.sends if one == stage)

    @property
    def devices(self) -> int:
        return len(self.actions)

    @property
    def stages(self) -> int:
        return len(self.device_of[0])

    @property
    def chunks(self) -> int:
        """Most stages per device, replicas included (v in Megatron-LM)."""
        return max(len(self.copies_on(device)) for device in range(self.devices))

    @property
    def first_pipes(self) -> tuple[tuple[int, ...], ...]:
        """`[pipe][stage]`: the first pipe with the stage on the same device. It names the copy of the stage."""
        first: dict[tuple[int, int], int] = {}
        return tuple(
            tuple(first.setdefault((stage, device), pipe) for stage, device in enumerate(places))
            for pipe, places in enumerate(self.device_of)
        )

    def copies_on(self, device: int) -> tuple[tuple[int, int], ...]:
        """The copies of stages that a device holds, as (stage, first pipe), in order of the pipes."""
        return tuple(
            (stage, pipe)
            for pipe, places in enumerate(self.first_pipes)
            for stage, first in enumerate(places)
            if first == pipe and self.device_of[pipe][stage] == device
        )

    def copies_of(self, stage: int) -> int:
        """Number of devices that hold a copy of a stage."""
        return len({places[stage] for places in self.device_of})

    @property
    def flushes(self) -> bool:
        """True if the pipeline drains before every update, so that gradients equal those of one device."""
        return self.weights is WeightPolicy.FLUSHED

    def is_second(self, action: Action) -> bool:
        """True for an action of the second stage or replica that a device holds."""
        device = self.device_of[action.pipe][action.stage]
        first = self.device_of[0]
        return action.stage >= self.devices or (device in first and first[action.stage] != device)

    def to_text(self) -> str:
        """The actions as text, one line per device."""
        return "\n".join(" ".join(map(str, actions)) for actions in self.actions)

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        return ((device, action) for device, actions in enumerate(self.actions) for action in actions)


def parse_actions(text: str) -> tuple[tuple[Action, ...], ...]:
    """Parse the output of `Schedule.to_text`: the actions of every device."""
    return tuple(tuple(parse_action(word) for word in line.split()) for line in text.splitlines())


def round_robin_stages(devices: int, chunks: int = 1) -> tuple[tuple[int, ...], ...]:
    """`Schedule.device_of` of one pipe: stage s is on device s mod D, `chunks` stages per device."""
    return (tuple(stage % devices for stage in range(devices * chunks)),)


def require_at_least(name: str, what: str, given: int, least: int) -> None:
    """Raise SolverError if `given` is below `least`."""
    if given < least:
        raise SolverError(f"{name} needs at least {least} {what}, not {given}")


def synchronous_schedule(
    name: str,
    microbatches: int,
    device_of: tuple[tuple[int, ...], ...],
    compute_actions: list[list[Action]],
    pipes: tuple[int, ...] | None = None,
) -> Schedule:
    """A synchronous schedule of one iteration: the given compute actions, then one update of every stage.

    Replicas of a stage all-reduce their gradients first. All devices do this in the same order of stages, so that
    blocking collectives cannot deadlock.
    """
    last = microbatches - 1
    whole = Schedule(
        name,
        WeightPolicy.FLUSHED,
        microbatches,
        microbatches,
        device_of,
        pipes or (0,) * microbatches,
        tuple(map(tuple, compute_actions)),
    )
    actions = []
    for device, computing in enumerate(whole.actions):
        held = sorted(whole.copies_on(device))
        reduced = [(stage, pipe) for stage, pipe in held if whole.copies_of(stage) > 1]
        reduces = [Action(ActionKind.REDUCE, stage, last, 0, pipe) for stage, pipe in reduced]
        actions.append(
            (*computing, *reduces, *(Action(ActionKind.UPDATE, stage, last, 1, pipe) for stage, pipe in held))
        )
    return replace(whole, actions=tuple(actions))


def one_forward_one_backward(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """1F1B order: `warm_up` forwards, then one backward and one forward alternately, then the remaining backwards."""
    found = forwards[:warm_up]
    for index, backward in enumerate(backwards):
        found.append(backward)
        found += forwards[warm_up + index : warm_up + index + 1]
    return found
