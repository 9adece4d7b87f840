"""Progress of a run: a line per epoch on the terminal, events for TensorBoard, JSON lines for programs."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.run import SyncSpec
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.early_stop import Metrics
from jellybean.training.epoch import EpochResult, epoch_json
from jellybean.training.setup import RankRun
from jellybean.training.train import TrainedRun
from jellybean_agent import describe_error

_NOTABLE_IDLE = 0.3  # print a note if the measured idle fraction exceeds the predicted one by more
_NOTABLE_LOAD = 1.25  # load per core above which idle time is put down to other programs


def line(epoch: EpochResult, epochs: int) -> str:
    """Terminal line of an epoch."""
    predicted = f" (predicted {epoch.predicted_idle:.0%})" if epoch.predicted_idle is not None else ""
    return (
        f"epoch {epoch.number}/{epochs}: {measured(epoch)}, {epoch.samples_per_s:,.0f} samples/s, "
        f"idle {epoch.idle:.0%}{predicted}, {epoch.left_s:.0f} s left"
    )


def measured(epoch: EpochResult) -> str:
    """Losses and metrics: `training loss 0.0571, test loss 0.1023, accuracy 97.50, perplexity 3.142`."""
    return f"training loss {epoch.loss:.4f}, {_on_test_rows({'loss': epoch.test_loss, **epoch.metrics})}"


def _on_test_rows(metrics: Metrics) -> str:
    """The values that are defined; `loss` is the test loss."""
    names, digits = {"loss": "test loss"}, {"loss": ".4f", "accuracy": ".2f"}
    metrics = {"loss": metrics.get("loss"), **metrics}  # the loss first
    return ", ".join(
        f"{names.get(name, name)} {value:{digits.get(name, '.4g')}}"
        for name, value in metrics.items()
        if value is not None
    )


def summary(trained: TrainedRun, model: Path) -> str:
    """Terminal line after the last epoch, with the figures of the weights in `model`, the trained model's file."""
    epochs = trained.epochs
    if not epochs:
        return f"all epochs are done; the model is {model}; for more: --set epochs=N, from scratch: --fresh"
    done = f"trained {_count(len(epochs), 'epoch')}{_numbers(epochs)}"
    if epochs[-1].number == trained.model_epoch:
        return f"{done}: {measured(epochs[-1])}; the model is {model}"
    return f"{done}; the model of epoch {trained.model_epoch} ({_on_test_rows(trained.model_metrics)}) is {model}"


def _numbers(epochs: Sequence[EpochResult]) -> str:
    """Which epochs these are; empty if they are the first ones."""
    first, last = epochs[0].number, epochs[-1].number
    if first == 1:
        return ""
    return f" ({first})" if first == last else f" ({first} to {last})"


def headline(run: RankRun, document: TrainingDocument) -> str:
    """Terminal lines before the first epoch: what was chosen; schedule, stages, updates, predicted idle time."""
    if document.sync.has_servers:
        return _headline_of_servers(run, document)
    note = f"{run.note}\n" if run.note else ""
    replicas = f" x {document.replicas}" if document.replicas > 1 else ""
    each = "per update" + (" and replica" if replicas else "") if run.schedule.flushes else "without a break"
    stages = f"{_count(run.schedule.stages, 'stage')}{_replicas(run)}"
    more = f"\n{run.split.note}" if run.split.note else ""
    return (
        f"{note}{run.choice.name}: {stages} on {_count(document.devices, 'device')}{replicas}{_split(run)}, "
        f"{_count(run.sampler.updates, 'update')} an epoch, {_count(run.sampler.run, 'micro-batch', 'es')} {each}, "
        f"predicted idle {run.choice.bubble:.0%}{more}"
    )


def _split(run: RankRun) -> str:
    """Processes that share layers, and how many layers are split in each way; empty if none are."""
    if run.rank.tensor == 1:
        return ""
    ways = Counter(way.value for way in run.split.layers.values())
    layers = ", ".join(f"{number:,} by {way}" for way, number in ways.items())
    return f" x {_count(run.rank.tensor, 'process', 'es')} (layers: {layers})"


def _replicas(run: RankRun) -> str:
    """Replicas of each stage in one pipeline, such as (2-1); empty if it has one of each."""
    if run.schedule.chunks > 1 or run.schedule.devices == run.schedule.stages:
        return ""
    return f" ({'-'.join(str(run.schedule.copies_of(stage)) for stage in range(run.schedule.stages))})"


def _headline_of_servers(run: RankRun, document: TrainingDocument) -> str:
    sync = document.sync
    return (
        f"{sync.way} ({sync.mode}{staleness_bound(sync)}): {_count(document.replicas, 'worker')}, "
        f"{_count(sync.servers, 'server')}, {_count(run.sampler.updates, 'update')} an epoch"
    )


