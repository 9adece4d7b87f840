"""Asynchronous schedules (no flush between updates): PipeDream, PipeDream-2BW, WPipe."""

from __future__ import annotations

from collections.abc import Callable

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import (
    Schedule,
    WeightPolicy,
    one_forward_one_backward,
    require_at_least,
    round_robin_stages,
)

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
VersionOf = Callable[[int, int], int]  # (stage, micro-batch) -> weight version, in updates since the start


def pipedream(devices: int, microbatches: int) -> Schedule:
    """One update per micro-batch, with weight stashing (PipeDream, Narayanan et al. 2019, section 3.3)."""
    return _update_per_microbatch(
        "pipedream", WeightPolicy.STASHED, devices, microbatches, lambda stage, m: max(0, m - (devices - stage) + 1)
    )


def pipedream_vertical(devices: int, microbatches: int) -> Schedule:
    """PipeDream with vertical sync: a micro-batch uses the first stage's version at all stages (section 3.3)."""
    return _update_per_microbatch(
        "pipedream-vertical",
        WeightPolicy.VERTICAL_SYNC,
        devices,
        microbatches,
        lambda stage, m: max(0, m - devices + 1),
    )


def pipedream_2bw(devices: int, microbatches: int, period: int | None = None) -> Schedule:
    """PipeDream-2BW: one update per `period` micro-batches, at least and by default as many as devices.

    Gradients are one update old: W(t+1) = W(t) - lr grad f(W(t-1)) (Narayanan et al. 2021, Memory-Efficient
    Pipeline-Parallel DNN Training, section 3.1).
    """
    period = period or devices
    require_at_least("pipedream-2bw", "micro-batches per update", period, devices)
    _require_multiple("pipedream-2bw", microbatches, period)

    def version(_: int, microbatch: int) -> int:
        return max(0, microbatch // period - 1)

    compute_actions = []
    for stage in range(devices):
        actions = _one_forward_one_backward(stage, devices - stage, microbatches, version)
        compute_actions.append(_with_updates(actions, period))
    return _schedule(
        "pipedream-2bw", WeightPolicy.BUFFERED, microbatches, period, round_robin_stages(devices), compute_actions
    )


def wpipe(devices: int, microbatches: int) -> Schedule:
    """WPipe: 2 D stages on D devices, in two groups that update in turn every D micro-batches (Yang et al. 2022).

    Device s holds stage s (group G0) and stage s + D (group G1). The forwards of the next D micro-batches in G0 precede
    the backwards of the current ones, so G0 is one update behind and G1 is up to date. Warm-up: 2 D - s forwards.
    """
    _require_multiple("wpipe", microbatches, devices)

    def version(stage: int, microbatch: int) -> int:
        done = microbatch // devices
        return done if stage >= devices else max(0, done - 1)

    compute_actions = []
    for device in range(devices):
        rounds = [range(first, first + devices) for first in range(0, microbatches, devices)]
        g0, g1 = device, device + devices
        forwards = [Action(F, s, m, version(s, m)) for batch in rounds for s in (g0, g1) for m in batch]
        backwards = [Action(B, s, m, version(s, m)) for batch in rounds for s in (g1, g0) for m in batch]
        actions = one_forward_one_backward(forwards, backwards, min(2 * devices - device, len(forwards)))
        compute_actions.append(_with_updates(actions, devices))
    return _schedule(
        "wpipe", WeightPolicy.GROUPED, microbatches, devices, round_robin_stages(devices, 2), compute_actions
    )


def _update_per_microbatch(
    name: str, weights: WeightPolicy, devices: int, microbatches: int, version: VersionOf
) -> Schedule:
    compute_actions = [
        _with_updates(_one_forward_one_backward(stage, devices - stage, microbatches, version), 1)
        for stage in range(devices)
    ]
    return _schedule(name, weights, microbatches, 1, round_robin_stages(devices), compute_actions)


def _one_forward_one_backward(stage: int, warm_up: int, microbatches: int, version: VersionOf) -> list[Action]:
    forwards = [Action(F, stage, m, version(stage, m)) for m in range(microbatches)]
    backwards = [Action(B, stage, m, version(stage, m)) for m in range(microbatches)]
    return one_forward_one_backward(forwards, backwards, min(warm_up, microbatches))


def _with_updates(actions: list[Action], period: int) -> list[Action]:
    """The actions, with an update added after a stage's last backward in every `period` micro-batches."""
    found = []
    for action in actions:
        found.append(action)
        if action.kind is B and action.microbatch % period == period - 1:
            found.append(Action(ActionKind.UPDATE, action.stage, action.microbatch, action.microbatch // period + 1))
    return found


def _require_multiple(name: str, microbatches: int, period: int) -> None:
    if microbatches % period:
        raise SolverError(f"{name} updates every {period} micro-batches, which must divide {microbatches}")


def _schedule(
    name: str,
    weights: WeightPolicy,
    microbatches: int,
    period: int,
    device_of: tuple[tuple[int, ...], ...],
    compute_actions: list[list[Action]],
) -> Schedule:
    pipes = (0,) * microbatches
    return Schedule(name, weights, microbatches, period, device_of, pipes, tuple(map(tuple, compute_actions)))
