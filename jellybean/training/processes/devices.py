"""Chooses the device of each rank: a GPU of its own, the CPU, or, where the user asks for it, a shared GPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from jellybean.training.errors import TrainingError

# Hardware queues of a GPU. Streams beyond their number share one, and a stream that waits for a message then holds up
# another that would send. In the model of tests/integration/training/nccl/model.py, 4 ranks deadlock in up to 7 of 10
# executions with CUDA's default of 8, and in none with 16. 32 is the most that CUDA has.
_HARDWARE_QUEUES = 32
_LEAST_QUEUES = 16
_QUEUES_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True)
class DeviceChoice:
    """A rank's device. `shared`: other ranks compute on it too, so that messages cannot go by NCCL."""

    device: torch.device
    shared: bool = False

    @property
    def backend(self) -> str:
        """torch.distributed's backend."""
        return "cpu:gloo,cuda:nccl" if self.device.type == "cuda" and not self.shared else "gloo"

    def __str__(self) -> str:
        if self.device.type == "cpu":
            return "the CPU"
        return "a shared GPU" if self.shared else "a GPU of its own"


def choose_device(asked: str, local_rank: int, local_ranks: int, gpus: int) -> DeviceChoice:
    """The device of one of `local_ranks` processes on a machine with `gpus` GPUs. `asked`: auto, cpu or cuda.

    TrainingError if there are too few GPUs; they are shared only if `asked` is cuda.
    """
    if asked == "cpu" or (asked == "auto" and not gpus):
        return DeviceChoice(torch.device("cpu"))
    if not gpus:
        raise TrainingError("`device: cuda`, and torch finds no GPU on this machine: --set device=cpu")
    if gpus >= local_ranks:
        return DeviceChoice(torch.device("cuda", local_rank))
    if asked == "auto":
        raise TrainingError(
            f"{local_ranks} processes on this machine and {gpus} {'GPU' if gpus == 1 else 'GPUs'}: each needs its own. "
            "Use fewer `devices` or `replicas`, or --set device=cpu; --set device=cuda lets processes share a GPU, "
            "with messages through host memory"
        )
    return DeviceChoice(torch.device("cuda", local_rank % gpus), shared=True)


def local_workers(first_rank: int, local_ranks: int, workers: int) -> int:
    """How many of a machine's `local_ranks` processes, from `first_rank` on, are among the first `workers` ranks.

    The ranks after them are parameter servers, which need no GPU.
    """
    return max(0, min(workers - first_rank, local_ranks))


def hardware_queues(given: str | None) -> str:
    """CUDA's number of hardware queues: as the environment has it, if they are enough."""
    enough = given is not None and given.isdecimal() and int(given) >= _LEAST_QUEUES
    return given if enough and given is not None else str(_HARDWARE_QUEUES)


def set_device(choice: DeviceChoice) -> None:
    """Make the device this process's current one. Call before anything else uses the GPU."""
    if choice.device.type == "cuda":
        before = os.environ.get(_QUEUES_VARIABLE)
        queues = hardware_queues(before)
        os.environ[_QUEUES_VARIABLE] = queues
        if before not in (None, queues) and choice.device.index == 0:  # once per machine
            print(
                f"warning: {_QUEUES_VARIABLE} is {before}, with which transfers between GPUs may wait for each other "
                f"forever; this run uses {queues}: unset it",
                file=sys.stderr,
                flush=True,
            )
        torch.cuda.set_device(choice.device)


def check_same_kind(store: dist.Store, rank: int, world: int, choice: DeviceChoice) -> None:
    """TrainingError unless all ranks compute on the same kind of device: they could not exchange messages."""
    store.set(f"device-{rank}", str(choice))
    kinds = [kind.decode() for kind in store.multi_get([f"device-{other}" for other in range(world)])]
    other = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise TrainingError(
            f"rank 0 computes on {kinds[0]} and rank {other} on {kinds[other]}: all need the same; start one process "
            "per GPU on every machine, or --set device=cpu"
        )