def staleness_bound(sync: SyncSpec) -> str:
    """The rule by which workers wait for each other; empty without one."""
    if sync.staleness is None:
        return ""
    return f"; a worker begins no update while it has completed more than {sync.staleness} more than the slowest"


def batch_note(sampler: MicrobatchSampler) -> str:
    """That a batch is larger than the training data, or that each epoch leaves rows out; otherwise empty."""
    if sampler.left_out:
        return _left_note(sampler)
    if sampler.period is not None or sampler.batch <= sampler.samples:
        return ""
    return (
        f"batch is {sampler.batch:,} and there are {sampler.samples:,} training rows: each epoch is one update of them"
    )


def _left_note(sampler: MicrobatchSampler) -> str:
    left = sampler.left_out
    rows = f"{_count(left, 'row')} of {sampler.samples:,}, others in each epoch, {'are' if left > 1 else 'is'} left out"
    if sampler.period is not None:
        return f"{rows}: an update takes {sampler.period * sampler.replicas * sampler.size:,}, and none takes fewer"
    return (
        f"{rows}: the last update would have fewer rows than its {sampler.parts} micro-batches; take fewer "
        "`microbatches`, or another `batch`"
    )


def idle_note(epoch: EpochResult, load: float, cores: int) -> str:
    """Why devices idle far more than predicted; empty if they do not, or if other programs take their cores.

    `load`: number of threads that run or wait for one of the `cores` of this machine.
    """
    if epoch.predicted_idle is None or epoch.idle - epoch.predicted_idle <= _NOTABLE_IDLE:
        return ""
    if load > _NOTABLE_LOAD * cores:
        return ""
    return (
        f"devices wait for {epoch.idle:.0%} of the time, and {epoch.predicted_idle:.0%} is predicted: the prediction "
        "has the times of layers and messages, and leaves out up to 1 ms of other work per micro-batch and stage; a "
        "larger `batch` or fewer `microbatches` reduce its share"
    )


def _count(number: int, name: str, plural: str = "s") -> str:
    return f"{number:,} {name}{plural if number != 1 else ''}"


class TrainingLogs:
    """Log files in `folder`: TensorBoard events, whose steps are samples, and epochs.jsonl.

    A resumed run first drops logged epochs that it repeats. A write error is reported once and does not end training.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder, self._warn = folder, warn
        self._events: BinaryIO | None = None
        self._failed = False

    def add(self, epoch: EpochResult) -> None:
        """Log one epoch; flushed to disk on return."""
        if self._failed:
            return
        try:
            if self._events is None:
                self._events = self._open(epoch)
            _write(self._events, *_events_of(epoch))
            with self._lines.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(epoch_json(epoch)) + "\n")
        except OSError as error:
            self._failed = True
            reason = describe_error(error, file=self._folder)
            self._warn(f"{self._folder} cannot be written: {reason}; training goes on without these logs")

    def close(self) -> None:
        """Close the files."""
        if self._events is not None:
            with suppress(OSError):  # write errors were reported
                self._events.close()

    @property
    def _lines(self) -> Path:
        return self._folder / "epochs.jsonl"

    def _open(self, epoch: EpochResult) -> BinaryIO:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._folder.mkdir(parents=True, exist_ok=True)
        _drop_from(self._lines, epoch.number)
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        events = (self._folder / name).open("wb")
        first = 1 + (epoch.number - 1) * epoch.samples  # TensorBoard discards what earlier runs logged from here on
        begins = Event(step=first, session_log=SessionLog(status=SessionLog.START))
        _write(events, Event(wall_time=time.time(), file_version="brain.Event:2"), begins)
        return events


def _drop_from(path: Path, number: int) -> None:
    """Delete from a log file the lines of epoch `number` and later ones, and a truncated last line."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if _number(line) < number]
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(kept), encoding="utf-8")
    partial.replace(path)


def _number(text: str) -> float:
    try:
        return float(json.loads(text)["number"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _events_of(epoch: EpochResult) -> list[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    now, updates = time.time(), len(epoch.losses)
    ends = {
        "accuracy": epoch.accuracy,
        **epoch.metrics,
        "test loss": epoch.test_loss,
        "samples per s": epoch.samples_per_s,
        "idle/measured": epoch.idle,
        "idle/predicted": epoch.predicted_idle,
    }
    values_at = [(epoch.number - 1 + (i + 1) / updates, {"loss": loss}) for i, loss in enumerate(epoch.losses)]
    values_at.append((epoch.number, {tag: value for tag, value in ends.items() if value is not None}))
    return [
        Event(
            wall_time=now,
            step=round(epochs * epoch.samples),
            summary=Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]),
        )
        for epochs, values in values_at
    ]


def _write(stream: BinaryIO, *events: Any) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    writer = RecordWriter(stream)
    for event in events:
        writer.write(event.SerializeToString())
    stream.flush()
