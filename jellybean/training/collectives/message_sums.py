"""Sums the gradients of a rank's stages by messages, in buckets, while backward passes still run.

Each stage has a thread, a tag and an order of buckets, equal on all ranks that hold it. So a rank that holds two stages
runs both sums at once, and the order in which its stages become ready need not be that of other ranks.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import torch
import torch.distributed as dist

from jellybean.training.collectives.buckets import make_buckets
from jellybean.training.collectives.interpreter import AllReduceInterpreter
from jellybean_solver.pipeline import make_all_reduce

Gradients = Mapping[str, torch.Tensor]
_Jobs = queue.SimpleQueue["tuple[Future[None], torch.Tensor] | None"]
FIRST_TAG = 1  # the stages have the tags from here on, then the shared weights; 0 is left to other messages


class StageSum:
    """The sum of one stage's gradients over the ranks that hold it. `values`: tensors like the gradients, by name."""

    def __init__(self, interpreter: AllReduceInterpreter, values: Gradients, bucket_bytes: float) -> None:
        self._buckets = make_buckets(values, bucket_bytes)
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self._started: list[Future[None]] = []
        self._complete: set[str] = set()
        self._jobs: _Jobs = queue.SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        threading.Thread(target=_run_jobs, args=(self._jobs, interpreter), name="gradient sums", daemon=True).start()

    def put(self, name: str, gradient: torch.Tensor) -> None:
        """Take a gradient that is complete. Starts the sums of complete buckets, in the order of the buckets."""
        self._bucket_of[name].put(name, gradient)
        self._complete.add(name)
        while len(self._started) < len(self._buckets) and self._buckets[len(self._started)].complete:
            future: Future[None] = Future()
            self._jobs.put((future, self._buckets[len(self._started)].values))
            self._started.append(future)

    def start(self, gradients: Gradients) -> None:
        """Take all gradients that are not taken yet."""
        for name in reversed([name for name in gradients if name not in self._complete]):
            self.put(name, gradients[name])

    def finish(self, gradients: Gradients) -> None:
        """Wait; the gradients then hold the sums. Raises the errors of messages."""
        for future, bucket in zip(self._started, self._buckets, strict=True):
            future.result()
            bucket.take(gradients)
        self._started.clear()
        self._complete.clear()


def _run_jobs(jobs: _Jobs, interpreter: AllReduceInterpreter) -> None:
    while (job := jobs.get()) is not None:
        future, values = job
        try:
            interpreter.run(values)
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001  # raised by whoever waits for the sum
            future.set_exception(error)


class MessageSums:
    """Sums of gradients and shared weights of one rank, by the all-reduce `way`.

    `stages[number]`, `ties[name]`: process groups of host memory; None where this rank is alone or not a member. All
    ranks have the same keys, and their messages the same tags.
    """

    def __init__(
        self,
        way: str,
        bucket_bytes: float,
        stages: Mapping[int, dist.ProcessGroup | None],
        ties: Mapping[str, dist.ProcessGroup | None],
    ) -> None:
        self._bucket_bytes = bucket_bytes
        tags = {key: FIRST_TAG + place for place, key in enumerate((*sorted(stages), *sorted(ties)))}
        self._interpreters = {
            key: AllReduceInterpreter(make_all_reduce(way, dist.get_world_size(group)), group, tags[key])
            for key, group in (*stages.items(), *ties.items())
            if group is not None
        }
        self._sums: dict[int, StageSum] = {}

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent so far."""
        return sum(interpreter.sent_bytes for interpreter in self._interpreters.values())

    def watcher(self, number: int, values: Gradients) -> Callable[[str, torch.Tensor], None] | None:
        """What to call with each gradient of a stage that is complete; None if the stage is not summed."""
        stage_sum = self._sum_of(number, values)
        return None if stage_sum is None else stage_sum.put

    def start(self, number: int, gradients: Gradients) -> StageSum | None:
        """Start the sum of a stage's gradients as far as it has not started; None if the stage is not summed."""
        stage_sum = self._sum_of(number, gradients)
        if stage_sum is not None:
            stage_sum.start(gradients)
        return stage_sum

    def sum_tie(self, name: str, total: torch.Tensor) -> None:
        """Replace a rank's part of a shared weight's gradient by the sum over the ranks that hold the weight."""
        if name in self._interpreters:
            values = total.reshape(-1).cpu()
            self._interpreters[name].run(values)
            total.copy_(values.view_as(total))

    def _sum_of(self, number: int, values: Gradients) -> StageSum | None:
        if number not in self._interpreters or not values:
            return None
        if number not in self._sums:
            self._sums[number] = StageSum(self._interpreters[number], values, self._bucket_bytes)
        return self._sums[number]
