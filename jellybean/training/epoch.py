"""One epoch on this rank: iterations on training rows, then the test rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.training.checkpoints.finite import not_finite
from jellybean.training.checkpoints.states import collect_state
from jellybean.training.data.agreement import check_same_rows
from jellybean.training.data.feed import IterationFeed
from jellybean.training.data.prefetch import PrefetchedFeed, Read, feed_reads
from jellybean.training.data.rows import MicrobatchReader, ReadPlan
from jellybean.training.errors import TrainingError
from jellybean.training.evaluation import Evaluation, evaluate
from jellybean.training.optimization.lr_schedules import LrSchedule
from jellybean.training.processes.ranks import gather_from_ranks
from jellybean.training.setup import RankRun
from jellybean.training.stages.buffer_copies import merge_over
from jellybean.training.stages.interpreter import ActionLog, MicrobatchFeed
from jellybean_solver.pipeline import Timeline, bubble_fraction

_WHEN_NOT_FINITE = (
    "lower optimizer.lr, set clip, or look for nan in the data; earlier checkpoints are intact, and the same command "
    "resumes from the newest"
)


@dataclass(frozen=True)
class EpochResult:
    """Results of one epoch.

    `losses`: per update. `accuracy`: percent of the test rows; None if targets are no classes. `samples`: training
    rows. `idle`, `predicted_idle`: bubble fractions, measured in the epoch's last iteration (0 if a resumed epoch had
    no update left) and simulated; with parameter servers the share of the epoch in which workers wait, and None.
    `left_s`: estimated seconds until the end of the run. `metrics`: on the test rows, by name. `sync_bytes`: bytes that
    each process has sent to sum gradients; None if `sync` does not count them. `tensor_bytes`: those for split layers.
    """

    number: int
    samples: int
    losses: list[float]
    accuracy: float | None
    test_loss: float
    samples_per_s: float
    idle: float
    predicted_idle: float | None
    left_s: float
    metrics: dict[str, float | None] = field(default_factory=dict)
    sync_bytes: list[int] | None = None
    tensor_bytes: list[int] | None = None

    @property
    def loss(self) -> float:
        """Mean loss over the updates."""
        return sum(self.losses) / len(self.losses)


def epoch_json(epoch: EpochResult) -> dict[str, Any]:
    """The epoch as a JSON record, for --json and the run's log file."""
    return {**asdict(epoch), "loss": epoch.loss}


@dataclass(frozen=True)
class EpochStart:
    """Where training begins: epoch `number`, counted from 0, after updates with these `losses`."""

    number: int
    losses: Sequence[float] = ()


SaveUpdates = Callable[[list[float]], None]  # losses of the epoch's updates so far


def run_epoch(
    run: RankRun, document: TrainingDocument, start: EpochStart, lr: LrSchedule, save: SaveUpdates
) -> EpochResult:
    """Train to the end of an epoch and measure the test rows. `save` is called within it. A collective call."""
    sent_before, group = run.updates.sent_bytes, run.split.weights.group
    shared_before = group.sent_bytes if run.rank.tensor > 1 else None
    began, uses = time.perf_counter(), _uses(run)
    first = len(start.losses) if run.schedule.flushes else 0
    reader = run.data.train.read(ReadPlan(run.sampler, start.number, first, run.rank.worker, uses.__getitem__))
    try:
        if any(uses.values()):
            with run.rank.busy("reading the first rows"):
                reader.prepare()
        losses, log = _run_iterations(run, document, start, lr, reader, save)
        took_s = time.perf_counter() - began
        shared = group.sent_bytes
    finally:
        reader.close()
    measured = measure_test_rows(run, start.number)
    return EpochResult(
        start.number + 1,
        run.sampler.samples,
        losses,
        measured.metrics.get("accuracy"),
        measured.loss,
        sum(map(run.sampler.rows, range(first, run.sampler.iterations))) / took_s,
        _idle(run, log),
        run.choice.bubble,
        left_s=0.0,  # placeholder; the caller sets it
        metrics=measured.metrics,
        sync_bytes=_bytes_by_rank(run.updates.sent_bytes, sent_before),
        tensor_bytes=_bytes_by_rank(shared, shared_before),
    )


