"""Heartbeats between ranks: detect a rank that died or stalls, without limiting how long one may be busy.

Every rank writes to a shared store, periodically, that it is alive, how many actions it has done, what line of the
user's code it is in, and whether it is busy with something that the others wait for (profiling, evaluation, a
checkpoint). A rank that stops writing is dead or
stalled. While all write, the run is given up only if no rank makes progress and none is busy for the whole timeout, or
if a rank reads one row for so long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from jellybean.pipeline.user_errors import user_place
from jellybean.training.errors import StalledError

CHECKS_PER_TIMEOUT = 40  # at least; timeouts count checks, not clock time, so a suspended machine does not time out
_MAX_INTERVAL_S = 5.0
_ENDED = "ended"
_NOWHERE = "-"  # in a heartbeat: the rank is at no line of the user
_READS = "reads row"
_BATCHES = "jellybean/training/data/batches.py"
# By the name of a method there: the row that it reads, or the first one of those that it takes from a stream.
_READERS: dict[str, Callable[[Any], Any]] = {
    "read_row": lambda variables: variables["number"],
    "take": lambda variables: variables["self"].position,
}
_LOADER = "torch/utils/data/dataloader.py"
_POLL_S = 0.05  # between looks for the first heartbeat of a rank


class Store(Protocol):
    """The part of a store, such as torch.distributed's, that heartbeats need."""

    def set(self, key: str, value: str) -> object: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class BeatFiles:
    """The heartbeats of ranks on one machine: a file each. No port is open, and nothing grows."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder, self._patience_s = folder, patience_s

    def set(self, key: str, value: str) -> None:
        """Write a heartbeat. RuntimeError if the folder is gone."""
        partial = self._folder / f".{key}"
        try:
            partial.write_text(value, encoding="utf-8")
            partial.replace(self._folder / key)
        except OSError as error:
            raise RuntimeError(f"{key} cannot be written: {error}") from error

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The last heartbeats. RuntimeError if a rank writes none within the patience."""
        until_s = time.monotonic() + self._patience_s
        return [self._get(key, until_s) for key in keys]

    def _get(self, key: str, until_s: float) -> bytes:
        path = self._folder / key
        while not path.exists():
            if time.monotonic() > until_s:
                raise RuntimeError(f"{key} was not written within {self._patience_s:g} s")
            time.sleep(_POLL_S)
        try:
            return path.read_bytes()
        except OSError as error:
            raise RuntimeError(f"{key} cannot be read: {error}") from error


@dataclass
class _RankState:
    """State of one rank as last read, with the checks since its last heartbeat and since its last progress."""

    beats: int = -1
    done: int = -1
    silent_checks: int = 0
    idle_checks: int = 0
    row_checks: int = 0  # since it began to read the row that it reads
    place: str = ""
    busy: str = ""


def place_of_rank() -> str:
    """What the main thread of this process is at, if that is the user's code, or waits for; otherwise empty."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    place, row, waits = user_place(frame), "", False
    while frame is not None:
        if frame.f_code.co_filename.endswith(_BATCHES) and (reads := _READERS.get(frame.f_code.co_name)):
            row = str(reads(frame.f_locals))
        waits = waits or frame.f_code.co_filename.endswith(_LOADER)
        frame = frame.f_back
    if place:
        return f"{_READS} {row} at {place}" if row else f"is at {place}"
    return "waits for its processes that read rows (`data.workers`)" if waits else ""


class Heartbeats:
    """Heartbeats of one rank among `world` ranks; `patience_s`: timeout in seconds."""

    def __init__(self, store: Store, rank: int, world: int, patience_s: float) -> None:
        self._store, self._rank, self._patience_s = store, rank, patience_s
        self._keys = [f"beat-{other}" for other in range(world)]
        self._every_s = min(_MAX_INTERVAL_S, patience_s / CHECKS_PER_TIMEOUT)
        self._beats = self._done = self._done_before = 0
        self._busy = ""
        self._states = [_RankState() for _ in range(world)]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Count one action as progress."""
        self._done += 1

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Context in which this rank counts as busy with `what`, without a time limit."""
        before, self._busy = self._busy, what
        try:
            yield
        finally:
            self._busy = before
            self._done += 1

    def beat(self) -> None:
        """Write this rank's heartbeat."""
        self._beats += 1
        place = quote(place_of_rank()) if self._done == self._done_before else ""
        self._done_before = self._done
        self._store.set(self._keys[self._rank], f"{self._beats} {self._done} {place or _NOWHERE} {self._busy}")

    def check(self) -> str:
        """Read the others' heartbeats. Returns why the run must be given up; empty if it need not."""
        checks = self._patience_s / self._every_s
        for state, text in zip(self._states, self._store.multi_get(self._keys), strict=True):
            beats, done, place, state.busy = text.decode().split(" ", 3)
            place = "" if place == _NOWHERE else unquote(place)
            state.row_checks = state.row_checks + 1 if place == state.place and place.startswith(_READS) else 0
            state.place = place
            state.silent_checks = 0 if int(beats) != state.beats else state.silent_checks + 1
            state.idle_checks = 0 if int(done) != state.done else state.idle_checks + 1
            state.beats, state.done = int(beats), int(done)
        running = [state for state in self._states if state.busy != _ENDED]
        for number, state in enumerate(self._states):
            if state.busy != _ENDED and state.silent_checks >= checks:
                return (
                    f"rank {number} has not responded for {self._patience_s:g} s; if its machine is only slow, raise "
                    "`timeout`"
                )
        for number, state in enumerate(self._states):
            if state.busy != _ENDED and state.row_checks >= checks:
                return f"rank {number} {state.place} for {self._patience_s:g} s; if a row takes longer, raise `timeout`"
        if len(running) > 1 and all(state.idle_checks >= checks and not state.busy for state in running):
            places = ", ".join(f"rank {n} {state.place}" for n, state in enumerate(self._states) if state.place)
            return (
                f"no rank has made progress for {self._patience_s:g} s{places and ': '}{places}; if one action takes "
                "longer, raise `timeout`"
            )
        return ""

    def start(self, end: Callable[[StalledError], None]) -> None:
        """Write and check periodically in a thread, which calls `end` if the run must be given up."""
        self.beat()
        self._thread = threading.Thread(target=self._watch, args=(end,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and tell the others that this rank has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._busy = _ENDED
            with suppress(RuntimeError):  # the store may be gone already
                self.beat()

    def _watch(self, end: Callable[[StalledError], None]) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.beat()
                why = self.check()
            except RuntimeError as error:  # a rank never started, or the store is gone, perhaps because all is done
                why = "" if self._stop.wait(self._patience_s) else f"another rank is not reachable: {error}"
            if why and not self._stop.is_set():
                end(StalledError(why))
                return
