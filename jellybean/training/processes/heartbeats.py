"""Whether the other ranks of a run are alive and get on: so that one may be busy for as long as it takes.

Every rank tells the store now and then that it lives, how much it has done, and whether it does something that the
others wait for (profiling, test rows, a checkpoint). A rank that stops telling is gone or stands still. While all of
them tell, a run is given up only when for as long none has done anything and none says that it is busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from jellybean.training.errors import StillError

LOOKS = 40  # in the time after which a run is given up, at least
_MOST_S = 5.0  # between two looks
_ENDED = "ended"


class Store(Protocol):
    """Of torch.distributed."""

    def set(self, key: str, value: str) -> object: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


@dataclass
class _Seen:
    """Of one rank. `still`: looks since it told something new; `idle`: since it had done more."""

    told: int = -1
    done: int = -1
    still: int = 0
    idle: int = 0
    busy: str = ""


class Beats:
    """Of one rank."""

    def __init__(self, store: Store, rank: int, world: int, patience_s: float) -> None:
        self._store, self._rank, self._patience_s = store, rank, patience_s
        self._keys = [f"beat-{other}" for other in range(world)]
        self._every_s = min(_MOST_S, patience_s / LOOKS)
        self._told = self._done = 0
        self._busy = ""
        self._seen = [_Seen() for _ in range(world)]
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.tell()

    def step(self) -> None:
        """This rank has done something."""
        self._done += 1

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """It does something alone, however long that takes."""
        before, self._busy = self._busy, what
        try:
            yield
        finally:
            self._busy = before
            self._done += 1

    def tell(self) -> None:
        """That this rank lives."""
        self._told += 1
        self._store.set(self._keys[self._rank], f"{self._told} {self._done} {self._busy}")

    def look(self) -> str:
        """What the others told; why the run is to be given up, or nothing."""
        looks = self._patience_s / self._every_s
        for own, text in zip(self._seen, self._store.multi_get(self._keys), strict=True):
            told, done, own.busy = text.decode().split(" ", 2)
            own.still = 0 if int(told) != own.told else own.still + 1
            own.idle = 0 if int(done) != own.done else own.idle + 1
            own.told, own.done = int(told), int(done)
        here = [own for own in self._seen if own.busy != _ENDED]
        for number, own in enumerate(self._seen):
            if own.busy != _ENDED and own.still >= looks:
                return (
                    f"rank {number} has stood still or been away for {self._patience_s:g} s; if its machine is only "
                    "slow, raise `timeout`"
                )
        if len(here) > 1 and all(own.idle >= looks and not own.busy for own in here):
            return f"no rank has done anything for {self._patience_s:g} s; if one action takes longer, raise `timeout`"
        return ""

    def start(self, end: Callable[[StillError], None]) -> None:
        """Tell and look from now on; `end` is called from another thread, where the run is to be given up."""
        self._thread = threading.Thread(target=self._watch, args=(end,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """This rank has ended; the others need not wait for it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._busy = _ENDED
            with suppress(RuntimeError):  # the store may have ended before
                self.tell()

    def _watch(self, end: Callable[[StillError], None]) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.tell()
                why = self.look()
            except RuntimeError as error:  # a rank that never came, or the store is gone, perhaps because all is done
                why = "" if self._over.wait(self._patience_s) else f"another rank is away: {error}"
            if why and not self._over.is_set():
                end(StillError(why))
                return
