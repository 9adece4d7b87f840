"""Stages that sleep instead of computing, to measure a runtime's overhead with fewer cores than devices.

A forward takes F and keeps one tensor; a backward sleeps half of B for its input and half for its weight.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import pipelining

from jellybean.training import (
    GroupCommunicator,
    Interpreter,
    Place,
    StageCopy,
    StageInputs,
    StageTransport,
    UpdateSettings,
    WeightUpdates,
    make_process_groups,
    peers_of,
)
from jellybean_solver.pipeline import (
    Schedule,
    ScheduleCosts,
    Timeline,
    bubble_fraction,
    make_schedule,
    replicated_schedule,
    simulate,
    stage_seconds,
)

FORWARD_S, BACKWARD_S = 0.02, 0.04  # of a stage
NO_FLUSH = ("pipedream", "pipedream-vertical", "pipedream-2bw", "wpipe")


class _Slow(torch.autograd.Function):
    """The identity, with a backward that sleeps. `keep`: save the tensor until the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, back_s: float, keep: bool) -> torch.Tensor:
        ctx.back_s = back_s
        if keep:
            ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.back_s)
        return gradient, None, None


class Sleeper(nn.Module):
    """A stage whose forward takes a given time, its computation included."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        until, half_s = time.perf_counter() + self.forward_s, self.backward_s / 2
        found = _Slow.apply(x, half_s, True) + _Slow.apply(self.weight, half_s, False)
        time.sleep(max(0.0, until - time.perf_counter()))
        return found


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).mean()


class _Counter:
    """Counts tensors that autograd graphs save for their backward, and the peak."""

    def __init__(self) -> None:
        self.live = self.most = 0

    def pack(self, tensor: torch.Tensor) -> _Token:
        self.live += 1
        self.most = max(self.most, self.live)
        return _Token(self, tensor)


class _Token:
    def __init__(self, counter: _Counter, tensor: torch.Tensor) -> None:
        self.counter, self.tensor = counter, tensor

    def __del__(self) -> None:
        self.counter.live -= 1


class _Ones:
    """Micro-batches that require a gradient, so that the first stage sleeps as long as the others."""

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones(2, 4, requires_grad=True) for _ in arguments)

    def target(self, microbatch: int) -> torch.Tensor:
        return torch.zeros(2, 4)

    def factor(self, microbatch: int) -> float:
        return 1.0

    def seed(self, microbatch: int, stage: int) -> int:
        return 0


@dataclass(frozen=True)
class Slept:
    """What a rank tells, by round: seconds of its actions (of the machine's clock), of the whole round, and of torch's
    rounds, done in turn. `live`: the most stages' inputs that it kept at once, counted in one more round.
    """

    starts_s: list[list[float]]
    ends_s: list[list[float]]
    whole_s: list[float]
    torch_s: list[float]
    live: int


@dataclass(frozen=True)
class Sleeping:
    """A schedule of sleeping stages, several times, after one that does not count, in turn with torch's own.

    `scale`: of the times that stages take. `replicas`: of each stage, if not one; a stage of r replicas takes r times
    as long, so that the work is divided evenly.
    """

    name: str
    devices: int
    microbatches: int
    rounds: int = 1
    scale: float = 1.0
    beside_torch: bool = False
    replicas: tuple[int, ...] = ()

    @property
    def schedule(self) -> Schedule:
        if self.replicas:
            return replicated_schedule(self.name, self.replicas, self.microbatches)
        return make_schedule(self.name, self.devices, self.microbatches)

    @property
    def costs(self) -> ScheduleCosts:
        """Seconds of each stage."""
        shares = self.replicas or (1,) * self.schedule.stages
        return ScheduleCosts(
            tuple(FORWARD_S * self.scale * share for share in shares),
            tuple(BACKWARD_S * self.scale * share for share in shares),
        )

    @property
    def ideal_s(self) -> float:
        """Seconds of an iteration in the simulator."""
        return simulate(self.schedule, self.costs).makespan_s

    @property
    def alone_s(self) -> float:
        """Seconds of an iteration on one device, which has every stage once."""
        shares = self.replicas or (1,) * self.schedule.stages
        return self.microbatches * sum(shares) * (FORWARD_S + BACKWARD_S) * self.scale

    def __call__(self, rank: int) -> Slept | None:
        schedule = self.schedule
        groups = make_process_groups(schedule, 1, {})
        everyone = dist.new_group(list(range(self.devices)), backend="gloo")
        if rank >= self.devices:
            return None
        held = {
            (stage, pipe): StageCopy(
                self._stage(stage),
                loss=loss if stage == schedule.stages - 1 else None,
                inputs=StageInputs((0,) if stage == 0 else ()),
            )
            for stage, pipe in schedule.copies_on(rank)
        }
        updates = WeightUpdates(
            held, lambda own: torch.optim.SGD(own.values(), lr=0.0), groups, UpdateSettings(schedule.flushes)
        )
        transport = StageTransport(peers_of(schedule, rank), GroupCommunicator(everyone))
        transport.start()
        interpreter = Interpreter(schedule, held, transport, updates, Place(rank))
        counter = _Counter()
        with saved_tensors_hooks(counter.pack, lambda token: token.tensor):
            interpreter.run(_Ones())
        step = self._torch(rank, everyone) if self.beside_torch else None
        told = Slept([], [], [], [], counter.most)
        for _ in range(self.rounds):
            dist.barrier(everyone)
            began = time.perf_counter()
            record = interpreter.run(_Ones())
            told.whole_s.append(time.perf_counter() - began)
            starts_s, ends_s = record.times_s()
            told.starts_s.append(starts_s)
            told.ends_s.append(ends_s)
            if step is not None:
                dist.barrier(everyone)
                began = time.perf_counter()
                step()
                told.torch_s.append(time.perf_counter() - began)
        transport.close()
        return told

    def _stage(self, stage: int) -> Sleeper:
        return Sleeper(
            stage_seconds(self.costs.forward_s, stage),
            stage_seconds(self.costs.backward_s, stage),
        )

    def _torch(self, rank: int, everyone: dist.ProcessGroup) -> Callable[[], None]:
        """A function that runs an iteration of torch.distributed.pipelining, warmed up by one."""
        places = range(rank, self.schedule.stages, self.devices)
        stages = [
            pipelining.PipelineStage(
                self._stage(place), place, self.schedule.stages, torch.device("cpu"), group=everyone
            )
            for place in places
        ]
        if self.name == "interleaved":
            schedule = pipelining.ScheduleInterleaved1F1B(stages, self.microbatches, loss_fn=loss)
        else:
            kind = pipelining.ScheduleGPipe if self.name == "gpipe" else pipelining.Schedule1F1B
            schedule = kind(stages[0], self.microbatches, loss_fn=loss)
        given = (torch.ones(2 * self.microbatches, 4, requires_grad=True),) if rank == 0 else ()
        target = {"target": torch.zeros(2 * self.microbatches, 4)} if rank == self.devices - 1 else {}

        def step() -> None:
            schedule.step(*given, **target)

        step()
        return step


def measured_idle(schedule: Schedule, ranks: Sequence[Slept], number: int) -> float:
    """Measured bubble fraction of a round."""
    first = min(own.starts_s[number][0] for own in ranks)
    starts, ends = (
        tuple(tuple(second - first for second in every[number]) for every in sides)
        for sides in ([own.starts_s for own in ranks], [own.ends_s for own in ranks])
    )
    return bubble_fraction(Timeline(schedule, starts, ends))


@dataclass(frozen=True)
class Urgent:
    """Give the ranks real-time priority, if the system allows it; returns whether it does."""

    def __call__(self, rank: int) -> bool:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        except (PermissionError, AttributeError):
            return False
        return True


@contextmanager
def awake() -> Iterator[None]:
    """Keeps every core from going to sleep, with what any other program may interrupt: waking one of a virtual machine
    may take a millisecond, which is not the runtime's.
    """
    text = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() == {}: pass"
    busy = [subprocess.Popen([sys.executable, "-c", text.format(os.getpid())]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


TORCH_HAS = ("gpipe", "1f1b", "interleaved")
