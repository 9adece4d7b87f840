"""Counters of a worker, which its metrics report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from jellybean_agent.brain.messages import RunOperator
from jellybean_agent.worker.run_outputs import RunDone, is_direct_call


class WorkerCounters:
    """Counters of a worker since its start, by operator.

    `completed`, `failed`: requests. `failed_batches`: batches that failed and were retried one item at a time.
    `busy_s`: seconds of runs. `late_s`: seconds by which runs took longer than on the emulated device. `runs`: runs by
    batch size. `direct_calls`, `direct_calls_failed`: numbers; `busy_s` includes their runs. `expired`: requests
    dropped after their deadline; the empty name counts those that waited for inputs. `link_bytes`: bytes of outputs
    sent to another tier, by (operator, tier).
    """

    def __init__(self, operators: Iterable[str]) -> None:
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

    def run_failed(self, run: RunOperator) -> None:
        """Count a run that failed. The items of a failed batch are counted when they are retried one by one."""
        if is_direct_call(run):
            self.direct_calls_failed[run.operator] += len(run.items) == 1
        elif len(run.items) == 1:
            self.failed[run.operator] += 1
        else:
            self.failed_batches[run.operator] += 1
