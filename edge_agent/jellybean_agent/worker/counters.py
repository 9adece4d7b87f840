"""Counters of a worker, which its metrics report; a file keeps those that the ledger needs over restarts."""

from __future__ import annotations

import asyncio
import glob
import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from jellybean_agent.brain.messages import RunOperator
from jellybean_agent.errors import CountersError, describe_error
from jellybean_agent.telemetry.live_counters import LiveCounters
from jellybean_agent.worker.run_outputs import RunDone, is_direct_call

LOG = logging.getLogger("jellybean.agent")
SYNC_S = 5.0
MAX_ROWS = 1024  # operators, and pairs of operator and tier, whose counters are kept
_COLUMNS = 3  # of an operator: completed, failed, nanoseconds of runs; of an operator and a tier: bytes
_RUNS, _BYTES = "runs", "bytes"  # what a row is about
_SINCE, _OTHERS = ("since",), ("others",)  # keys of rows: when counting began; what there is no row for, which is lost


class WorkerCounters:
    """Counters of a worker by operator, since `since_unix_s`: its start, or when the file of kept counters began.

    `completed`, `failed`: requests. `failed_batches`: batches that failed and were retried one item at a time.
    `busy_s`: seconds of runs. `late_s`: seconds by which runs took longer than on the emulated device. `runs`: runs by
    batch size. `direct_calls`, `direct_calls_failed`: numbers; `busy_s` includes their runs. `expired`: requests
    dropped after their deadline; the empty name counts those that waited for inputs. `link_bytes`: bytes of outputs
    sent to another tier, by (operator, tier). Kept are `completed`, `failed`, `busy_s` and `link_bytes`.
    """

    def __init__(self, operators: Iterable[str], kept: Path | None = None, plan: str = "") -> None:
        """`kept`: file of the counters; each `plan` has its own, others are removed. CountersError if that fails."""
        names = tuple(operators)
        self.completed = dict.fromkeys(names, 0)
        self.failed = dict.fromkeys(names, 0)
        self.failed_batches = dict.fromkeys(names, 0)
        self.busy_s = dict.fromkeys(names, 0.0)
        self.late_s = dict.fromkeys(names, 0.0)
        self.runs = {name: Counter[int]() for name in names}
        self.direct_calls = dict.fromkeys(names, 0)
        self.direct_calls_failed = dict.fromkeys(names, 0)
        self.expired = dict.fromkeys((*names, ""), 0)
        self.link_bytes = Counter[tuple[str, str]]()
        self.since_unix_s = time.time()
        self._kept = None if kept is None else _file_of_plan(kept, plan)
        if self._kept is not None:
            self._go_on(self._kept)

    def _go_on(self, kept: LiveCounters) -> None:
        """Go on where the process before ended."""
        found = dict(kept.readings())
        if _SINCE not in found:
            kept.row(_SINCE)[0] = int(self.since_unix_s * 1e9)
        self.since_unix_s = kept.row(_SINCE)[0] / 1e9
        for name in self.completed:
            completed, failed, busy_ns = found.get((_RUNS, name), (0, 0, 0))
            self.completed[name], self.failed[name], self.busy_s[name] = completed, failed, busy_ns / 1e9
        for key, values in found.items():
            if key[0] == _BYTES:
                self.link_bytes[key[1], key[2]] = values[0]

    def _keep(self, operator: str) -> None:
        if self._kept is not None:
            row = self._kept.row((_RUNS, operator), _OTHERS)
            row[0], row[1] = self.completed[operator], self.failed[operator]
            row[2] = int(self.busy_s[operator] * 1e9)

    async def keep_synced(self, every_s: float = SYNC_S) -> None:
        """Write the file of kept counters to the disk every few seconds in which something was counted. Never returns.

        A kill loses nothing of it in any case; this is for boxes that lose their power.
        """
        synced: object = None
        while True:
            await asyncio.sleep(every_s)
            counted = self.handled, self.link_bytes.total()
            if self._kept is not None and counted != synced:
                try:
                    await asyncio.to_thread(self._kept.sync)
                    synced = counted
                except OSError as error:
                    reason = describe_error(error, file=self._kept.path)
                    LOG.warning("%s: %s: tried again", self._kept.path, reason)

    def close(self) -> None:
        """Close the file of kept counters, if there is one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def handled(self) -> int:
        """Number of requests and direct calls that were run, by operator, failed ones included."""
        counts = (self.completed, self.failed, self.direct_calls, self.direct_calls_failed)
        return sum(sum(by_operator.values()) for by_operator in counts)

    def run_done(self, run: RunOperator, done: RunDone) -> None:
        """Count a run that succeeded."""
        self.busy_s[run.operator] += done.busy_s
        self.late_s[run.operator] += done.late_s
        if is_direct_call(run):
            self.direct_calls[run.operator] += len(done.outputs)
        else:
            self.completed[run.operator] += len(done.outputs)
            self.runs[run.operator].update(done.sizes)
        self._keep(run.operator)

    def run_failed(self, run: RunOperator) -> None:
        """Count a run that failed. The items of a failed batch are counted when they are retried one by one."""
        if is_direct_call(run):
            self.direct_calls_failed[run.operator] += len(run.items) == 1
        elif len(run.items) == 1:
            self.failed[run.operator] += 1
        else:
            self.failed_batches[run.operator] += 1
        self._keep(run.operator)

    def sent(self, operator: str, tier: str, size: int) -> None:
        """Count bytes of outputs that were sent to another tier."""
        self.link_bytes[operator, tier] += size
        if self._kept is not None:
            self._kept.row((_BYTES, operator, tier), _OTHERS)[0] = self.link_bytes[operator, tier]


def kept_if_possible(operators: Iterable[str], kept: Path | None, plan: str) -> WorkerCounters:
    """Counters in a file, or in the process alone where the file cannot be used: a full disk must not end serving."""
    names = tuple(operators)
    try:
        return WorkerCounters(names, kept, plan)
    except CountersError as error:
        LOG.warning("%s: if this process is killed, the ledger misses what it counted since the last interval", error)
        return WorkerCounters(names)


def _file_of_plan(kept: Path, plan: str) -> LiveCounters:
    own = kept.with_name(f"{kept.name}-{plan[:16]}")
    for other in kept.parent.glob(f"{glob.escape(kept.name)}-*"):
        if other != own and ".damaged-" not in other.name:
            with suppress(OSError):  # it only takes space
                other.unlink()
    return LiveCounters(own, _COLUMNS, MAX_ROWS)
