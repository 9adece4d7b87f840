"""Whether a schedule can be run and computes what it says: every rule that the training runtime relies on.

Checked: each micro-batch goes once forward and once backward through every stage, on the devices that hold them; no
order waits in a circle; weights are those that the schedule's rule allows, and exist when they are used; every gradient
is in exactly one update; memory stays within a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.memory import memory
from jellybean_solver.pipeline.schedule.schedule import Schedule, Weights
from jellybean_solver.pipeline.schedule.simulator import simulate

GRADIENTS = (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)  # the kinds that leave a gradient of the weights


def faults(schedule: Schedule, *, most_activations: int | None = None) -> tuple[str, ...]:
    """Everything that is wrong, in words; empty when nothing is. `most_activations`: what a device has room for."""
    found = [*_places(schedule), *_complete(schedule), *_versions(schedule), *_updates(schedule)]
    if most_activations is not None:
        for device, own in enumerate(memory(schedule)):
            if own.peak_activations > most_activations:
                found.append(
                    f"device {device} keeps {own.peak_activations} activations; there is room for {most_activations}"
                )
    if not found:  # what is missing or elsewhere would only be told again as a standstill
        try:
            simulate(schedule)
        except SolverError as error:
            found.append(str(error))
    return tuple(found)


def _places(schedule: Schedule) -> Iterator[str]:
    for device, action in schedule:
        if not (action.pipe < len(schedule.device_of) and action.stage < schedule.stages):
            yield f"{action} on device {device}: there is no such stage"
        elif schedule.device_of[action.pipe][action.stage] != device:
            home = schedule.device_of[action.pipe][action.stage]
            yield f"{action} on device {device}: stage {action.stage} of pipe {action.pipe} is on device {home}"


def _complete(schedule: Schedule) -> Iterator[str]:
    counted: Counter[tuple[Kind, int, int, int]] = Counter(
        (action.kind, action.stage, action.microbatch, action.pipe)
        for _, action in schedule
        if action.kind not in (Kind.REDUCE, Kind.UPDATE)
    )
    split = any(kind is Kind.INPUT_GRADIENT for kind, *_ in counted)
    kinds = (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT) if split else (Kind.FORWARD, Kind.BACKWARD)
    for microbatch, pipe in enumerate(schedule.pipes):
        for stage in range(schedule.stages):
            for kind in kinds:
                times = counted.pop((kind, stage, microbatch, pipe), 0)
                if times != 1:
                    yield f"{Action(kind, stage, microbatch, 0, pipe)} is done {times} times instead of once"
    for kind, stage, microbatch, pipe in counted:
        yield f"{Action(kind, stage, microbatch, 0, pipe)} belongs to no micro-batch of the schedule"


def allowed_version(schedule: Schedule, stage: int, microbatch: int) -> int | None:
    """The weight version that the rule fixes; None where it is the latest one, whatever that is."""
    done = microbatch // schedule.period
    match schedule.weights:
        case Weights.FLUSHED:
            return 0
        case Weights.STASHED:
            return None
        case Weights.VERTICAL_SYNC:
            return max(0, microbatch - schedule.devices + 1)
        case Weights.BUFFERED:
            return max(0, done - 1)
        case Weights.GROUPED:
            return done if stage >= schedule.devices else max(0, done - 1)


def _versions(schedule: Schedule) -> Iterator[str]:
    """A version exists from its update on; forward, backward and gradients of a micro-batch use the same one."""
    for device, actions in enumerate(schedule.actions):
        latest: Counter[tuple[int, int]] = Counter()
        used: dict[tuple[int, int, int], int] = {}
        for action in actions:
            stage = (action.pipe, action.stage)
            if action.kind is Kind.UPDATE:
                if action.version != latest[stage] + 1:
                    yield f"{action} on device {device} follows version {latest[stage]}"
                latest[stage] = action.version
            elif action.kind is Kind.FORWARD:
                rule = allowed_version(schedule, action.stage, action.microbatch)
                expected = latest[stage] if rule is None else rule
                if action.version != expected:
                    yield f"{action} on device {device}: {schedule.weights.value} weights ask for version {expected}"
                elif action.version > latest[stage]:
                    yield f"{action} on device {device}: only {latest[stage]} updates were made before it"
                used[(*stage, action.microbatch)] = action.version
            elif action.kind is not Kind.REDUCE and action.version != used.get((*stage, action.microbatch)):
                yield f"{action} on device {device}: its forward used version {used.get((*stage, action.microbatch))}"


def _updates(schedule: Schedule) -> Iterator[str]:
    """An update counts the gradients of its `period` micro-batches and no other; at the end none is left over."""
    for device, actions in enumerate(schedule.actions):
        waiting: dict[tuple[int, int], list[int]] = {}
        for action in actions:
            stage = (action.pipe, action.stage)
            if action.kind in GRADIENTS:
                waiting.setdefault(stage, []).append(action.microbatch)
            elif action.kind is Kind.UPDATE:
                counted = sorted(waiting.pop(stage, []))
                last = min(action.microbatch, schedule.microbatches - 1)
                first = max(0, action.microbatch + 1 - schedule.period)
                expected = [m for m in range(first, last + 1) if schedule.pipes[m] == action.pipe]
                if counted != expected:
                    yield f"{action} on device {device} counts micro-batches {counted} instead of {expected}"
        for (pipe, number), left in waiting.items():
            yield f"device {device}: gradients of stage {number} (pipe {pipe}) of micro-batches {left} reach no update"
