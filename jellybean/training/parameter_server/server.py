"""The process of the first server: listens for workers, runs the epochs through them, measures the test rows."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from jellybean.documents.training import TrainingDocument
from jellybean.training.epoch import EpochResult, EpochStart, SaveUpdates, check_finite_state, measure_test_rows
from jellybean.training.optimization.lr_schedules import LrSchedule
from jellybean.training.parameter_server.channel import Channel, ConnectionLostError, accept
from jellybean.training.parameter_server.coordinator import Coordinator, Warn
from jellybean.training.parameter_server.rendezvous import STORE, Rendezvous
from jellybean.training.parameter_server.roles import Role, divide_epoch, document_alone
from jellybean.training.processes.ranks import process_group
from jellybean.training.setup import RankRun, set_up_run

_END_S = 10.0  # for which the end of a run waits for workers of our launcher, which ends those that are left


class Listener:
    """Accepts connections in a thread, and serves each that has the key in one of its own."""

    def __init__(self, address: str, key: bytes, serve: Callable[[Channel], None]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self._key, self._serve = key, serve
        threading.Thread(target=self._accept, name="parameter server", daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which it listens; the system chooses it."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._begin, args=(connected,), daemon=True).start()

    def _begin(self, connected: socket.socket) -> None:
        with suppress(ConnectionLostError):  # a stranger
            self._serve(accept(connected, self._key))


@dataclass
class ServedEpochs:
    """Runs epochs through the workers (`RunEpoch`). Workers are let in when the first one begins."""

    coordinator: Coordinator
    open: Callable[[], None]

    def __call__(
        self, run: RankRun, document: TrainingDocument, start: EpochStart, lr: LrSchedule, save: SaveUpdates
    ) -> EpochResult:
        """Train to the end of an epoch and measure the test rows. `save` is called within it."""
        self.open()
        self.coordinator.wait_for_workers()
        counts = self.coordinator.counts
        sent_before, pulled_before, computed_before = dict(counts.sent_bytes), counts.pulled_bytes, counts.computed_s
        began = time.perf_counter()
        losses = list(start.losses)
        first = len(losses)
        for iterations in _segments(first, run.sampler.iterations, document.checkpoint.updates):
            settings = lr.settings(start.number * run.sampler.updates + iterations.start, len(iterations))
            losses += self.coordinator.run_segment(start.number, iterations, settings)
            check_finite_state(run, start.number, len(losses))
            if len(losses) < run.sampler.iterations:
                save(losses)
        took_s = time.perf_counter() - began
        measured = measure_test_rows(run, start.number)
        sent = [counts.sent_bytes.get(one, 0) - sent_before.get(one, 0) for one in range(document.replicas)]
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
            sync_bytes=[*sent, counts.pulled_bytes - pulled_before],
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
    with process_group(alone, alone=True) as rank:
        run = set_up_run(alone, directory, rank)
        run = replace(run, sampler=divide_epoch(document, run.data))
        coordinator = Coordinator(run, document, warn)
        listeners: list[Listener] = []

        def let_in() -> None:
            if not listeners:
                meeting = Rendezvous(document.timeout_s)
                listeners.append(Listener(document.sync.address, meeting.make_key(), coordinator.serve))
                meeting.publish(role.number, (document.sync.address, listeners[0].port))

        try:
            yield run, ServedEpochs(coordinator, let_in)
            let_in()  # workers of a run without an epoch left wait for an address
            coordinator.end(_END_S if STORE in os.environ else document.timeout_s)
        finally:
            for listener in listeners:
                listener.close()
