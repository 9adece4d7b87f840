"""Schedules without a flush: PipeDream, PipeDream-2BW, WPipe. Devices never stand still between updates."""

from __future__ import annotations

from collections.abc import Callable

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule, Weights, at_least, one_by_one, straight

F, B = Kind.FORWARD, Kind.BACKWARD
Version = Callable[[int, int], int]  # stage, micro-batch -> updates that the weights it uses have had


def pipedream(devices: int, microbatches: int) -> Schedule:
    """An update per micro-batch, whose backward uses its forward's weights (weight stashing, Narayanan 2019, 3.3)."""
    return _per_microbatch(
        "pipedream", Weights.STASHED, devices, microbatches, lambda stage, m: max(0, m - (devices - stage) + 1)
    )


def pipedream_vertical(devices: int, microbatches: int) -> Schedule:
    """PipeDream with vertical sync: a micro-batch uses one version at all stages, the one that the first stage had."""
    return _per_microbatch(
        "pipedream-vertical", Weights.VERTICAL_SYNC, devices, microbatches, lambda stage, m: max(0, m - devices + 1)
    )


def pipedream_2bw(devices: int, microbatches: int, period: int | None = None) -> Schedule:
    """Gradients of `period` micro-batches (D, the least, unless given) per update, one update behind everywhere.

    W(t+1) = W(t) - lr grad f(W(t-1)) (Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, 3.1).
    """
    period = period or devices
    at_least("pipedream-2bw", "micro-batches per update", period, devices)
    _whole("pipedream-2bw", microbatches, period)

    def version(_: int, microbatch: int) -> int:
        return max(0, microbatch // period - 1)

    computes = []
    for stage in range(devices):
        actions = _alternating(stage, devices - stage, microbatches, version)
        computes.append(_updated(actions, period))
    return _schedule("pipedream-2bw", Weights.BUFFERED, microbatches, period, straight(devices), computes)


def wpipe(devices: int, microbatches: int) -> Schedule:
    """2 D stages in two groups that update in turn, every D micro-batches (Yang et al. 2022).

    Device s holds s (group 0) and s + D (group 1). The forward of the next D micro-batches in group 0 comes before the
    backward of these, so group 0 is one update behind and group 1 is not. Warm-up: 2 D - 1 - s forwards.
    """
    _whole("wpipe", microbatches, devices)

    def version(stage: int, microbatch: int) -> int:
        done = microbatch // devices
        return done if stage >= devices else max(0, done - 1)

    computes = []
    for device in range(devices):
        rounds = [range(first, first + devices) for first in range(0, microbatches, devices)]
        near, far = device, device + devices
        forwards = [Action(F, s, m, version(s, m)) for own in rounds for s in (near, far) for m in own]
        backwards = [Action(B, s, m, version(s, m)) for own in rounds for s in (far, near) for m in own]
        actions = one_by_one(forwards, backwards, min(2 * devices - device, len(forwards)))
        computes.append(_updated(actions, devices))
    return _schedule("wpipe", Weights.GROUPED, microbatches, devices, straight(devices, 2), computes)


def _per_microbatch(name: str, weights: Weights, devices: int, microbatches: int, version: Version) -> Schedule:
    computes = [_updated(_alternating(stage, devices - stage, microbatches, version), 1) for stage in range(devices)]
    return _schedule(name, weights, microbatches, 1, straight(devices), computes)


def _alternating(stage: int, warm_up: int, microbatches: int, version: Version) -> list[Action]:
    forwards = [Action(F, stage, m, version(stage, m)) for m in range(microbatches)]
    backwards = [Action(B, stage, m, version(stage, m)) for m in range(microbatches)]
    return one_by_one(forwards, backwards, min(warm_up, microbatches))


def _updated(actions: list[Action], period: int) -> list[Action]:
    """With an update after the last backward of every `period` micro-batches of a stage."""
    found = []
    for action in actions:
        found.append(action)
        if action.kind is B and action.microbatch % period == period - 1:
            found.append(Action(Kind.UPDATE, action.stage, action.microbatch, action.microbatch // period + 1))
    return found


def _whole(name: str, microbatches: int, period: int) -> None:
    if microbatches % period:
        raise SolverError(f"{name} updates every {period} micro-batches, which must divide {microbatches}")


def _schedule(
    name: str,
    weights: Weights,
    microbatches: int,
    period: int,
    device_of: tuple[tuple[int, ...], ...],
    computes: list[list[Action]],
) -> Schedule:
    pipes = (0,) * microbatches
    return Schedule(name, weights, microbatches, period, device_of, pipes, tuple(map(tuple, computes)))
