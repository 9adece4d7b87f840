"""Trains a candidate for a few iterations on copies of its stages, and measures what its actions cost."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median
from typing import TypeVar

import torch.distributed as dist

from jellybean.training.processes.ranks import gather_from_ranks
from jellybean.training.stages.interpreter import ActionLog
from jellybean_solver.pipeline import Action, ActionKind, Schedule, ScheduleCosts, StageSeconds, stage_seconds

_MEASURED_S = 0.4  # shortest time in which iterations are repeated
_ITERATIONS = (2, 12)  # fewest and most of them
# A device that was idle for longer, in mean gaps, waited for a message. Fewer take gaps for messages, more overlook
# short messages; chosen by simulated runs (docs/design/training.md).
_WAITED_GAPS = 3.0
T = TypeVar("T")
RunIteration = Callable[[], ActionLog]
ActionTimes = list[tuple[float, float]]  # start and end of a device's actions, in seconds


@dataclass(frozen=True)
class RankTimes:
    """What one rank measured. `iterations_s`: of its iterations; `actions`: of each of them.

    `pipeline`: of the ranks that it exchanges messages with.
    """

    device: int
    pipeline: int
    iterations_s: list[float]
    actions: list[ActionTimes]

    @property
    def busy_s(self) -> float:
        """Mean seconds of an iteration in which its device computes."""
        return mean(sum(end - start for start, end in times) for times in self.actions)


@dataclass(frozen=True)
class TrialRun:
    """A candidate, set up on one rank: `run` runs an iteration of `schedule` on device `device` of `pipeline`.

    `run`: None on ranks that the candidate does not use, which wait. `close`: frees what it takes.
    """

    schedule: Schedule
    device: int
    pipeline: int
    run: RunIteration | None
    close: Callable[[], None]


@dataclass(frozen=True)
class Trial:
    """A measured candidate. `iteration_s`: median of an iteration. `idle`: share of the devices' time, on average."""

    schedule: Schedule
    iteration_s: float
    idle: float
    costs: ScheduleCosts


def measure(trial: TrialRun, costs: ScheduleCosts) -> Trial:
    """Run iterations on all ranks that the candidate uses. A collective call of all ranks of the run.

    `costs`: as predicted; what no action shows is kept.
    """
    run = trial.run
    first_s = max(gather_from_ranks(_run_once(run)))  # makes buffers, connections and optimizer states
    second_s = max(gather_from_ranks(_run_once(run)))
    least, most = _ITERATIONS
    count = min(max(least, math.ceil(_MEASURED_S / max(min(first_s, second_s), 1e-4))), most)
    dist.barrier()
    times = None if run is None else RankTimes(trial.device, trial.pipeline, *_run_many(run, count))
    ranks = [one for one in gather_from_ranks(times) if one is not None]
    iteration_s = max(median(one.iterations_s) for one in ranks)
    idle = 1.0 - mean(one.busy_s / mean(one.iterations_s) for one in ranks)
    return Trial(trial.schedule, iteration_s, max(0.0, idle), measured_costs(trial.schedule, ranks, costs))


@dataclass(frozen=True)
class Raced:
    """Median seconds of a micro-batch, and the devices' idle time on average, of one candidate in a race."""

    microbatch_s: float
    idle: float


def race(trials: Sequence[TrialRun], rounds: int) -> list[Raced]:
    """Run an iteration of each candidate in turn, so that other programs slow them alike.

    A collective call of all ranks. Each iteration begins at a barrier. Each round has an order of its own, the same on
    all ranks: a candidate's iteration also depends on the one before it (caches, cores that slept).
    """
    times_of: list[list[RankTimes | None]] = [[] for _ in trials]  # of this rank, by candidate
    for number in range(rounds + 1):
        for index in random.Random(number).sample(range(len(trials)), len(trials)):
            times, trial = times_of[index], trials[index]
            dist.barrier()
            if trial.run is None:
                times.append(None)
                continue
            measured = RankTimes(trial.device, trial.pipeline, *_run_many(trial.run, 1))
            if number:  # the first round makes buffers, connections and optimizer states
                times.append(measured)
    every = zip(*gather_from_ranks(times_of), strict=True)
    return [_raced(times, trial.schedule.microbatches) for times, trial in zip(every, trials, strict=True)]


def _raced(ranks: Sequence[Sequence[RankTimes | None]], microbatches: int) -> Raced:
    """Of what each rank measured in each round."""
    used = [[one for one in times if one is not None] for times in ranks]
    rounds = [max(one.iterations_s[0] for one in times) for times in zip(*filter(None, used), strict=True)]
    busy = [mean(one.busy_s for one in times) for times in used if times]
    return Raced(median(rounds) / microbatches, max(0.0, 1.0 - mean(busy) / mean(rounds)))


def _run_once(run: RunIteration | None) -> float:
    began = time.perf_counter()
    if run is not None:
        run()
    return time.perf_counter() - began


