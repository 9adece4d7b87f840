"""Memory of a schedule, from the order of its actions: live activations, weight versions, update delays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak memory of one copy of a stage. `pipe`: the first of the copy's pipes.

    `weight_versions`: the most that exist at once; a version that no later action uses is overwritten in place.
    `update_delay`: most updates between the weights that a gradient was computed with and those it is applied to.
    """

    stage: int
    pipe: int
    weight_versions: int
    update_delay: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Peak memory of one device, in activations (of one stage and one micro-batch).

    `peak_activations`: most activations live at once; one is live from a forward to its backward (or input gradient).
    `peak_deferred`: most stage inputs kept at once between an input gradient and its weight gradient.
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


def schedule_memory(schedule: Schedule) -> tuple[DeviceMemory, ...]:
    """Peak memory of each device."""
    found, first_pipes = [], schedule.first_pipes
    for actions in schedule.actions:
        own: dict[tuple[int, int], list[Action]] = {}
        for action in actions:
            own.setdefault((action.stage, first_pipes[action.pipe][action.stage]), []).append(action)
        stages = tuple(_stage(stage, pipe, own[stage, pipe]) for stage, pipe in sorted(own))
        found.append(DeviceMemory(*_activations(actions), stages))
    return tuple(found)


def _activations(actions: Sequence[Action]) -> tuple[int, int]:
    live = peak = deferred = peak_deferred = 0
    for action in actions:
        match action.kind:
            case ActionKind.FORWARD:
                live += 1
                peak = max(peak, live)
            case ActionKind.BACKWARD:
                live -= 1
            case ActionKind.INPUT_GRADIENT:
                live, deferred = live - 1, deferred + 1
                peak_deferred = max(peak_deferred, deferred)
            case ActionKind.WEIGHT_GRADIENT:
                deferred -= 1
    return peak, peak_deferred


def _stage(stage: int, pipe: int, actions: Sequence[Action]) -> StageMemory:
    last_use = {action.version: index for index, action in enumerate(actions) if action.kind < ActionKind.REDUCE}
    kept, latest = {0}, 0
    versions, delay, oldest = 1, 0, None
    for index, action in enumerate(actions):
        if action.kind is ActionKind.UPDATE:
            delay = max(delay, latest - (latest if oldest is None else oldest))
            kept = {version for version in kept if last_use.get(version, -1) > index} | {action.version}
            latest, oldest = action.version, None
            versions = max(versions, len(kept))
        elif action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT):
            oldest = action.version if oldest is None else min(oldest, action.version)
    return StageMemory(stage, pipe, versions, delay)


def peak_activation_bytes(schedule: Schedule, device: int, activation_bytes: Sequence[float]) -> float:
    """Most bytes of activations that are live on a device. `activation_bytes`: of a micro-batch, by stage."""
    now = most = 0.0
    for action in schedule.actions[device]:
        if action.kind is ActionKind.FORWARD:
            now += activation_bytes[action.stage]
        elif action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT):
            now -= activation_bytes[action.stage]
        most = max(most, now)
    return most
