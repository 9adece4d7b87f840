"""Simulated plans with figures that serving has no use for: runs, waits and queues of each worker, use of links."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jellybean.planning import brains
from jellybean.planning.simulation import WARMUP_SHARE
from jellybean_solver import Arrivals, MakeTimes, Plan, SimulationResult, SimulationSettings, simulate
from jellybean_solver.simulation.interfaces import Worker
from jellybean_solver.simulation.result import Window


@dataclass
class OperatorFigures:
    """Runs that started in the window, and their requests (children counted singly)."""

    runs: int = 0
    requests: int = 0
    waited_s: float = 0.0
    served_s: float = 0.0

    @property
    def wait_mean_s(self) -> float:
        """Mean time of requests between ready and start."""
        return self.waited_s / self.requests if self.requests else math.nan

    @property
    def service_mean_s(self) -> float:
        """Mean time of runs."""
        return self.served_s / self.runs if self.runs else math.nan


@dataclass
class QueueFigures:
    """Requests waiting at one worker. `ready`: number of each waiting item -> time it became ready."""

    window: Window
    ready: dict[int, float] = field(default_factory=dict)
    items: int = 0
    longest: int = 0
    area: float = 0.0
    since: float = 0.0

    @property
    def mean(self) -> float:
        """Mean length over the window, once `changed` was called at its end."""
        return self.area / self.window.length_s

    def changed(self, now: float, added: int, started: Sequence[int]) -> float:
        """`added` items became ready at `now`, then the items `started` began to run; returns their total wait."""
        self.area += len(self.ready) * self.window.overlap(self.since, now)
        self.since = now
        self.ready.update((number, now) for number in range(self.items, self.items + added))
        self.items += added
        waited = sum(now - self.ready.pop(number) for number in started)
        if len(self.ready) > self.longest and self.window.holds(now):
            self.longest = len(self.ready)
        return waited


@dataclass
class _Watched:
    """A worker whose queue and runs are recorded."""

    worker: Any
    queue: QueueFigures
    operators: Mapping[str, OperatorFigures]
    running: tuple[str, float] | None = None

    def received(self, message: Any, now: float, *, more: bool = False) -> Sequence[Any]:
        return self._noted(lambda: self.worker.received(message, now, more=more), now)

    def start(self, now: float) -> Sequence[Any]:
        return self._noted(lambda: self.worker.start(now), now)

    def completed(self, run: int, outputs: Any, now: float) -> Sequence[Any]:
        if self.running is not None:
            operator, started_s = self.running
            if self.queue.window.holds(started_s):
                self.operators[operator].served_s += now - started_s
        return self._noted(lambda: self.worker.completed(run, outputs, now), now)

    def due(self, now: float) -> Sequence[Any]:
        return self._noted(lambda: self.worker.due(now), now)

    def _noted(self, call: Callable[[], Sequence[Any]], now: float) -> Sequence[Any]:
        before = self.worker.queued
        instructions = call()
        run = next((one for one in instructions if one.kind == "run"), None)
        numbers = [item.number for item in run.items] if run is not None else []
        waited_s = self.queue.changed(now, self.worker.queued - before + len(numbers), numbers)
        if run is not None:
            self.running = run.operator, now
            if self.queue.window.holds(now):
                figures = self.operators[run.operator]
                figures.runs += 1
                figures.requests += len(numbers)
                figures.waited_s += waited_s
        return instructions


@dataclass
class Measured:
    """A simulation with its `result`; also an observer. `queues` by worker, site by site (`edge-2/box-1`)."""

    window: Window
    operators: dict[str, OperatorFigures] = field(default_factory=lambda: defaultdict(OperatorFigures))
    queues: dict[str, QueueFigures] = field(default_factory=dict)
    busy_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # worker or link -> in all sites
    answered_at: dict[float, float] = field(default_factory=dict)  # arrival -> answer
    latency_max_s: float = 0.0
    result: SimulationResult = field(init=False)

    def arrived(self, now: float, workflow: str) -> None:
        pass

    def answered(self, arrived_s: float, now: float, workflow: str) -> None:
        self.answered_at[arrived_s] = now
        if self.window.holds(arrived_s):
            self.latency_max_s = max(self.latency_max_s, now - arrived_s)

    def busy(self, place: str, begin_s: float, end_s: float) -> None:
        self.busy_s[place] += self.window.overlap(begin_s, end_s)

    def utilisation(self, place: str, sites: int = 1) -> float:
        """Busy share of the window of a worker or link, mean over its sites."""
        return self.busy_s[place] / self.window.length_s / sites

    def watched(self, workers: Mapping[str, Any]) -> Mapping[str, Worker]:
        self.queues = {name: QueueFigures(self.window) for name in workers}
        return {name: _Watched(worker, self.queues[name], self.operators) for name, worker in workers.items()}


def measured(
    plan: Plan,
    *,
    duration_s: float,
    warmup_s: float | None = None,
    seed: int = 0,
    arrivals: Arrivals | None = None,
    times: MakeTimes | None = None,
    make_workers: Callable[[Plan], Mapping[str, Any]] = brains,
) -> Measured:
    """Simulate as `simulate_plan` does, and measure workers, queues and links too."""
    warmup_s = WARMUP_SHARE * duration_s if warmup_s is None else warmup_s
    settings = SimulationSettings(duration_s, seed, warmup_s, arrivals=arrivals)
    found = Measured(settings.window)
    found.result = simulate(plan, lambda one: found.watched(make_workers(one)), settings, times=times, observer=found)
    for queue in found.queues.values():
        queue.changed(max(queue.since, settings.window.end_s), 0, ())
    return found
