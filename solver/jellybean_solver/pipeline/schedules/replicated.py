"""1F1B on stages with unlike numbers of replicas, with a flush or without one (PipeDream, Narayanan et al. 2019).

Micro-batch m is processed by replica m mod r of a stage with r replicas (round robin, section 3.2), forward and
backward, so that its activations and its weight version are where its backward needs them. A replica of stage s warms
up with ceil(R / r) forwards, where R counts the replicas of stage s and of those after it: NOAM at the first stage.

Without a flush, all stages update once in a round of P micro-batches, the least common multiple of the numbers of
replicas. In a round each replica of a stage processes P / r micro-batches; the update applies the sum of their
gradients over the stage's replicas, which therefore hold equal weights. With one replica each it is PipeDream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import (
    Schedule,
    WeightPolicy,
    one_forward_one_backward,
    require_at_least,
    synchronous_schedule,
)

REPLICATED_SCHEDULES = ("1f1b", "dapple", "pipedream")
MAX_PIPES = 4096  # different ways of micro-batches through the replicas


def replicated_schedule(
    name: str, replicas: Sequence[int], microbatches: int, placement: Sequence[Sequence[int]] | None = None
) -> Schedule:
    """The schedule of that name for stages with these numbers of replicas.

    `placement[stage]`: the devices of its replicas; by default the devices in order of the stages. SolverError if the
    schedule has no such form, or if the micro-batches are no whole rounds of one without a flush.
    """
    if name not in REPLICATED_SCHEDULES:
        raise SolverError(f"{name} has one replica of each stage; {', '.join(REPLICATED_SCHEDULES)} take several")
    require_at_least(name, "stage", len(replicas), 1)
    require_at_least(name, "replica of each stage", min(replicas), 1)
    require_at_least(name, "micro-batch", microbatches, 1)
    places = _consecutive(replicas) if placement is None else placement
    devices = [device for own in places for device in own]
    if [len(own) for own in places] != list(replicas) or sorted(devices) != list(range(sum(replicas))):
        raise SolverError(f"{name}: the replicas of all stages need one device each, and the devices are {devices}")
    period = math.lcm(*replicas)
    if period > MAX_PIPES:
        raise SolverError(f"{name}: {'-'.join(map(str, replicas))} replicas repeat after {period:,} micro-batches only")
    compute_actions: list[list[Action]] = [[] for _ in devices]
    for stage, own in enumerate(places):
        warm_up = warm_up_forwards(replicas, stage)
        for replica, device in enumerate(own):
            numbers = range(replica, microbatches, len(own))
            forwards = [Action(ActionKind.FORWARD, stage, m, 0, m % period) for m in numbers]
            backwards = [Action(ActionKind.BACKWARD, stage, m, 0, m % period) for m in numbers]
            compute_actions[device] = one_forward_one_backward(forwards, backwards, warm_up)
    device_of = tuple(tuple(own[pipe % len(own)] for own in places) for pipe in range(period))
    pipes = tuple(m % period for m in range(microbatches))
    if name != "pipedream":
        return synchronous_schedule(name, microbatches, device_of, compute_actions, pipes)
    if microbatches % period:
        raise SolverError(f"{name} updates every {period} micro-batches, which must divide {microbatches}")
    actions = [tuple(_stashed(compute_actions[device], len(own), period)) for own in places for device in own]
    order = sorted(range(len(devices)), key=devices.__getitem__)
    return Schedule(
        name, WeightPolicy.STASHED, microbatches, period, device_of, pipes, tuple(actions[index] for index in order)
    )


def warm_up_forwards(replicas: Sequence[int], stage: int) -> int:
    """Forwards of a replica of a stage before its first backward; at the first stage NOAM, the micro-batches in flight
    by replica: ceil(workers / its replicas).
    """
    return -(-sum(replicas[stage:]) // replicas[stage])


def _consecutive(replicas: Sequence[int]) -> list[range]:
    ends = list(accumulate(replicas))
    return [range(end - count, end) for end, count in zip(ends, replicas, strict=True)]


def _stashed(actions: Sequence[Action], replicas: int, period: int) -> list[Action]:
    """The actions of one replica with their weight versions, and an update after its last backward of each round."""
    found: list[Action] = []
    version = 0
    used: dict[int, int] = {}  # micro-batch -> version
    for action in actions:
        number = action.microbatch
        used.setdefault(number, version)
        found.append(Action(action.kind, action.stage, number, used[number], action.pipe))
        if action.kind is ActionKind.BACKWARD and (number + replicas) // period > number // period:
            last, first_pipe = number // period * period + period - 1, number % replicas
            if replicas > 1:
                found.append(Action(ActionKind.REDUCE, action.stage, last, 0, first_pipe))
            version += 1
            found.append(Action(ActionKind.UPDATE, action.stage, last, version, first_pipe))
    return found
