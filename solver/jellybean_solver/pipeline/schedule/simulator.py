"""Simulates a schedule: start and end time of every action.

A device executes its actions in order and starts each one as soon as its inputs have arrived. A tensor that crosses
devices takes `transfer_s`; without overlap, both devices are blocked for that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import Schedule

StageSeconds = float | tuple[float, ...]  # one value for all stages, or one per stage
# A missing input: (0, slot) a forward output, (1, slot) an input gradient, (2, slot) the all-reduce of
# a stage; its slot counts stages and the micro-batches of updates.
Dependency = tuple[int, int]
_FORWARD = int(ActionKind.FORWARD)
_NO_INPUT = (0.0, 0.0, None)
_Neighbours = list[tuple[int, float]]
_OWN: _Neighbours = [(0, 0.0)]


@dataclass(frozen=True, slots=True)
class ScheduleCosts:
    """Duration of each kind of action, in seconds.

    `input_s`, `weight_s`: the input-gradient and weight-gradient parts of a split backward; half of `backward_s` each
    by default. `transfer_s`: sending an activation or a gradient over edge i of `Schedule.sends`, in a chain between
    stage i and i + 1. `gap_s`: between two actions of a device, in which it computes nothing: taking inputs, sending
    outputs, the interpreter. `wait_s`: before an update of the stage, in which its device waits for sums of gradients.
    `slowness`: per device, factor on its compute time; empty for 1. `overlap`: transfers run concurrently with
    computation.
    """

    forward_s: StageSeconds = 1.0
    backward_s: StageSeconds = 2.0
    input_s: StageSeconds | None = None
    weight_s: StageSeconds | None = None
    transfer_s: StageSeconds = 0.0
    reduce_s: StageSeconds = 0.0
    update_s: StageSeconds = 0.0
    gap_s: float = 0.0
    wait_s: StageSeconds = 0.0
    slowness: tuple[float, ...] = ()
    overlap: bool = True

    def computing_s(self, kind: ActionKind, stage: int) -> float:
        """Seconds of an action of that kind on a device of slowness 1."""
        half = stage_seconds(self.backward_s, stage) / 2
        match kind:
            case ActionKind.FORWARD:
                return stage_seconds(self.forward_s, stage)
            case ActionKind.BACKWARD:
                return stage_seconds(self.backward_s, stage)
            case ActionKind.INPUT_GRADIENT:
                return half if self.input_s is None else stage_seconds(self.input_s, stage)
            case ActionKind.WEIGHT_GRADIENT:
                return half if self.weight_s is None else stage_seconds(self.weight_s, stage)
            case ActionKind.REDUCE:
                return stage_seconds(self.reduce_s, stage)
            case ActionKind.UPDATE:
                return stage_seconds(self.update_s, stage)


def stage_seconds(seconds: StageSeconds, stage: int) -> float:
    """The seconds of one stage."""
    return seconds[stage] if isinstance(seconds, tuple) else seconds


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action with its start and end, in seconds from the start of the schedule."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """`starts_s[device]` and `ends_s[device]`: times of the device's actions, in execution order."""

    schedule: Schedule
    starts_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]

    @property
    def makespan_s(self) -> float:
        return max(ends[-1] for ends in self.ends_s if ends)

    def timed_actions(self, device: int) -> Iterator[TimedAction]:
        """The actions of a device with their times."""
        return map(TimedAction, self.schedule.actions[device], self.starts_s[device], self.ends_s[device])

    def busy_s(self, device: int, first: int = 0, last: int | None = None) -> float:
        """Compute time of the device's actions with index in [first, last)."""
        return sum(self.ends_s[device][first:last]) - sum(self.starts_s[device][first:last])


def simulate(schedule: Schedule, costs: ScheduleCosts | None = None) -> Timeline:
    """Start and end of all actions. SolverError, with the action that blocks, if the schedule deadlocks."""
    return _ScheduleSimulation(schedule, costs or ScheduleCosts()).timeline()


