"""Processes that run many cases: each case forms a process group of as many of them as it needs.

Starting a process and importing torch takes seconds on a busy machine, a process group some hundredths of one.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from jellybean.errors import JellyBeanError
from jellybean.training.errors import RankLostError

_AFTER_FAILURE_S = 5.0  # for which the other ranks may take to see that one has failed
Case = Callable[[int], Any]  # rank -> result


@dataclass(frozen=True)
class Refused:
    """A case ended with an error for the user. `kind`: its class."""

    kind: str
    message: str


@dataclass(frozen=True)
class Crashed:
    """A case ended with another exception, or not at all."""

    trace: str


class RankPool:
    """Up to `size` ranks. `seconds`: for which a case may run."""

    def __init__(self, size: int, seconds: float = 600.0) -> None:
        self._size, self._seconds = size, seconds
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch._dynamo", "jellybean.training.train"])
        self._folder = tempfile.TemporaryDirectory()
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._cases = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and delete what they have written."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        """End all processes; the next case starts others."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def run(self, case: Case, ranks: int) -> Any:
        """The first rank's result; Refused or Crashed of the rank that ended first for a reason of its own."""
        if not self._processes:
            self._start()
        self._cases += 1
        store = Path(self._folder.name) / f"store-{self._cases}"
        pipes = self._pipes[:ranks]
        for pipe in pipes:
            pipe.send((case, ranks, str(store)))
        results: dict[int, Any] = {}
        while len(results) < ranks:
            failed = any(map(_is_cause, results.values()))
            others = [pipe for number, pipe in enumerate(pipes) if number not in results]
            ready = wait(others, _AFTER_FAILURE_S if failed else self._seconds)
            if not ready:
                self._end()  # they wait for the rank that failed, as they would until the launcher ends them
                if not failed:
                    return Crashed(f"no result within {self._seconds:g} s; ranks {sorted(results)} have ended")
                break
            for pipe in ready:
                results[pipes.index(pipe)] = self._received(pipe)
            if not self._processes:
                break  # one died
        failures = [result for result in results.values() if isinstance(result, Refused | Crashed)]
        return ([*filter(_is_cause, failures), *failures] or [results[0]])[0]

    def _received(self, pipe: Connection) -> Any:
        try:
            return torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
        except EOFError:
            self._end()
            return Crashed("a process died")

    def _start(self) -> None:
        for rank in range(self._size):
            here, there = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)


def _is_cause(result: Any) -> bool:
    """Whether a rank failed for a reason of its own, and not because another one was gone."""
    return isinstance(result, Crashed) or (isinstance(result, Refused) and result.kind != RankLostError.__name__)


def _serve(rank: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    while True:
        try:
            case, ranks, store = pipe.recv()
        except EOFError:
            return
        written = io.BytesIO()
        torch.save(_result(case, rank, ranks, store), written)
        pipe.send_bytes(written.getvalue())


def _result(case: Case, rank: int, ranks: int, store: str) -> Any:
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    try:
        return case(rank)
    except JellyBeanError as error:
        return Refused(type(error).__name__, str(error))
    except RuntimeError as error:
        lost = "onnection" in str(error) or "peer" in str(error)
        return Refused(RankLostError.__name__, str(error)) if lost else Crashed(traceback.format_exc())
    except Exception:  # noqa: BLE001  # handed to whoever waits, as text
        return Crashed(traceback.format_exc())
    finally:
        dist.destroy_process_group()
