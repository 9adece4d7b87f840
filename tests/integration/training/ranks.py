"""Runs test cases in real processes; one start serves many cases."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.support.ports import free_port

Case = Callable[[int], Any]  # rank -> result


def run_ranks(world: int, cases: Sequence[Case], seconds: float = 280.0) -> list[list[Any]]:
    """Results as `[case][rank]`. All ranks run the cases in order; the first error ends the run and is raised."""
    port = free_port()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "tests.integration.training.cases"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, world, port, list(cases), folder), daemon=True)
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        stuck = _wait_for(ranks, seconds)
        for process in ranks:
            process.kill()
            process.join()
        errors = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.error"))]
        if errors or stuck:
            running = [f"rank {rank}: {_progress(Path(folder), rank, len(cases))}" for rank in stuck]
            raise AssertionError("\n".join([*errors, *running]))
        by_rank = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]
    return [[own[number] for own in by_rank] for number in range(len(cases))]


def _wait_for(ranks: Sequence[Any], seconds: float) -> list[int]:
    """Wait until all ranks ended, one failed, or `seconds` passed; the ranks that still run."""
    end_s = time.monotonic() + seconds
    while running := [process for process in ranks if process.is_alive()]:
        left_s = end_s - time.monotonic()
        if left_s <= 0 or any(process.exitcode for process in ranks):
            break
        wait([process.sentinel for process in running], left_s)
    return [rank for rank, process in enumerate(ranks) if process.is_alive()]


def _progress(folder: Path, rank: int, cases: int) -> str:
    done = len(list(folder.glob(f"{rank}.*.done")))
    return f"it ran {done} of {cases} cases" + (" and wrote its results" if (folder / f"{rank}.pt").exists() else "")


def _rank(rank: int, world: int, port: int, cases: list[Case], folder: str) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # the objects of imported modules: collections and cases that look at all objects need not see them
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        found = []
        for number, case in enumerate(cases):
            found.append(case(rank))
            _destroy_groups()
            (Path(folder) / f"{rank}.{number}.done").touch()
        torch.save(found, Path(folder) / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001  # told to whoever waits, as text
        (Path(folder) / f"{rank}.error").write_text(f"rank {rank}\n{traceback.format_exc()}", encoding="utf-8")
        os._exit(1)


def _destroy_groups() -> None:
    """Destroy the groups that a case made: each has threads that poll, and hundreds would slow down all later cases."""
    made = [group for group in distributed_c10d._world.pg_map if group is not dist.group.WORLD]
    dist.barrier()
    for group in made:
        dist.destroy_process_group(group)