class _ScheduleSimulation:
    """Event-driven execution of a schedule.

    `ended[direction][slot]`: when a forward (direction 0) or an input gradient (direction 1) was computed; negative
    before. A slot is the index of a (pipe, stage, micro-batch).
    """

    def __init__(self, schedule: Schedule, costs: ScheduleCosts) -> None:
        self.schedule, self.costs = schedule, costs
        size = len(schedule.device_of) * schedule.stages * schedule.microbatches
        self.ended = ([-1.0] * size, [-1.0] * size)
        self.reduced: dict[int, list[float]] = {}  # slot -> when each replica of the stage joined the all-reduce
        self.copies = [schedule.copies_of(stage) for stage in range(schedule.stages)]
        self.position = [0] * schedule.devices
        self.free = [0.0] * schedule.devices
        self.starts: list[list[float]] = [[] for _ in range(schedule.devices)]
        self.ends: list[list[float]] = [[] for _ in range(schedule.devices)]
        self.waiting: dict[Dependency, list[int]] = {}  # devices blocked on a missing input
        self.blocked: dict[int, Dependency] = {}  # device -> its missing input
        self.seconds = [self._action_seconds(device) for device in range(schedule.devices)]
        self.before = [self._seconds_before(kind) for kind in ActionKind]
        pipes = range(len(schedule.device_of))
        # By pipe and stage: (other stage's distance in slots, transfer seconds) of each input and output.
        self.producers = [self._neighbours(pipe, outgoing=False) for pipe in pipes]
        self.consumers = [self._neighbours(pipe, outgoing=True) for pipe in pipes]

    def timeline(self) -> Timeline:
        ready = list(range(self.schedule.devices))
        while ready:
            ready += self._advance(ready.pop())
        blocked = [
            device for device, actions in enumerate(self.schedule.actions) if self.position[device] < len(actions)
        ]
        if blocked:
            raise SolverError(self._deadlock_message(blocked))
        return Timeline(self.schedule, tuple(map(tuple, self.starts)), tuple(map(tuple, self.ends)))

    def _advance(self, device: int) -> list[int]:
        """Execute the device's actions until an input is missing. Returns the devices that this unblocks."""
        actions, seconds, freed = self.schedule.actions[device], self.seconds[device], list[int]()
        starts, ends, overlap = self.starts[device], self.ends[device], self.costs.overlap
        free = self.free[device]
        for index in range(self.position[device], len(actions)):
            action = actions[index]
            kind, stage = action.kind, action.stage
            arrived, received, missing = self._inputs(action, kind, stage)
            if missing is not None:
                self.waiting.setdefault(missing, []).append(device)
                self.blocked[device] = missing
                break
            free += self.before[kind][stage]
            if not overlap:
                free += received
            free = end = (arrived if arrived > free else free) + seconds[kind][stage]
            starts.append(end - seconds[kind][stage])
            ends.append(end)
            self.position[device] = index + 1
            freed += self._record_end(action, kind, stage, end)
            if not overlap:
                free += self._send_s(action, kind, stage)
        self.free[device] = free
        return freed

    def _slot(self, action: Action, stage: int) -> int:
        return (action.pipe * self.schedule.stages + stage) * self.schedule.microbatches + action.microbatch

    def _inputs(self, action: Action, kind: int, stage: int) -> tuple[float, float, Dependency | None]:
        """(time at which the inputs have arrived, seconds to receive them, None), or (0, 0, the missing input)."""
        slot = self._slot(action, stage)
        if kind == _FORWARD:
            return self._inputs_from(0, slot, self.producers[action.pipe][stage])
        if kind == ActionKind.WEIGHT_GRADIENT:
            return self._inputs_from(1, slot, _OWN)
        if kind >= ActionKind.REDUCE:
            return self._all_reduced(action)
        if self.ended[0][slot] < 0:
            return 0.0, 0.0, (0, slot)
        return self._inputs_from(1, slot, self.consumers[action.pipe][stage])

    def _inputs_from(self, direction: int, slot: int, others: _Neighbours) -> tuple[float, float, Dependency | None]:
        ended, arrived, received = self.ended[direction], 0.0, 0.0
        for distance, transfer_s in others:
            at = ended[slot + distance]
            if at < 0:
                return 0.0, 0.0, (direction, slot + distance)
            received += transfer_s
            arrived = max(arrived, at + transfer_s)
        return arrived, received, None

    def _all_reduced(self, action: Action) -> tuple[float, float, Dependency | None]:
        """Inputs of a REDUCE or UPDATE, as in `_inputs`: an update waits until all replicas joined the all-reduce."""
        copies = self.copies[action.stage]
        if action.kind is ActionKind.REDUCE or copies == 1:
            return _NO_INPUT
        slot = self._reduce_slot(action)
        ready = self.reduced.get(slot, [])
        return (max(ready), 0.0, None) if len(ready) == copies else (0.0, 0.0, (2, slot))

    def _reduce_slot(self, action: Action) -> int:
        return action.stage * self.schedule.microbatches + action.microbatch

    def _record_end(self, action: Action, kind: int, stage: int, end: float) -> list[int]:
        """Record an action's end. Returns the devices that waited for its output."""
        if kind <= ActionKind.INPUT_GRADIENT:
            direction = 0 if kind == _FORWARD else 1
            slot = self._slot(action, stage)
            self.ended[direction][slot] = end
            return self.waiting.pop((direction, slot), []) if self.waiting else []
        if kind == ActionKind.REDUCE:
            slot = self._reduce_slot(action)
            self.reduced.setdefault(slot, []).append(end)
            return self.waiting.pop((2, slot), [])
        return []

    def _send_s(self, action: Action, kind: int, stage: int) -> float:
        """Seconds that the device is blocked by sending the action's output, without overlap."""
        if kind > ActionKind.INPUT_GRADIENT:
            return 0.0
        others = self.consumers if kind == _FORWARD else self.producers
        return sum(transfer_s for _, transfer_s in others[action.pipe][stage])

    def _action_seconds(self, device: int) -> list[list[float]]:
        """Seconds of the device's actions, by kind and stage."""
        slow = self.costs.slowness[device] if self.costs.slowness else 1.0
        return [
            [slow * self.costs.computing_s(kind, stage) for stage in range(self.schedule.stages)] for kind in ActionKind
        ]

    def _seconds_before(self, kind: ActionKind) -> list[float]:
        """Seconds before an action of that kind in which its device computes nothing, by stage."""
        costs, stages = self.costs, range(self.schedule.stages)
        waits = [stage_seconds(costs.wait_s, stage) if kind is ActionKind.UPDATE else 0.0 for stage in stages]
        return [costs.gap_s + wait for wait in waits]

    def _neighbours(self, pipe: int, *, outgoing: bool) -> list[_Neighbours]:
        """By stage, the stages that it sends to or receives from; a transfer on one device takes no time."""
        places, step = self.schedule.device_of[pipe], self.schedule.microbatches
        found: list[_Neighbours] = [[] for _ in places]
        for edge, (one, other) in enumerate(self.schedule.sends):
            transfer_s = 0.0 if places[one] == places[other] else stage_seconds(self.costs.transfer_s, edge)
            stage, distance = (one, other - one) if outgoing else (other, one - other)
            found[stage].append((distance * step, transfer_s))
        return found

    def _deadlock_message(self, blocked: list[int]) -> str:
        device = blocked[0]
        direction, slot = self.blocked[device]
        stage, microbatch = divmod(slot, self.schedule.microbatches)
        missing = f"{stage % self.schedule.stages}{'FBR'[direction]}{microbatch}"
        return (
            f"the schedule {self.schedule.name} deadlocks: {len(blocked)} of {self.schedule.devices} devices wait; "
            f"device {device} waits in {self.schedule.actions[device][self.position[device]]} for {missing}"
        )


