"""The first server: hands out work items, updates the weights with their gradients, measures and saves.

Its threads, one for each worker's connection, share the state under one lock; the main thread runs the epochs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from jellybean.documents.training import TrainingDocument
from jellybean.training.epoch import check_finite_losses
from jellybean.training.errors import StalledError
from jellybean.training.parameter_server.channel import Channel, ConnectionLostError, Header
from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.shards import divide_weights
from jellybean.training.parameter_server.weights import (
    ServedWeights,
    averaged,
    frozen_of,
    sizes_of,
    stage_of,
    trained_of,
)
from jellybean.training.parameter_server.work_items import AsynchronousWork, EpochWork, SynchronousWork, WorkItem
from jellybean.training.setup import RankRun
from jellybean.training.stages.updates import GroupSettings

Warn = Callable[[str], None]
_CHECKS_PER_TIMEOUT = 40


@dataclass
class Counts:
    """What happened so far. `sent_bytes`: gradients to all servers, by worker. `pulled_bytes`: weights from this one.

    `computed_s`: seconds that workers computed.
    """

    sent_bytes: dict[int, int] = field(default_factory=dict)
    pulled_bytes: int = 0
    computed_s: float = 0.0


@dataclass
class _Worker:
    """A worker that is connected. `since_s`: when it got its work item; None: it has none."""

    channel: Channel
    since_s: float | None = None
    has_buffers: bool = False
    buffers: dict[str, torch.Tensor] | None = None


@dataclass(frozen=True)
class _Segment:
    """Iterations between two points at which all workers meet. `settings`: of the optimizer, by update."""

    epoch: int
    first: int  # update of the epoch
    work: EpochWork
    settings: Sequence[GroupSettings]
    losses: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # of the next update's loss


class Coordinator:
    """The state of the first server. `serve` runs in a thread for each connection, the rest in the main thread."""

    def __init__(self, run: RankRun, document: TrainingDocument, warn: Warn) -> None:
        self._run, self._document, self._warn = run, document, warn
        self._stage = stage_of(run)
        self._synchronous = document.sync.mode == "bsp"
        self._weights = ServedWeights(run, document.replicas if self._synchronous else 1)
        self._names = divide_weights(sizes_of(self._stage), document.sync.servers)[0]
        self._layout = FlatTensors(self._stage.versions.trained).layout
        self._rows = [run.data.train.digest(), run.data.test.digest()]
        self._changed = threading.Condition()
        self._workers: dict[int, _Worker] = {}
        self._joined: set[int] = set()
        self._segment: _Segment | None = None
        self._over = False
        self._failure: BaseException | None = None
        self.counts = Counts()

    def wait_for_workers(self) -> None:
        """Wait until all workers have been there. StalledError if none comes for too long."""
        with self._changed:
            self._wait_for(lambda: len(self._joined) == self._document.replicas, "waits for workers to start")

    def run_segment(self, epoch: int, iterations: range, settings: Sequence[GroupSettings]) -> list[float]:
        """Let the workers compute some iterations of an epoch; returns the losses of their updates."""
        workers = self._document.replicas
        with self._changed:
            work: EpochWork = (
                SynchronousWork(workers, iterations, self._workers)
                if self._synchronous
                else AsynchronousWork(iterations, self._document.sync.staleness, self._workers)
            )
            segment = _Segment(epoch, iterations.start, work, settings)
            for worker in self._workers.values():
                worker.has_buffers, worker.buffers = False, None
            self._segment = segment
            self._changed.notify_all()
            self._wait_for(lambda: work.done, "has no gradient of any worker")
            self._segment = None
            self._average_buffers()
        return segment.losses

    def end(self, timeout_s: float) -> bool:
        """Tell the workers that the run is over; True if all have joined and left before the timeout.

        One that joined and is gone is not waited for: the launcher may have given it up.
        """
        with self._changed:
            self._over = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: len(self._joined) == self._document.replicas and not self._workers, timeout_s
            )

    def serve(self, channel: Channel) -> None:
        """Serve a connection until it ends."""
        worker: int | None = None
        try:
            worker = self._join(channel)
            if worker is None:
                return
            gradient, weights = (FlatTensors(trained_of(self._stage, self._names)) for _ in range(2))
            while (item := self._wait_for_work(worker, channel, weights)) is not None:
                channel.send(item, weights.memory)
                self._send_buffers(worker, channel)
                self._take(worker, channel, gradient)
            channel.send({"kind": "end"})
        except ConnectionLostError:
            pass
        except BaseException as error:  # noqa: BLE001  # raised by the main thread
            with self._changed:
                self._failure = error
        finally:
            channel.close()
            if worker is not None:
                self._leave(worker, channel)

    def _wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait in the main thread, raise what a connection's thread raised, and give up workers that stall."""
        timeout_s = self._document.timeout_s
        changed_s = time.monotonic()
        progress = self._progress()
        while not is_there():
            self._changed.wait(min(1.0, timeout_s / _CHECKS_PER_TIMEOUT))
            if self._failure is not None:
                raise self._failure
            now_s = time.monotonic()
            if progress != self._progress():
                changed_s, progress = now_s, self._progress()
            if now_s - changed_s > 2 * timeout_s:
                raise StalledError(
                    f"the parameter server {what} for {2 * timeout_s:g} s; if they are slow, raise `timeout`"
                )
            for number, worker in self._workers.items():
                if worker.since_s is not None and now_s - worker.since_s > timeout_s:
                    self._leave_out(number, worker)

    def _leave_out(self, number: int, worker: _Worker) -> None:
        """Close the connection of a worker that stalls; its thread then gives its work item away."""
        worker.since_s = None
        worker.channel.close()
        self._warn(
            f"worker {number} has sent no gradient for {self._document.timeout_s:g} s and is left out; if it is only "
            "slow, raise `timeout`"
        )

    def _progress(self) -> tuple[int, int]:
        return len(self._joined), sum(self.counts.sent_bytes.values())

    def _join(self, channel: Channel) -> int | None:
        """Let a worker in, and give it the weights that are not trained; None: it is refused."""
        header = channel.receive()
        why = self._why_refused(header)
        if why:
            channel.send({"kind": "refused", "why": why})
            return None
        number = int(header["worker"])
        with self._changed:
            before = self._workers.get(number)
            if before is not None:
                before.channel.close()
                self._forget(number)
            if number in self._joined:
                self._warn(f"worker {number} is back")
            self._workers[number] = _Worker(channel)
            self._joined.add(number)
            if self._segment is not None:
                self._segment.work.join(number)
            frozen = FlatTensors(frozen_of(self._stage))
            frozen.put(frozen_of(self._stage))
            self._changed.notify_all()
        channel.send({"kind": "joined"}, frozen.memory)
        return number

    def _why_refused(self, header: Header) -> str:
        number = header.get("worker")
        if header["kind"] != "join" or number not in range(self._document.replicas):
            return "a connection did not begin as a worker's"
        if header["layout"] != self._layout:
            return f"worker {number} has other weights than the server: the model must be the same in all processes"
        if header["rows"] != self._rows:
            return f"{self._run.data.name}: worker {number} has other rows than the server; they must be the same"
        return ""

    def _wait_for_work(self, worker: int, channel: Channel, weights: FlatTensors) -> Header | None:
        """The worker's next work item, and the weights for it; None: the run is over."""
        if channel.receive()["kind"] != "work":
            raise ConnectionLostError("a worker did not ask for work")
        with self._changed:
            while not self._over:
                current, segment = self._workers.get(worker), self._segment
                if current is None or current.channel is not channel:
                    raise ConnectionLostError("another process is this worker now")
                item = segment.work.next_item(worker) if segment is not None else None
                if segment is not None and item is not None:
                    current.since_s = time.monotonic()
                    weights.put(self._stage.versions.trained)
                    self.counts.pulled_bytes += weights.memory.nbytes
                    buffers = bool(self._stage.buffers) and not current.has_buffers
                    place = {"epoch": segment.epoch, "iteration": item.iteration, "number": item.number}
                    return {"kind": "item", **place, "buffers": buffers}
                self._changed.wait()
        return None

    def _send_buffers(self, worker: int, channel: Channel) -> None:
        with self._changed:
            current = self._workers.get(worker)
            if current is None or current.has_buffers or not self._stage.buffers:
                return
            current.has_buffers = True
            buffers = FlatTensors(self._stage.buffers)
            buffers.put(self._stage.buffers)
        channel.send({"kind": "buffers"}, buffers.memory)

    def _take(self, worker: int, channel: Channel, gradient: FlatTensors) -> None:
        """Receive a work item's gradient; it counts if the work item is still this worker's."""
        header = channel.receive()
        channel.receive_into(gradient.memory, header)
        buffers = FlatTensors(self._stage.buffers)
        if buffers.views:
            channel.receive_into(buffers.memory, channel.receive())
        with self._changed:
            current, segment = self._workers.get(worker), self._segment
            if current is None or current.channel is not channel or segment is None:
                raise ConnectionLostError("another process is this worker now")
            current.since_s = None
            self.counts.sent_bytes[worker] = self.counts.sent_bytes.get(worker, 0) + header["sent_bytes"]
            self.counts.computed_s += header["computed_s"]
            item = WorkItem(header["iteration"], header["number"])
            if segment.work.complete(worker, item):
                current.buffers = buffers.views
                segment.shares.append(header["loss"])
                update = len(segment.losses)
                if self._weights.add(item.number, gradient.without(header.get("absent", ())), segment.settings[update]):
                    segment.losses.append(math.fsum(segment.shares))
                    segment.shares.clear()
                    if not math.isfinite(segment.losses[-1]):
                        check_finite_losses([*[0.0] * segment.first, *segment.losses], segment.epoch)
            self._changed.notify_all()

    def _leave(self, worker: int, channel: Channel) -> None:
        with self._changed:
            current = self._workers.get(worker)
            if current is not None and current.channel is channel:
                if not self._over:
                    self._warn(f"lost worker {worker}; its rows go to the others")
                self._forget(worker)
            self._changed.notify_all()

    def _forget(self, worker: int) -> None:
        del self._workers[worker]
        if self._segment is not None:
            self._segment.work.leave(worker)

    def _average_buffers(self) -> None:
        """Average the workers' running statistics, as replicas do."""
        sent = [worker.buffers for _, worker in sorted(self._workers.items()) if worker.buffers]
        if sent:
            buffers = self._stage.buffers
            for name, value in averaged(sent, buffers).items():
                buffers[name].copy_(value)
