"""The ranks of a run: this process's place in the process group, and its device."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.errors import JellyBeanError
from jellybean.pipeline.user_errors import user_frame
from jellybean.quantities import InvalidValueError
from jellybean.training.errors import RankCrashError, RankLostError, ReportedError, TrainingError
from jellybean.training.processes.devices import (
    DeviceChoice,
    check_same_kind,
    choose_device,
    local_workers,
    set_device,
)
from jellybean.training.processes.environment import STORE, started_by_launcher
from jellybean.training.processes.heartbeats import BeatFiles, Heartbeats, Store
from jellybean.training.processes.launch import report_to_launcher
from jellybean.training.processes.streams import HostStreams, Streams, streams_of

T = TypeVar("T")
NO_TIMEOUT = timedelta(days=365)  # timeout of collectives: heartbeats end waits instead


@dataclass(frozen=True)
class Rank:
    """The place of this process among all ranks: by replica, then device of the pipeline, then tensor index.

    `tensor`: ranks that share a device's part of the model. `by_rows`: these have different rows (CNN hybrid).
    `workers`: of parameter servers, which each train a copy of the model on their part of the rows.
    """

    rank: int
    devices: int
    device: torch.device
    heartbeats: Heartbeats | None = None  # None: a run of a single rank
    shares_device: bool = False  # with other ranks
    streams: Streams = field(default_factory=HostStreams)
    store: dist.Store | None = None  # where its process groups meet
    tensor: int = 1
    by_rows: bool = False
    workers: int = 1

    def busy(self, what: str) -> AbstractContextManager[None]:
        """Context in which the other ranks wait for this one without a timeout."""
        return nullcontext() if self.heartbeats is None else self.heartbeats.busy(what)

    def placed(self, document: TrainingDocument) -> Rank:
        """This process as a rank of the document's devices, replicas and tensor groups."""
        return replace(self, devices=document.devices, tensor=document.tensor.ways, by_rows=document.tensor.by_rows)

    def step(self) -> None:
        """Count one action as progress."""
        if self.heartbeats is not None:
            self.heartbeats.step()

    @property
    def device_index(self) -> int:
        """Index of its device in the pipeline."""
        return self.rank // self.tensor % self.devices

    @property
    def replica(self) -> int:
        """Index of its pipeline (data-parallel replica)."""
        return self.rank // (self.devices * self.tensor)

    @property
    def tensor_index(self) -> int:
        """Index among the ranks that share its device's part of the model."""
        return self.rank % self.tensor

    @property
    def worker(self) -> int:
        """Index among the parts into which the rows of an update are divided."""
        return self.replica * self.tensor + self.tensor_index if self.by_rows else self.replica

    @property
    def pipeline(self) -> int:
        """Index among the pipelines of ranks that exchange messages: of its replica and tensor index."""
        return self.replica * self.tensor + self.tensor_index

    @property
    def has_own_rows(self) -> bool:
        """False if another rank computes the same losses."""
        return self.by_rows or self.tensor_index == 0

    @property
    def first(self) -> int:
        """The rank on the first device of its pipeline, with its tensor index."""
        return self.replica * self.devices * self.tensor + self.tensor_index

    @property
    def is_first(self) -> bool:
        """True for the rank that reports and writes shared files."""
        return self.rank == 0


def _stores(world: int, patience: timedelta) -> tuple[dist.Store, Store]:
    """The rendezvous store, and where heartbeats are written: under torchrun a second connection to it.

    After a restart, torchrun's own store still holds the addresses of the previous processes, and ranks that read them
    wait for each other forever (pytorch/pytorch#135712), so keys carry the restart count. Several agents count restarts
    independently; they must not share a store (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment).
    """
    if not started_by_launcher() or world == 1:
        return dist.HashStore(), dist.HashStore()
    if (path := os.environ.get(STORE)) is not None:
        file_store = dist.FileStore(path, -1)
        file_store.set_timeout(patience)
        return file_store, BeatFiles(Path(path).parent, patience.total_seconds())
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = not shared and os.environ["RANK"] == "0"
    store = dist.TCPStore(address, port, world, is_master=serves, timeout=patience, multi_tenant=serves)
    heartbeats = dist.TCPStore(address, port, world, is_master=False, timeout=patience, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if shared and alone else "0"
    return dist.PrefixStore(f"attempt-{attempt}", store), dist.PrefixStore(f"attempt-{attempt}-beats", heartbeats)


_PID = re.compile(r" \(pid\(?s?\)? [\d, ]+\)")
_GONE = re.compile(r"connection (closed|reset|refused)|broken pipe|socket|peer", re.IGNORECASE)


def gather_from_ranks(value: T) -> list[T]:
    """The values of all ranks, in their order, on every rank. A collective call; values are pickled."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def translated_errors(timeout_s: float) -> Iterator[None]:
    """Translate torch's errors: timeouts, lost connections to RankLostError; unexpected ones to RankCrashError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            "the GPU's memory is full: use more devices, `recompute: true`, `precision: bfloat16-weights` or a smaller "
            "batch; `memory`, set to the GPU's, lets the choice of the schedule respect it\n" + str(error)
        ) from error
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), "")
        if "timed out" in reason.lower():
            raise RankLostError(
                f"a rank waited {timeout_s:g} s for the others: one hangs, or is slow to start; in that case raise "
                "`timeout`: --set timeout=2h\n" + reason
            ) from error
        if isinstance(error, dist.DistError) or _GONE.search(reason):
            raise RankLostError(f"lost the connection to another rank: {reason}") from error
        raise RankCrashError(_crash(error)) from error
    except JellyBeanError:
        raise
    except OSError as error:
        if user_frame(error) is None:  # a full disk, a folder that is gone
            raise
        raise RankCrashError(_crash(error)) from error
    except (Exception, SystemExit) as error:
        raise RankCrashError(_crash(error)) from error