def bubble_fraction(timeline: Timeline) -> float:
    """Share of the devices' time without computation. For schedules without a flush, of the steady state only.

    The steady state starts when every device has finished a backward and ends when the first device has finished its
    last forward; on each device, only whole update periods in it count. 0 if the schedule is too short to reach it.
    """
    devices = range(timeline.schedule.devices)
    if timeline.schedule.flushes:
        whole = timeline.makespan_s * len(devices)
        return max(0.0, 1.0 - sum(map(timeline.busy_s, devices)) / whole) if whole > 0 else 0.0
    begins = max(_end_of(timeline, device, ActionKind.BACKWARD, 1) for device in devices)
    ends = min(_end_of(timeline, device, ActionKind.FORWARD, -1) for device in devices)
    idle = total = 0.0
    for device in devices:
        marks = _round_ends(timeline, device, begins, ends)
        if len(marks) > 1:
            length = timeline.ends_s[device][marks[-1]] - timeline.ends_s[device][marks[0]]
            total += length
            idle += length - timeline.busy_s(device, marks[0] + 1, marks[-1] + 1)
    return max(0.0, idle / total) if total > 0 else 0.0


def bubble_over_ideal(timeline: Timeline) -> float:
    """The devices' time without computation, as a multiple of the time with computation: f / (1 - f).

    f is `bubble_fraction`, whose denominator is all of the devices' time. Papers state either: for GPipe and 1F1B with
    equal stages (D - 1) / (D - 1 + M) (Huang et al. 2019) and (D - 1) / M (Narayanan et al. 2021). Infinite if nothing
    is computed.
    """
    idle = bubble_fraction(timeline)
    return idle / (1.0 - idle) if idle < 1.0 else math.inf


def _end_of(timeline: Timeline, device: int, kind: ActionKind, step: int) -> float:
    """End in seconds of the device's first (`step` 1) or last (`step` -1) action of a kind."""
    pairs = zip(timeline.schedule.actions[device][::step], timeline.ends_s[device][::step], strict=True)
    return next(end for action, end in pairs if action.kind is kind)


def _round_ends(timeline: Timeline, device: int, begins: float, ends: float) -> list[int]:
    """Indices of the updates of the device's first stage between the times `begins` and `ends`."""
    actions = timeline.schedule.actions[device]
    stage = actions[0].stage
    return [
        index
        for index, (action, end) in enumerate(zip(actions, timeline.ends_s[device], strict=True))
        if action.kind is ActionKind.UPDATE and action.stage == stage and begins <= end <= ends
    ]
