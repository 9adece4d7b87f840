"""Validates schedules: every property that the training runtime relies on.

Checked: every micro-batch runs forward and backward exactly once through every stage, on the device that holds it; the
order cannot deadlock; weight versions follow the schedule's policy and exist when they are used; every gradient is in
exactly one update; live activations stay within a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.memory import schedule_memory
from jellybean_solver.pipeline.schedule.schedule import Schedule, WeightPolicy
from jellybean_solver.pipeline.schedule.simulator import simulate

WEIGHT_GRADIENT_KINDS = (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)  # the kinds that compute weight gradients


def schedule_violations(schedule: Schedule, *, max_activations: int | None = None) -> tuple[str, ...]:
    """All violations, as messages; empty if the schedule is valid. `max_activations`: most that fit on a device."""
    if misplaced := tuple(_check_placement(schedule)):
        return misplaced
    checks = (_check_completeness, _check_versions, _check_updates, _check_copies)
    found = [violation for check in checks for violation in check(schedule)]
    if max_activations is not None:
        for device, own in enumerate(schedule_memory(schedule)):
            if own.peak_activations > max_activations:
                found.append(
                    f"device {device} holds {own.peak_activations} activations; its capacity is {max_activations}"
                )
    if not found:  # missing or misplaced actions would only be reported again as a deadlock
        try:
            simulate(schedule)
        except SolverError as error:
            found.append(str(error))
    return tuple(found)


def _check_placement(schedule: Schedule) -> Iterator[str]:
    for device, action in schedule:
        if not (action.pipe < len(schedule.device_of) and action.stage < schedule.stages):
            yield f"{action} on device {device}: there is no such stage"
        elif schedule.device_of[action.pipe][action.stage] != device:
            home = schedule.device_of[action.pipe][action.stage]
            yield f"{action} on device {device}: stage {action.stage} of pipe {action.pipe} is on device {home}"


def _check_completeness(schedule: Schedule) -> Iterator[str]:
    counted: Counter[tuple[ActionKind, int, int, int]] = Counter(
        (action.kind, action.stage, action.microbatch, action.pipe)
        for _, action in schedule
        if action.kind not in (ActionKind.REDUCE, ActionKind.UPDATE)
    )
    split = any(kind is ActionKind.INPUT_GRADIENT for kind, *_ in counted)
    backward = (ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT) if split else (ActionKind.BACKWARD,)
    for microbatch, pipe in enumerate(schedule.pipes):
        for stage in range(schedule.stages):
            for kind in (ActionKind.FORWARD, *backward):
                times = counted.pop((kind, stage, microbatch, pipe), 0)
                if times != 1:
                    yield f"{Action(kind, stage, microbatch, 0, pipe)} runs {times} times instead of once"
    for kind, stage, microbatch, pipe in counted:
        yield f"{Action(kind, stage, microbatch, 0, pipe)} belongs to no micro-batch of the schedule"


def allowed_version(schedule: Schedule, stage: int, microbatch: int) -> int | None:
    """The weight version that the policy prescribes; None if it is the latest one (weight stashing)."""
    done = microbatch // schedule.period
    match schedule.weights:
        case WeightPolicy.FLUSHED:
            return 0
        case WeightPolicy.STASHED:
            return None
        case WeightPolicy.VERTICAL_SYNC:
            return max(0, microbatch - schedule.devices + 1)
        case WeightPolicy.BUFFERED:
            return max(0, done - 1)
        case WeightPolicy.GROUPED:
            return done if stage >= schedule.devices else max(0, done - 1)


def _check_versions(schedule: Schedule) -> Iterator[str]:
    """A weight version must exist when it is used, and a micro-batch's forward and backward must use the same one."""
    first_pipes = schedule.first_pipes
    for device, actions in enumerate(schedule.actions):
        latest: Counter[tuple[int, int]] = Counter()
        used: dict[tuple[int, int, int], int] = {}
        for action in actions:
            stage = (first_pipes[action.pipe][action.stage], action.stage)
            if action.kind is ActionKind.UPDATE:
                if action.version != latest[stage] + 1:
                    yield f"{action} on device {device} follows version {latest[stage]}"
                latest[stage] = action.version
            elif action.kind is ActionKind.FORWARD:
                rule = allowed_version(schedule, action.stage, action.microbatch)
                expected = latest[stage] if rule is None else rule
                if action.version != expected:
                    yield f"{action} on device {device}: {schedule.weights.value} weights need version {expected}"
                elif action.version > latest[stage]:
                    yield f"{action} on device {device}: only {latest[stage]} updates precede it"
                used[(*stage, action.microbatch)] = action.version
            elif action.kind is not ActionKind.REDUCE and action.version != used.get((*stage, action.microbatch)):
                yield f"{action} on device {device}: its forward used version {used.get((*stage, action.microbatch))}"


def _check_updates(schedule: Schedule) -> Iterator[str]:
    """Each update must apply exactly the gradients of the `period` micro-batches before it; no gradient may be left."""
    first_pipes = schedule.first_pipes

    def copy_of(microbatch: int, stage: int) -> int:
        return first_pipes[schedule.pipes[microbatch]][stage]

    for device, actions in enumerate(schedule.actions):
        waiting: dict[tuple[int, int], list[int]] = {}
        for action in actions:
            stage = (first_pipes[action.pipe][action.stage], action.stage)
            if action.kind in WEIGHT_GRADIENT_KINDS:
                waiting.setdefault(stage, []).append(action.microbatch)
            elif action.kind is ActionKind.UPDATE:
                counted = sorted(waiting.pop(stage, []))
                if action.microbatch >= schedule.microbatches:
                    yield f"{action} on device {device}: the schedule has {schedule.microbatches} micro-batches"
                    continue
                first = max(0, action.microbatch + 1 - schedule.period)
                expected = [m for m in range(first, action.microbatch + 1) if copy_of(m, action.stage) == stage[0]]
                if counted != expected:
                    yield f"{action} on device {device} applies micro-batches {counted} instead of {expected}"
        for (pipe, number), left in waiting.items():
            yield f"device {device}: gradients of stage {number} (pipe {pipe}) of micro-batches {left} reach no update"


def _check_copies(schedule: Schedule) -> Iterator[str]:
    """All copies of a stage must make the same updates, those without a micro-batch, too."""
    made: dict[tuple[int, int], list[int]] = {}
    for _, action in schedule:
        if action.kind is ActionKind.UPDATE:
            made.setdefault((action.stage, action.pipe), []).append(action.microbatch)
    for stage, pipe in sorted({copy for places in schedule.first_pipes for copy in enumerate(places)}):
        if made.get((stage, pipe)) != made.get((stage, 0)):
            yield f"stage {stage}: its copies of pipes 0 and {pipe} make different updates"