def _run_many(run: RunIteration, count: int) -> tuple[list[float], list[ActionTimes]]:
    ends, logs = [time.perf_counter()], []
    for _ in range(count):
        logs.append(run())
        ends.append(time.perf_counter())
    times = [list(zip(*log.times_s(), strict=True)) for log in logs]
    return [after - before for before, after in pairwise(ends)], times


def measured_costs(schedule: Schedule, ranks: Sequence[RankTimes], costs: ScheduleCosts) -> ScheduleCosts:
    """The costs with the means of what was measured in place of what was predicted.

    A gap is measured between two actions of a device of which the second waits for no other device. Before updates
    devices wait for sums, and for each other where gradients are clipped; the last one to come waits for sums only.
    """
    seconds: dict[tuple[ActionKind, int], list[float]] = {}
    gaps: list[float] = []
    waits: list[float] = []
    for rank in ranks:
        actions = schedule.actions[rank.device]
        local = [index for index in range(1, len(actions)) if not _waits(actions[index], schedule, rank.device)]
        updates = [index for index, action in enumerate(actions) if action.kind is ActionKind.UPDATE]
        for times in rank.actions:
            for action, (start, end) in zip(actions, times, strict=True):
                seconds.setdefault((action.kind, action.stage), []).append(end - start)
            gaps += [times[index][0] - times[index - 1][1] for index in local]
        waits.append(mean(times[i][0] - times[i - 1][1] for times in rank.actions for i in updates))
    gap_s = mean(gaps) if gaps else costs.gap_s

    def of(kind: ActionKind, predicted: T) -> tuple[float, ...] | T:
        stages = range(schedule.stages)
        complete = all((kind, stage) in seconds for stage in stages)
        return tuple(mean(seconds[kind, stage]) for stage in stages) if complete else predicted

    return replace(
        costs,
        forward_s=of(ActionKind.FORWARD, costs.forward_s),
        backward_s=of(ActionKind.BACKWARD, costs.backward_s),
        input_s=of(ActionKind.INPUT_GRADIENT, costs.input_s),
        weight_s=of(ActionKind.WEIGHT_GRADIENT, costs.weight_s),
        transfer_s=_measured_transfers(schedule, ranks, gap_s, costs.transfer_s),
        reduce_s=of(ActionKind.REDUCE, costs.reduce_s),
        update_s=of(ActionKind.UPDATE, costs.update_s),
        gap_s=gap_s,
        wait_s=max(0.0, min(waits) - gap_s),
    )


def _measured_transfers(
    schedule: Schedule, ranks: Sequence[RankTimes], gap_s: float, predicted: StageSeconds
) -> StageSeconds:
    """Seconds from the end of an action to the start of the one that waits for its output, with what was added to all.

    Only actions count for which their device waited. Half of the sum of both directions, in which the difference of
    two machines' clocks cancels out.
    """
    delays: dict[tuple[bool, int], list[float]] = {}
    for pipeline in {rank.pipeline for rank in ranks}:
        members = [rank for rank in ranks if rank.pipeline == pipeline]
        for iteration in range(min(len(rank.actions) for rank in members)):
            for way, delay_s in _delays(schedule, members, iteration, gap_s):
                delays.setdefault(way, []).append(delay_s)
    measured = []
    for boundary in range(schedule.stages - 1):
        both = [mean(delays[forward, boundary]) for forward in (True, False) if (forward, boundary) in delays]
        before = stage_seconds(predicted, boundary)
        measured.append(max(before, mean(both)) if len(both) > 1 else before)
    return tuple(measured) if measured else predicted


def _delays(
    schedule: Schedule, ranks: Sequence[RankTimes], iteration: int, gap_s: float
) -> Iterator[tuple[tuple[bool, int], float]]:
    """((forward, boundary), seconds) of each message that a device waited for."""
    ends = {
        (action.kind is ActionKind.FORWARD, action.stage, action.microbatch, action.pipe): end
        for rank in ranks
        for action, (_, end) in zip(schedule.actions[rank.device], rank.actions[iteration], strict=True)
        if action.kind in (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
    }
    for rank in ranks:
        actions, times = schedule.actions[rank.device], rank.actions[iteration]
        for index in range(1, len(actions)):
            action, start = actions[index], times[index][0]
            if action.kind is ActionKind.UPDATE or not _waits(action, schedule, rank.device):
                continue
            forward = action.kind is ActionKind.FORWARD
            producer = action.stage - 1 if forward else action.stage + 1
            if start - times[index - 1][1] > _WAITED_GAPS * gap_s:
                boundary = min(producer, action.stage)
                yield (forward, boundary), start - ends[forward, producer, action.microbatch, action.pipe]


def _waits(action: Action, schedule: Schedule, device: int) -> bool:
    """Whether an action waits for a message of another device, or for a sum."""
    places = schedule.device_of[action.pipe]
    if action.kind is ActionKind.FORWARD:
        return action.stage > 0 and places[action.stage - 1] != device
    if action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
        return action.stage + 1 < schedule.stages and places[action.stage + 1] != device
    return action.kind is ActionKind.UPDATE
