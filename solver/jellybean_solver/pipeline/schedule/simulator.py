"""Times a schedule: when every action starts and ends.

A device does its actions in order, each as soon as what it needs is there. What crosses between devices takes
`Costs.transfer_s`; without overlap both ends are busy with it for that long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule

Seconds = float | tuple[float, ...]  # of all stages alike, or by stage
Missing = tuple[int, int]  # way and place, or 2 and the stage whose copies are not summed
_FORWARD = int(Kind.FORWARD)
_AT_ONCE = (0.0, 0.0, None)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds. `input_s`, `weight_s`: of the two parts of a backward, half of it each unless given.

    `transfer_s`: of what crosses between a stage and the next, either way. `slowness`: factor on a device's computing.
    """

    forward_s: Seconds = 1.0
    backward_s: Seconds = 2.0
    input_s: Seconds | None = None
    weight_s: Seconds | None = None
    transfer_s: Seconds = 0.0
    reduce_s: float = 0.0
    update_s: float = 0.0
    slowness: tuple[float, ...] = ()
    overlap: bool = True

    def computing_s(self, kind: Kind, stage: int) -> float:
        """Of an action, on a device of slowness 1."""
        half = at(self.backward_s, stage) / 2
        match kind:
            case Kind.FORWARD:
                return at(self.forward_s, stage)
            case Kind.BACKWARD:
                return at(self.backward_s, stage)
            case Kind.INPUT_GRADIENT:
                return half if self.input_s is None else at(self.input_s, stage)
            case Kind.WEIGHT_GRADIENT:
                return half if self.weight_s is None else at(self.weight_s, stage)
            case Kind.REDUCE:
                return self.reduce_s
            case Kind.UPDATE:
                return self.update_s


def at(seconds: Seconds, stage: int) -> float:
    """The figure of a stage."""
    return seconds[stage] if isinstance(seconds, tuple) else seconds


@dataclass(frozen=True, slots=True)
class Span:
    """An action on its device, in seconds from the start."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """`starts_s[device]`, `ends_s[device]`: of the schedule's actions, in their order."""

    schedule: Schedule
    starts_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]

    @property
    def makespan_s(self) -> float:
        return max(own[-1] for own in self.ends_s if own)

    def spans(self, device: int) -> Iterator[Span]:
        """What a device does when."""
        return map(Span, self.schedule.actions[device], self.starts_s[device], self.ends_s[device])

    def busy_s(self, device: int, first: int = 0, last: int | None = None) -> float:
        """Seconds of computation in the device's actions `first` to `last` (not included)."""
        return sum(self.ends_s[device][first:last]) - sum(self.starts_s[device][first:last])


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """The timeline of a schedule. SolverError, naming who waits for what, when it can never go on."""
    return _Run(schedule, costs or Costs()).timeline()