def _crash(error: BaseException) -> str:
    """Message with the exception and the user's line that raised it, or the last one if no code of the user ran.

    Without numbers of processes, which differ each time.
    """
    frame = user_frame(error) or traceback.extract_tb(error.__traceback__)[-1]
    message = _PID.sub("", str(error).strip()) or "no message"
    return f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {message}"


def _world() -> int:
    return int(os.environ["WORLD_SIZE"]) if started_by_launcher() else 1


def fit_to_processes(document: TrainingDocument) -> TrainingDocument:
    """The document for the processes that the launcher started. TrainingError if there are too few or too many."""
    try:
        return document.on(_world())
    except InvalidValueError as error:
        raise TrainingError(f"{error}: {error.hint}") from error


def _device(document: TrainingDocument, launched: int, workers: int | None) -> DeviceChoice:
    """The device of the process with this rank, as it was launched. `workers`: as of `process_group`."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if workers is not None:
        local_ranks = local_workers(launched - local, local_ranks, workers)
    return choose_device(document.device, local, local_ranks, torch.cuda.device_count())


def _bind_to_loopback(world: int) -> None:
    """Let ranks of one machine talk over loopback: gloo would look up the machine's name instead."""
    is_one_machine = world == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(world)
    if is_one_machine and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


@contextmanager
def process_group(document: TrainingDocument, *, workers: int | None = None) -> Iterator[Rank]:
    """Context with the run's process group; yields this process's rank.

    The document is of this number of processes (`fit_to_processes`). `workers`: of a run with parameter servers, whose
    processes are each in a group of one and exchange messages by themselves.
    """
    launched = int(os.environ["RANK"]) if started_by_launcher() else 0
    world, rank = (1, 0) if workers is not None else (_world(), launched)
    store, beat_store = _stores(world, timedelta(seconds=document.timeout_s))
    heartbeats = Heartbeats(beat_store, rank, world, document.timeout_s) if world > 1 else None
    if heartbeats is not None:
        heartbeats.start(lambda error: _abort_process(error, rank))
    try:
        with translated_errors(document.timeout_s):
            choice = _device(document, launched, workers)
            check_same_kind(store, rank, world, choice)
            set_device(choice)
            _bind_to_loopback(world)
            dist.init_process_group(
                choice.backend,
                store=store,
                rank=rank,
                world_size=world,
                timeout=NO_TIMEOUT,
                device_id=choice.device if choice.backend != "gloo" else None,  # NCCL's communicators are made now
            )
            streams = streams_of(choice.device)
            unplaced = Rank(rank, 1, choice.device, heartbeats, choice.shared, streams, store, workers=workers or 1)
            yield unplaced.placed(document)
    except (JellyBeanError, OSError) as error:
        if dist.is_initialized() and dist.group.WORLD.bound_device_id is not None and world > 1:
            _abort_process(error, rank)  # an orderly end would wait for transfers that the other ranks never begin
        if started_by_launcher() and report_to_launcher(
            error, launched
        ):  # report before the other ranks notice that this one is gone
            raise ReportedError from error
        raise
    finally:
        if heartbeats is not None:
            heartbeats.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def keep_first_ranks(rank: Rank, document: TrainingDocument) -> Rank | None:
    """This rank among the first ones, as many as the document uses; None if it is not one of them, and may end.

    A collective call of all ranks, which then have another default process group, or none.
    """
    world, used = dist.get_world_size(), document.ranks
    kept = rank.placed(document)
    if used == world:
        return kept
    if rank.store is None:
        raise TrainingError(f"{used} of {world} processes cannot form a group: there is no store where they meet")
    backend, bound = dist.get_backend(), rank.device if rank.device.type != "cpu" else None
    dist.barrier()
    dist.destroy_process_group()
    if rank.rank >= used:
        return None
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"first-{used}", rank.store),
        rank=rank.rank,
        world_size=used,
        timeout=NO_TIMEOUT,
        device_id=bound if backend != "gloo" else None,
    )
    return kept


def _abort_process(error: Exception, rank: int) -> None:
    """End this process at once: it may be blocked in a collective that nothing else ends."""
    if not report_to_launcher(error, rank):
        print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(1)
