"""The process of the first server: listens for workers, runs the epochs through them, measures the test rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from jellybean.documents.training import TrainingDocument
from jellybean.training.epoch import EpochResult, EpochStart, SaveUpdates, check_finite_state, measure_test_rows
from jellybean.training.optimization.lr_schedules import LrSchedule
from jellybean.training.parameter_server.coordinator import Coordinator, Warn
from jellybean.training.parameter_server.listener import Listener
from jellybean.training.parameter_server.rendezvous import Rendezvous
from jellybean.training.parameter_server.roles import Role, divide_epoch, document_alone
from jellybean.training.parameter_server.server_group import ServerGroup
from jellybean.training.processes.environment import STORE
from jellybean.training.processes.ranks import process_group
from jellybean.training.setup import RankRun, set_up_run

_END_S = 10.0  # for which the end of a run waits for workers of our launcher, which ends those that are left


@dataclass
class ServedEpochs:
    """Runs epochs through the workers (`RunEpoch`). Workers are let in when the first one begins."""

    coordinator: Coordinator
    group: ServerGroup
    open: Callable[[], None]

    def __call__(
        self, run: RankRun, document: TrainingDocument, start: EpochStart, lr: LrSchedule, save: SaveUpdates
    ) -> EpochResult:
        """Train to the end of an epoch and measure the test rows. `save` is called within it."""
        self.open()
        self.coordinator.wait_for_workers()
        counts = self.coordinator.counts
        sent_before, computed_before = dict(counts.sent_bytes), counts.computed_s
        pulled_before = [counts.pulled_bytes, *self.group.pulled_bytes]
        began = time.perf_counter()
        losses = list(start.losses)
        first = len(losses)
        for iterations in _segments(first, run.sampler.iterations, document.checkpoint.updates):
            settings = lr.settings(start.number * run.sampler.updates + iterations.start, len(iterations))
            self.group.begin_segment(start.number, iterations, settings)
            losses += self.coordinator.run_segment(start.number, iterations, settings)
            self.group.collect()
            check_finite_state(run, start.number, len(losses))
            if len(losses) < run.sampler.iterations:
                save(losses)
        took_s = time.perf_counter() - began
        measured = measure_test_rows(run, start.number)
        sent = [counts.sent_bytes.get(one, 0) - sent_before.get(one, 0) for one in range(document.replicas)]
        pulled_now = [counts.pulled_bytes, *self.group.pulled_bytes]
        pulled = [now - before for now, before in zip(pulled_now, pulled_before, strict=True)]
        return EpochResult(
            start.number + 1,
            run.sampler.samples,
            losses,
            measured.metrics.get("accuracy"),
            measured.loss,
            sum(map(run.sampler.rows, range(first, run.sampler.iterations))) / took_s,
            max(0.0, 1.0 - (counts.computed_s - computed_before) / (took_s * document.replicas)),
            predicted_idle=None,
            left_s=0.0,  # placeholder; the caller sets it
            metrics=measured.metrics,
            sync_bytes=[*sent, *pulled],
        )


def _segments(first: int, end: int, every: int | None) -> Sequence[range]:
    """The iterations of an epoch from `first` on, ending where a checkpoint is due."""
    stops = [*range((first // every + 1) * every, end, every), end] if every is not None else [end]
    return [range(begin, stop) for begin, stop in zip([first, *stops], stops, strict=False) if begin < stop]


@contextmanager
def served_run(
    document: TrainingDocument, directory: Path, role: Role, warn: Warn
) -> Iterator[tuple[RankRun, ServedEpochs]]:
    """Context of the first server: its run, which measures and saves, and what trains an epoch by the workers."""
    alone = document_alone(document, role)
    with process_group(alone, workers=document.replicas) as rank:
        run = set_up_run(alone, directory, rank)
        run = replace(run, sampler=divide_epoch(document, run.data))
        coordinator = Coordinator(run, document, warn)
        group = ServerGroup(run, document)
        listeners: list[Listener] = []

        def let_in() -> None:
            if not listeners:
                meeting = Rendezvous(document)
                listeners.append(Listener(document.sync.address, meeting.make_key(), coordinator.serve))
                meeting.publish(role.number, (document.sync.address, listeners[0].port))
                group.connect(meeting)

        try:
            yield run, ServedEpochs(coordinator, group, let_in)
            let_in()  # workers of a run without an epoch left wait for an address
            coordinator.end(_END_S if STORE in os.environ else document.timeout_s)
            group.end()
        finally:
            group.close()
            for listener in listeners:
                listener.close()
