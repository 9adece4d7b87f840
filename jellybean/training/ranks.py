"""The processes of a run: who this one is, and what it computes on. One process needs no launcher."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from jellybean.training.document import TrainingDocument
from jellybean.training.errors import TrainingError


@dataclass(frozen=True)
class Rank:
    """Place in the world; ranks count devices first, then replicas."""

    rank: int
    devices: int
    device: torch.device

    @property
    def place(self) -> int:
        """Which device of its pipeline."""
        return self.rank % self.devices

    @property
    def replica(self) -> int:
        """Which pipeline."""
        return self.rank // self.devices

    @property
    def first(self) -> int:
        """The first rank of its pipeline."""
        return self.replica * self.devices

    @property
    def tells(self) -> bool:
        """Whether it writes what is written once."""
        return self.rank == 0


def launched() -> bool:
    """Whether torchrun started this process."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


@contextmanager
def joined(document: TrainingDocument) -> Iterator[Rank]:
    """The process group while a run lasts. TrainingError when there are not as many processes as the document asks."""
    world = int(os.environ["WORLD_SIZE"]) if launched() else 1
    if world != document.ranks:
        raise TrainingError(
            f"{world} processes, and the document asks for {document.devices} devices x {document.replicas} replicas: "
            f"torchrun --nproc-per-node {document.ranks}, or change `devices`"
        )
    local = int(os.environ.get("LOCAL_RANK", "0"))
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= beside
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend, patience = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timedelta(seconds=document.timeout_s)
    if launched():
        dist.init_process_group(backend, timeout=patience)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=patience)
    try:
        yield Rank(dist.get_rank(), document.devices, device)
    finally:
        dist.destroy_process_group()
