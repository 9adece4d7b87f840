"""Stages that sleep in place of computing: what a runtime adds, on a machine that has something else to do as well.

A forward sleeps F and keeps one tensor; a backward sleeps half of B for its input and half for its weight.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import pipelining

from jellybean.training.interpreter import Interpreter, peers_of
from jellybean.training.stage import Stage
from jellybean.training.sums import make_groups
from jellybean.training.transport import Transport
from jellybean.training.updates import Updates
from jellybean_solver.pipeline.schedule import Schedule
from jellybean_solver.pipeline.schedules import SCHEDULES, make_schedule

FORWARD_S, BACKWARD_S = 0.02, 0.04  # of a device's share of a micro-batch
NO_FLUSH = ("pipedream", "pipedream-vertical", "pipedream-2bw", "wpipe")


class _Slow(torch.autograd.Function):
    """The identity; sleeps on the way there and back. With `keep`, the tensor stays until the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there_s: float, back_s: float, keep: bool) -> torch.Tensor:
        ctx.back_s = back_s
        if keep:
            ctx.save_for_backward(x)
        time.sleep(there_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        time.sleep(ctx.back_s)
        return gradient, None, None, None


class Sleeper(nn.Module):
    """One stage."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half_s = self.backward_s / 2
        return _Slow.apply(x, self.forward_s, half_s, True) + _Slow.apply(self.weight, 0.0, half_s, False)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).mean()


class _Counter:
    """Tensors that graphs keep for their backward; the most at once."""

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
    """Micro-batches that want a gradient, so that the first stage sleeps as long as the others."""

    def inputs(self, microbatch: int) -> tuple[torch.Tensor]:
        return (torch.ones(2, 4, requires_grad=True),)

    def target(self, microbatch: int) -> torch.Tensor:
        return torch.zeros(2, 4)

    def factor(self, microbatch: int) -> float:
        return 1.0

    def seed(self, microbatch: int, stage: int) -> int:
        return 0


@dataclass(frozen=True)
class Slept:
    """What a rank tells: by iteration the seconds of its actions (of the machine's clock), and the most it kept."""

    starts_s: list[list[float]]
    ends_s: list[list[float]]
    live: int
    whole_s: list[float]


@dataclass(frozen=True)
class Sleeping:
    """A schedule of sleeping stages, several times, after one that does not count."""

    name: str
    devices: int
    microbatches: int
    rounds: int = 1

    @property
    def schedule(self) -> Schedule:
        return make_schedule(self.name, self.devices, self.microbatches)

    @property
    def parts(self) -> int:
        """Stages of the model per device; a second copy is no part of it."""
        return self.schedule.stages // self.devices

    def __call__(self, rank: int) -> Slept | None:
        schedule = self.schedule
        groups = make_groups(schedule, 1, {})
        everyone = dist.new_group(list(range(self.devices)), backend="gloo")
        if rank >= self.devices:
            return None
        held = {
            (stage, pipe): Stage(
                Sleeper(FORWARD_S / self.parts, BACKWARD_S / self.parts),
                loss=loss if stage == schedule.stages - 1 else None,
            )
            for pipe, places in enumerate(schedule.device_of)
            for stage, device in enumerate(places)
            if device == rank
        }
        updates = Updates(held, lambda own: torch.optim.SGD(own, lr=0.0), groups, flushes=schedule.flushes)
        transport = Transport(peers_of(schedule, rank), torch.device("cpu"), headers=everyone)
        interpreter = Interpreter(schedule, held, transport, updates, device=rank)
        told = Slept([], [], 0, [])
        counter = _Counter()
        with saved_tensors_hooks(counter.pack, lambda token: token.tensor):
            for number in range(self.rounds + 1):
                dist.barrier(everyone)
                began = time.perf_counter()
                record = interpreter.run(_Ones())
                if number:
                    told.starts_s.append(record.starts_s)
                    told.ends_s.append(record.ends_s)
                    told.whole_s.append(time.perf_counter() - began)
        transport.close()
        return Slept(told.starts_s, told.ends_s, counter.most, told.whole_s)


@dataclass(frozen=True)
class TorchSleeping:
    """The same by torch.distributed.pipelining; whole seconds of each round."""

    name: str
    devices: int
    microbatches: int
    rounds: int = 1

    def __call__(self, rank: int) -> list[float] | None:
        everyone = dist.new_group(list(range(self.devices)), backend="gloo")
        if rank >= self.devices:
            return None
        parts = 2 if self.name == "interleaved" else 1
        stages = [
            pipelining.PipelineStage(
                Sleeper(FORWARD_S / parts, BACKWARD_S / parts),
                part * self.devices + rank,
                parts * self.devices,
                torch.device("cpu"),
                group=everyone,
            )
            for part in range(parts)
        ]
        if self.name == "interleaved":
            schedule = pipelining.ScheduleInterleaved1F1B(stages, self.microbatches, loss_fn=loss)
        else:
            kind = pipelining.ScheduleGPipe if self.name == "gpipe" else pipelining.Schedule1F1B
            schedule = kind(stages[0], self.microbatches, loss_fn=loss)
        inputs = torch.ones(2 * self.microbatches, 4, requires_grad=True)
        target = torch.zeros(2 * self.microbatches, 4)
        told = []
        for number in range(self.rounds + 1):
            dist.barrier(everyone)
            began = time.perf_counter()
            given = (inputs,) if rank == 0 else ()
            schedule.step(*given, **({"target": target} if rank == self.devices - 1 else {}))
            if number:
                told.append(time.perf_counter() - began)
        return told


TORCH_HAS = ("gpipe", "1f1b", "interleaved")
ALL = tuple(name for name in SCHEDULES if name != "naive")