class _Run:
    """`ended[way][place]`: when a forward (way 0) or the gradient of its input (1) was there; below 0 while it is not.

    Places number (pipe, stage, micro-batch). Who waits is told by the place that it waits for.
    """

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs = schedule, costs
        size = len(schedule.device_of) * schedule.stages * schedule.microbatches
        self.ended = ([-1.0] * size, [-1.0] * size)
        self.reduced: dict[int, list[float]] = {}  # stage -> when its copies were ready
        self.position = [0] * schedule.devices
        self.free = [0.0] * schedule.devices
        self.starts: list[list[float]] = [[] for _ in range(schedule.devices)]
        self.ends: list[list[float]] = [[] for _ in range(schedule.devices)]
        self.waiting: dict[Missing, list[int]] = {}
        self.blocked: dict[int, Missing] = {}  # device -> what it waits for
        self.seconds = [self._seconds(device) for device in range(schedule.devices)]
        self.crossing = [self._crossing(pipe) for pipe in range(len(schedule.device_of))]

    def timeline(self) -> Timeline:
        ready = list(range(self.schedule.devices))
        while ready:
            ready += self._go_on(ready.pop())
        stuck = [d for d, own in enumerate(self.schedule.actions) if self.position[d] < len(own)]
        if stuck:
            raise SolverError(self._standstill(stuck))
        return Timeline(self.schedule, tuple(map(tuple, self.starts)), tuple(map(tuple, self.ends)))

    def _go_on(self, device: int) -> list[int]:
        """Do what the device can do; the devices that this sets free."""
        actions, seconds, freed = self.schedule.actions[device], self.seconds[device], list[int]()
        starts, ends, overlap = self.starts[device], self.ends[device], self.costs.overlap
        free = self.free[device]
        for index in range(self.position[device], len(actions)):
            action = actions[index]
            kind, stage = action.kind, action.stage
            there, received, missing = self._inputs(action, kind, stage)
            if missing is not None:
                self.waiting.setdefault(missing, []).append(device)
                self.blocked[device] = missing
                break
            if not overlap:
                free += received
            free = end = (there if there > free else free) + seconds[kind][stage]
            starts.append(end - seconds[kind][stage])
            ends.append(end)
            self.position[device] = index + 1
            freed += self._ended(action, kind, stage, end)
            if not overlap:
                free += self._sent_s(action, kind, stage)
        self.free[device] = free
        return freed

    def _place(self, action: Action, stage: int) -> int:
        return (action.pipe * self.schedule.stages + stage) * self.schedule.microbatches + action.microbatch

    def _inputs(self, action: Action, kind: int, stage: int) -> tuple[float, float, Missing | None]:
        """When all is there and how long receiving it takes; else what is missing."""
        place, step, crossing = self._place(action, stage), self.schedule.microbatches, self.crossing[action.pipe]
        if kind == _FORWARD:
            return self._from(0, place - step, crossing[stage - 1]) if stage else _AT_ONCE
        if kind == Kind.WEIGHT_GRADIENT:
            return self._from(1, place, 0.0)
        if kind >= Kind.REDUCE:
            return self._summed(kind, stage)
        if self.ended[0][place] < 0:
            return 0.0, 0.0, (0, place)
        return self._from(1, place + step, crossing[stage]) if stage + 1 < self.schedule.stages else _AT_ONCE

    def _from(self, way: int, place: int, crossing_s: float) -> tuple[float, float, Missing | None]:
        ended = self.ended[way][place]
        return (ended + crossing_s, crossing_s, None) if ended >= 0 else (0.0, 0.0, (way, place))

    def _summed(self, kind: int, stage: int) -> tuple[float, float, Missing | None]:
        """An update of a stage with copies waits until all have their gradients in the sum."""
        copies = len(self.schedule.device_of)
        if kind == Kind.REDUCE or copies == 1:
            return _AT_ONCE
        ready = self.reduced.get(stage, [])
        return (max(ready), 0.0, None) if len(ready) == copies else (0.0, 0.0, (2, stage))

    def _ended(self, action: Action, kind: int, stage: int, end: float) -> list[int]:
        """Note it; the devices that waited for it."""
        if kind <= Kind.INPUT_GRADIENT:
            way = 0 if kind == _FORWARD else 1
            place = self._place(action, stage)
            self.ended[way][place] = end
            return self.waiting.pop((way, place), []) if self.waiting else []
        if kind == Kind.REDUCE:
            self.reduced.setdefault(stage, []).append(end)
            return self.waiting.pop((2, stage), [])
        return []

    def _sent_s(self, action: Action, kind: int, stage: int) -> float:
        """Busy with sending what the action gave to the next stage."""
        crossing = self.crossing[action.pipe]
        if kind == _FORWARD:
            return crossing[stage] if stage + 1 < self.schedule.stages else 0.0
        return crossing[stage - 1] if kind <= Kind.INPUT_GRADIENT and stage else 0.0

    def _seconds(self, device: int) -> list[list[float]]:
        """By kind and stage."""
        slow = self.costs.slowness[device] if self.costs.slowness else 1.0
        return [[slow * self.costs.computing_s(kind, stage) for stage in range(self.schedule.stages)] for kind in Kind]

    def _crossing(self, pipe: int) -> list[float]:
        """Between each stage and the next; nothing where one device holds both."""
        places = self.schedule.device_of[pipe]
        return [
            0.0 if places[stage] == places[stage + 1] else at(self.costs.transfer_s, stage)
            for stage in range(len(places) - 1)
        ]

    def _standstill(self, stuck: list[int]) -> str:
        device = stuck[0]
        way, place = self.blocked[device]
        if way == 2:
            missing = f"{place}R"
        else:
            stage, microbatch = divmod(place, self.schedule.microbatches)
            missing = f"{stage % self.schedule.stages}{'FB'[way]}{microbatch}"
        return (
            f"the schedule {self.schedule.name} stands still: {len(stuck)} of {self.schedule.devices} devices wait; "
            f"device {device} waits in {self.schedule.actions[device][self.position[device]]} for {missing}"
        )


def bubble_fraction(timeline: Timeline) -> float:
    """Share of the devices' time without computation; of the steady state where nothing flushes.

    The steady state lasts from the moment when all devices have begun to go backward until one has nothing more to go
    forward with, cut to whole rounds of each device's own work; 0 when the schedule is too short to reach it.
    """
    devices = range(timeline.schedule.devices)
    if timeline.schedule.flushes:
        whole = timeline.makespan_s * len(devices)
        return max(0.0, 1.0 - sum(map(timeline.busy_s, devices)) / whole) if whole > 0 else 0.0
    begins = max(_edge(timeline, device, Kind.BACKWARD, 1) for device in devices)
    ends = min(_edge(timeline, device, Kind.FORWARD, -1) for device in devices)
    idle = total = 0.0
    for device in devices:
        marks = _rounds(timeline, device, begins, ends)
        if len(marks) > 1:
            length = timeline.ends_s[device][marks[-1]] - timeline.ends_s[device][marks[0]]
            total += length
            idle += length - timeline.busy_s(device, marks[0] + 1, marks[-1] + 1)
    return max(0.0, idle / total) if total > 0 else 0.0


def _edge(timeline: Timeline, device: int, kind: Kind, step: int) -> float:
    """When the device's first (step 1) or last (-1) action of a kind ended."""
    pairs = zip(timeline.schedule.actions[device][::step], timeline.ends_s[device][::step], strict=True)
    return next(end for action, end in pairs if action.kind is kind)


def _rounds(timeline: Timeline, device: int, begins: float, ends: float) -> list[int]:
    """The device's backwards within the steady state that end a round: of one stage, of the last of a period."""
    actions, period = timeline.schedule.actions[device], timeline.schedule.period
    stage = actions[0].stage
    return [
        index
        for index, (action, end) in enumerate(zip(actions, timeline.ends_s[device], strict=True))
        if action.kind is Kind.BACKWARD and action.stage == stage and begins <= end <= ends
        if action.microbatch % period == period - 1
    ]
