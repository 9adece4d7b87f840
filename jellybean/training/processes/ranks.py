"""The processes of a run: who this one is, and what it computes on. One process needs no launcher."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.errors import JellyBeanError
from jellybean.training.errors import CrashError, LostError, StillError, ToldError, TrainingError
from jellybean.training.processes.heartbeats import Beats
from jellybean.training.processes.launch import tell_launcher

NEVER = timedelta(days=365)  # beats say when a wait is over


@dataclass(frozen=True)
class Rank:
    """Place in the world; ranks count devices first, then replicas."""

    rank: int
    devices: int
    device: torch.device
    beats: Beats | None = None  # of a run of several

    def busy(self, what: str) -> AbstractContextManager[None]:
        """While it does something that the others wait for, however long that takes."""
        return nullcontext() if self.beats is None else self.beats.busy(what)

    def step(self) -> None:
        """It has done something."""
        if self.beats is not None:
            self.beats.step()

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


def _stores(world: int, patience: timedelta) -> tuple[dist.Store, dist.Store]:
    """Where ranks find each other's addresses; and the same, by a connection of its own, for their beats.

    After a restart torchrun's own store still has those of the processes before, and ranks that read them wait for
    each other without end (pytorch/pytorch#135712). One agent counts its restarts; several do not count alike, so they
    are told not to share a store (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment).
    """
    if not launched():
        return dist.HashStore(), dist.HashStore()
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = not shared and os.environ["RANK"] == "0"
    store = dist.TCPStore(address, port, world, is_master=serves, timeout=patience, multi_tenant=serves)
    beats = dist.TCPStore(address, port, world, is_master=False, timeout=patience, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if shared and alone else "0"
    return dist.PrefixStore(f"attempt-{attempt}", store), dist.PrefixStore(f"attempt-{attempt}-beats", beats)


_GONE = re.compile(r"connection (closed|reset|refused)|broken pipe|socket|peer", re.IGNORECASE)


@contextmanager
def silence_told(timeout_s: float) -> Iterator[None]:
    """Says what to change where a rank waited too long for others: torch names neither the option nor the reason."""
    try:
        yield
    except RuntimeError as error:
        told = next(iter(str(error).splitlines()), "")
        if "timed out" in told.lower():
            raise LostError(
                f"a rank waited {timeout_s:g} s for the others: one hangs, or starts slowly; then raise "
                "`timeout`: --set timeout=2h\n" + told
            ) from error
        if isinstance(error, dist.DistError) or _GONE.search(told):
            raise LostError(f"another rank went away: {told}") from error
        raise CrashError(_crash(error)) from error
    except (JellyBeanError, OSError):
        raise
    except Exception as error:
        raise CrashError(_crash(error)) from error


def _crash(error: Exception) -> str:
    """What was raised, and where outside torch's own files."""
    places = traceback.extract_tb(error.__traceback__)
    place = next((one for one in reversed(places) if f"{os.sep}torch{os.sep}" not in one.filename), places[-1])
    told = str(error).strip() or "no message"
    return f"{type(error).__name__} at {place.filename}:{place.lineno}: {told}"


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
    store, telling = _stores(world, patience)
    rank = int(os.environ["RANK"]) if launched() else 0
    beats = Beats(telling, rank, world, document.timeout_s) if world > 1 else None
    if beats is not None:
        beats.start(lambda error: _end(error, rank))
    try:
        with silence_told(document.timeout_s):
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=NEVER)
            yield Rank(rank, document.devices, device, beats)
    except (JellyBeanError, OSError) as error:
        if launched() and tell_launcher(error, rank):  # before others see this rank go
            raise ToldError from error
        raise
    finally:
        if beats is not None:
            beats.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _end(error: StillError, rank: int) -> None:
    """Of this process, whose main thread may be in a wait that nothing else ends."""
    if not tell_launcher(error, rank):
        print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(1)
