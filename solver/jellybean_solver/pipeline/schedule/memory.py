"""What a schedule keeps in memory, by the order of its actions alone: activations, weight versions, update delays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Of one copy of a stage. `weight_versions`: at once, at most; one that nobody needs any more is updated in place.

    `update_delay`: by how many updates the weights behind a gradient are older than those that it is added to, at most.
    """

    stage: int
    pipe: int
    weight_versions: int
    update_delay: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Of one device, in activations (of one stage and one micro-batch).

    `peak_activations`: between a forward and the backward (or input gradient) through it. `peak_deferred`: inputs that
    wait for their weight gradients after that.
    """

    peak_activations: int
    peak_deferred: int
    stages: tuple[StageMemory, ...]

    @property
    def weight_versions(self) -> int:
        return max(stage.weight_versions for stage in self.stages)

    @property
    def update_delay(self) -> int:
        return max(stage.update_delay for stage in self.stages)


def memory(schedule: Schedule) -> tuple[DeviceMemory, ...]:
    """The figures of each device."""
    found = []
    for actions in schedule.actions:
        own: dict[tuple[int, int], list[Action]] = {}
        for action in actions:
            own.setdefault((action.stage, action.pipe), []).append(action)
        stages = tuple(_stage(stage, pipe, own[stage, pipe]) for stage, pipe in sorted(own))
        found.append(DeviceMemory(*_activations(actions), stages))
    return tuple(found)


def _activations(actions: Sequence[Action]) -> tuple[int, int]:
    live = peak = deferred = peak_deferred = 0
    for action in actions:
        match action.kind:
            case Kind.FORWARD:
                live += 1
                peak = max(peak, live)
            case Kind.BACKWARD:
                live -= 1
            case Kind.INPUT_GRADIENT:
                live, deferred = live - 1, deferred + 1
                peak_deferred = max(peak_deferred, deferred)
            case Kind.WEIGHT_GRADIENT:
                deferred -= 1
    return peak, peak_deferred


def _stage(stage: int, pipe: int, actions: Sequence[Action]) -> StageMemory:
    last_use = {action.version: index for index, action in enumerate(actions) if action.kind is not Kind.UPDATE}
    kept, latest = {0}, 0
    versions, delay, oldest = 1, 0, None
    for index, action in enumerate(actions):
        if action.kind is Kind.UPDATE:
            delay = max(delay, latest - (latest if oldest is None else oldest))
            kept = {version for version in kept if last_use.get(version, -1) > index} | {action.version}
            latest, oldest = action.version, None
            versions = max(versions, len(kept))
        elif action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            oldest = action.version if oldest is None else min(oldest, action.version)
    return StageMemory(stage, pipe, versions, delay)
