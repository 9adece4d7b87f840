"""Training throughput of two single-threaded processes, beside one process and other pipeline libraries.

All contenders have the same layers, micro-batches, loss and optimizer, and run in turn. Other load on the machine can
only make a round slower, so the fastest round counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

LAYERS, WIDTH, ROWS, MICROBATCHES, ROUNDS = 8, 512, 128, 8, 12  # layers per stage, rows per micro-batch
OWN = ("gpipe", "1f1b", "interleaved", "chimera", "zb-h1", "zb-v", "pipedream", "pipedream-2bw", "wpipe")
TORCH = ("gpipe", "1f1b")
ALONE, LIMIT = "one process", "two processes with a model each (the limit)"
Step = Callable[[], None]


@benchmark
def computing(smoke: bool) -> Result:
    """Samples per second of two single-threaded processes, relative to one, and their CPU time."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from tests.integration.training.ranks import run_ranks

    rounds = 1 if smoke else ROUNDS
    (found,) = run_ranks(2, [Computing(rounds)], seconds=600)
    best_s = {name: min(max(pair)[0] for pair in zip(*(own[name] for own in found), strict=True)) for name in found[0]}
    used_s = {name: sum(min(used for _, used in own[name]) for own in found) for name in found[0]}
    rates = {name: (2 if name == LIMIT else 1) * MICROBATCHES * ROWS / seconds for name, seconds in best_s.items()}
    rows = [
        (
            name,
            f"{rate:.0f}",
            f"{rate / rates[ALONE]:.2f}",
            f"{100 * rate / rates[LIMIT]:.0f} %",
            f"{used_s[name] / used_s[ALONE] / (2 if name == LIMIT else 1):.2f}",
        )
        for name, rate in rates.items()
    ]
    columns = ("contender", "samples/s", "over one process", "of the machine's limit", "CPU time over one process")
    return Result(
        title="Training throughput of stages that compute",
        topic=Topic.TRAINING,
        method=f"Two processes of one thread train {2 * LAYERS} layers of {WIDTH} x {WIDTH} with {MICROBATCHES} "
        "micro-batches "
        f"of {ROWS} rows. Contenders run in turn; the fastest of {rounds} rounds counts.",
        reference="one process of one thread, torch.distributed.pipelining, torchgpipe (where it is installed), and "
        "two "
        "processes with a whole model each, which is the most that the machine's two cores can do.",
        tables=(Table.of(columns, rows),),
        notes=() if find_spec("torchgpipe") else ("torchgpipe is not installed and left out.",),
    )


@dataclass(frozen=True)
class Computing:
    """Wall and CPU seconds of each round, by contender. Single-process contenders run on rank 0 while rank 1 waits."""

    rounds: int

    def __call__(self, rank: int) -> dict[str, list[tuple[float, float]]]:
        import torch.distributed as dist

        steps = _contenders(rank)
        told: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for number in range(self.rounds + 1):
            for name, step in steps.items():
                dist.barrier()
                began, used = time.perf_counter(), time.process_time()
                step()
                if number:
                    told[name].append((time.perf_counter() - began, time.process_time() - used))
        return told


def _contenders(rank: int) -> dict[str, Step]:
    steps = {ALONE: _alone() if rank == 0 else _nothing, LIMIT: _alone()}
    if find_spec("torchgpipe"):  # on both ranks, which synchronise at each step
        steps["torchgpipe (two threads)"] = _torchgpipe() if rank == 0 else _nothing
    steps |= {f"torch.distributed.pipelining {name}": _torch(name, rank) for name in TORCH}
    return steps | {f"here: {name}": _own(name, rank) for name in OWN}


def _nothing() -> None:
    pass


def _layers(count: int) -> Any:
    from torch import nn

    return nn.Sequential(*[part for _ in range(count) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])


def _batch() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(1)
    return torch.randn(MICROBATCHES * ROWS, WIDTH), torch.randn(MICROBATCHES * ROWS, WIDTH)


def _sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-3)


def _alone() -> Step:
    from torch.nn.functional import mse_loss

    model, (inputs, targets) = _layers(2 * LAYERS), _batch()
    optimizer = _sgd(model.parameters())

    def step() -> None:
        for x, y in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
            (mse_loss(model(x), y) / MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _torchgpipe() -> Step:
    from torch.nn.functional import mse_loss
    from torchgpipe import GPipe

    model = GPipe(_layers(2 * LAYERS), [2 * LAYERS] * 2, devices=["cpu"] * 2, chunks=MICROBATCHES, checkpoint="never")
    (inputs, targets), optimizer = _batch(), _sgd(model.parameters())

    def step() -> None:
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _torch(name: str, rank: int) -> Step:
    import torch
    from torch.distributed import pipelining
    from torch.nn.functional import mse_loss

    model, (inputs, targets) = _layers(LAYERS), _batch()
    stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
    kind = pipelining.ScheduleGPipe if name == "gpipe" else pipelining.Schedule1F1B
    schedule, optimizer = kind(stage, MICROBATCHES, loss_fn=mse_loss), _sgd(model.parameters())

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()

    return step


class _Feed:
    def __init__(self) -> None:
        inputs, targets = _batch()
        self._inputs, self._targets = inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES)

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple((self._inputs[microbatch],)[index] for index in arguments)

    def target(self, microbatch: int) -> Any:
        return self._targets[microbatch]

    def factor(self, microbatch: int) -> float:
        return 1.0 / MICROBATCHES

    def seed(self, microbatch: int, stage: int) -> int:
        return 0


def _own(name: str, rank: int) -> Step:
    import torch.distributed as dist
    from torch.nn.functional import mse_loss

    from jellybean.training.processes.links import GroupCommunicator
    from jellybean.training.processes.transport import StageTransport
    from jellybean.training.stages.all_reduce import make_process_groups
    from jellybean.training.stages.interpreter import Interpreter, Place, peers_of
    from jellybean.training.stages.stage import StageCopy, StageInputs
    from jellybean.training.stages.updates import UpdateSettings, WeightUpdates
    from jellybean_solver.pipeline import make_schedule

    schedule = make_schedule(name, 2, MICROBATCHES)
    held = {
        (stage, pipe): StageCopy(
            _layers(2 * LAYERS // schedule.stages),
            loss=mse_loss if stage == schedule.stages - 1 else None,
            inputs=StageInputs((0,) if stage == 0 else ()),
        )
        for stage, pipe in schedule.copies_on(rank)
    }
    updates = WeightUpdates(
        held, lambda own: _sgd(own.values()), make_process_groups(schedule, 1, {}), UpdateSettings(schedule.flushes)
    )
    transport = StageTransport(peers_of(schedule, rank), GroupCommunicator(dist.new_group(backend="gloo")))
    transport.start()
    interpreter, feed = Interpreter(schedule, held, transport, updates, Place(rank)), _Feed()

    def step() -> None:
        interpreter.run(feed)

    return step