def _run_iterations(
    run: RankRun,
    document: TrainingDocument,
    start: EpochStart,
    lr: LrSchedule,
    reader: MicrobatchReader,
    save: SaveUpdates,
) -> tuple[list[float], ActionLog]:
    """(losses of all updates of the epoch, log of the last iteration)."""
    sampler, rank, every = run.sampler, run.rank, document.checkpoint.updates
    per_iteration = sampler.updates // sampler.iterations
    period = sampler.period or sampler.run
    own = torch.zeros(sampler.updates, dtype=torch.float64)  # this rank's part of the losses
    if rank.is_first:
        own[: len(start.losses)] = torch.tensor(start.losses, dtype=torch.float64)
    log = ActionLog()
    for iteration in range(len(start.losses) // per_iteration, sampler.iterations):
        before = start.number * sampler.updates + iteration * per_iteration
        feed = IterationFeed(reader, iteration, torch.device("cpu"), before, rank.worker, document.seed)
        last = iteration + 1 == sampler.iterations
        if last:
            dist.barrier()
        log = run.interpreter.run(_on_device(feed, run), lr.settings(before, per_iteration))
        for microbatch, loss in log.losses.items() if rank.has_own_rows else ():
            own[iteration * per_iteration + microbatch // period] += float(loss) * feed.factor(microbatch)
        if every is not None and (iteration + 1) % every == 0 and not last:
            save(_end_updates(run, start, own[: iteration + 1], reader))
    return _end_updates(run, start, own, reader), log


def _end_updates(run: RankRun, start: EpochStart, own: torch.Tensor, reader: MicrobatchReader) -> list[float]:
    """Losses of all ranks, after which the run can be saved: statistics are averaged, and everything is finite.

    TrainingError if a loss is not finite, or anything that a checkpoint would hold, as the last update comes after its
    loss; or if ranks read different rows.
    """
    losses = own.clone()
    dist.all_reduce(losses)
    check_same_rows([reader.digest()], run.data.name, f"in epoch {start.number + 1}")
    check_finite_losses([float(loss) for loss in losses], start.number)
    average_statistics(run)
    check_finite_state(run, start.number, len(losses))
    return [float(loss) for loss in losses]


def check_finite_losses(losses: Sequence[float], epoch: int) -> None:
    """TrainingError if a loss of the first updates of an epoch (from 0) is not finite."""
    wrong = next((update for update, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if wrong is not None:
        raise TrainingError(
            f"the loss is {losses[wrong]} at update {wrong + 1} of epoch {epoch + 1}: {_WHEN_NOT_FINITE}"
        )


def check_finite_state(run: RankRun, epoch: int, updates: int) -> None:
    """TrainingError if anything that a checkpoint would hold is not finite on a rank. A collective call."""
    broken = list(filter(None, gather_from_ranks(not_finite(collect_state(run.held, run.updates)))))
    if broken:
        raise TrainingError(
            f"{broken[0]} is not finite after update {updates} of epoch {epoch + 1}: {_WHEN_NOT_FINITE}"
        )


def measure_test_rows(run: RankRun, epoch: int) -> Evaluation:
    """Loss and metrics on the test rows. TrainingError if the loss is not finite. A collective call."""
    with run.rank.busy("measuring the test rows"):
        measured = evaluate(run)
    if not math.isfinite(measured.loss):
        raise TrainingError(f"the test loss is {measured.loss} after epoch {epoch + 1}: {_WHEN_NOT_FINITE}")
    return measured


def _on_device(feed: IterationFeed, run: RankRun) -> MicrobatchFeed:
    return feed if run.rank.device.type == "cpu" else PrefetchedFeed(feed, _reads(run), run.rank.streams)


def _reads(run: RankRun) -> list[Read]:
    return feed_reads(run.schedule, run.rank.device_index, run.held)


def _uses(run: RankRun) -> Counter[int]:
    """How often this rank reads each micro-batch of an iteration."""
    return Counter(read.microbatch for read in _reads(run) if read.arguments != ())


def _idle(run: RankRun, log: ActionLog) -> float:
    """Measured bubble fraction of the first replica; 0 if nothing ran, which is so on all ranks or on none.

    Assumes that its ranks share a clock, as on one machine.
    """
    starts_s, ends_s = log.times_s()
    if not starts_s:
        return 0.0
    first = starts_s[0]
    own = ([s - first for s in starts_s], [s - first for s in ends_s], first)
    tensor = run.rank.tensor
    ranks = gather_from_ranks(own)[: run.schedule.devices * tensor : tensor]
    origin = min(one[2] for one in ranks)
    starts = tuple(tuple(s + one[2] - origin for s in one[0]) for one in ranks)
    ends = tuple(tuple(s + one[2] - origin for s in one[1]) for one in ranks)
    return bubble_fraction(Timeline(run.schedule, starts, ends))


def _bytes_by_rank(sent_bytes: float | None, before: float | None) -> list[int] | None:
    """Bytes that each rank has sent since it had sent `before`; None if they are not counted. A collective call."""
    if sent_bytes is None or before is None:
        return None
    sent = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    sent[dist.get_rank()] = round(sent_bytes - before)
    dist.all_reduce(sent)
    return [int(one) for one in sent]


def average_statistics(run: RankRun) -> None:
    """Average the buffers (running means) over the copies of each stage, which processed different micro-batches.

    Buffers of whole numbers, such as counters of batches, have the changes of all copies.
    """
    for (number, _), stage in sorted(run.held.items()):
        group = run.copies.get(number)
        if group is not None:
            for name, value in sorted(stage.buffers.items()):
                merge_over(group, value, stage.settled.get(name))
            stage.settle_buffers()
