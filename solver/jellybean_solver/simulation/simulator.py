"""Discrete-event simulation of a plan in virtual time, deterministic by its seed.

Workers implement a protocol (interfaces.py), so that the state machine that serves in production is also simulated.
This module adds the rest: arrivals, routes, links, service times by batch size, and numbers of fan-out children.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from jellybean_solver.errors import SolverError
from jellybean_solver.model.distributions import Sampler, child_count, service_sampler
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.route_drawing import RouteDrawer, own_routes
from jellybean_solver.model.sites import most_sites, site_of, worker_at
from jellybean_solver.model.spreading import GOLDEN, child_worker, groups_by_worker, round_robin_offset
from jellybean_solver.model.stream_assignment import StreamDrawer, request_drawer
from jellybean_solver.model.streams import RequestStream, arrival_times, request_streams
from jellybean_solver.model.workflow import Arrivals, EdgeKind
from jellybean_solver.outcome import Clock
from jellybean_solver.simulation.answers import Answers, Path
from jellybean_solver.simulation.interfaces import (
    GATEWAY,
    MakeTimes,
    MakeWorkers,
    Observer,
    RunOutputs,
    SourceMessage,
    StopSimulationError,
    Worker,
)
from jellybean_solver.simulation.links import Links
from jellybean_solver.simulation.result import RequestSums, SimulationResult, Window, result_of
from jellybean_solver.time_limit import work_limit

# Between two readings of the clock: some 5 ms. Fewer cost more than the events; more end later than the time limit.
EVENTS_BETWEEN_CHECKS = 256

_Burst = dict[tuple[float, str], list[Any]]  # (time of arrival, worker) -> messages, in the order sent
# GOLDEN: also the phase step between streams, so that periodic streams of commensurable rates do not coincide.


@dataclass(slots=True)
class _Station:
    """A worker in one site. `running`: operator and number of items of the current run."""

    name: str  # in the plan
    tier: str
    site: int
    worker: Worker
    samplers: Mapping[str, Sampler]
    variants: Mapping[str, str]  # operator -> the variant that it runs
    running: tuple[str, int] = ("", 0)
    busy_s: float = 0.0


@dataclass(slots=True)
class _Open:
    """A request that is not answered yet."""

    arrived_s: float
    answers: Answers
    workflow: str  # if there are several


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The measured window is [warmup_s, warmup_s + duration_s), at `rate_scale` times the plan's rates.

    `arrivals` overrides the sources' own. After the window no request arrives any more and all are answered; with
    `drain_s`, requests not answered that many seconds after the window stay unanswered. At the time
    limit of the work the simulation ends, and the window with it: the result has the figures so far.
    """

    duration_s: float
    seed: int = 0
    warmup_s: float = 0.0
    rate_scale: float = 1.0
    arrivals: Arrivals | None = None
    drain_s: float | None = None

    @property
    def window(self) -> Window:
        """The measured span of virtual time. SolverError for a window or rates that are not above 0."""
        if self.duration_s <= 0 or self.warmup_s < 0 or self.rate_scale <= 0:
            raise SolverError(
                f"cannot simulate {self.duration_s:g} s after {self.warmup_s:g} s at {self.rate_scale:g} times the "
                "rates: duration and scale must be above 0"
            )
        return Window(self.warmup_s, self.warmup_s + self.duration_s)


def simulate(
    plan: Plan,
    make_workers: MakeWorkers,
    settings: SimulationSettings,
    *,
    times: MakeTimes | None = None,
    observer: Observer | None = None,
) -> SimulationResult:
    """Simulate a plan and measure the window. `times`: arrival times of all streams, in place of the plan's rates."""
    window = settings.window
    simulation = _Simulation(plan, make_workers(plan), window, settings.seed, observer)

    def steady(stream: RequestStream, rng: random.Random, phase: float) -> Iterator[float]:
        rate_per_s = stream.rate_per_s * settings.rate_scale
        return arrival_times([(window.end_s, rate_per_s)], settings.arrivals or stream.arrivals, rng, phase)

    with contextlib.suppress(StopSimulationError):
        simulation.run(times or steady, settings, work_limit())
    return simulation.result()


class _Simulation:
    """The event loop. Events are (time, number, handler, arguments); equal times are ordered by number."""

    def __init__(
        self, plan: Plan, workers: Mapping[str, Worker], window: Window, seed: int, observer: Observer | None
    ) -> None:
        self._plan = plan
        self._observer = observer
        self._window = window
        self._seed = seed
        self._now = 0.0
        self._last_s = float("inf")
        self._complete = True
        self._number = count()
        self._arrived = count()  # requests, in their order
        self._events: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self._samplers: dict[tuple[str, str, str], Sampler] = {}  # by operator, variant and pool
        self._served: dict[str, dict[str, None]] = {}  # worker -> operators that routes bring there
        for route in plan.routes:
            for name, worker in route.workers.items():
                self._served.setdefault(worker, {})[name] = None
        self._stations = {
            name: self._station(planned, site, workers[name])
            for planned in plan.workers
            for site in range(plan.sites_of(planned.tier))
            for name in [worker_at(plan.sites, planned.tier, planned.name, site)]
        }
        self._links = Links(plan, observer)
        self._groups = groups_by_worker(plan)
        self._ratios: dict[str, dict[str, float]] = {}
        for edge in (edge for operator in plan.operators for edge in operator.inputs):
            if edge.kind is EdgeKind.FAN_OUT:
                self._ratios.setdefault(edge.upstream, {})[edge.downstream] = edge.ratio
        self._fan_outs = {
            (name, one.variant): ({down: one.ratios.get(down, ratio) for down, ratio in ratios.items()}, one.children)
            for name, ratios in self._ratios.items()
            if name in plan.operator_by_name
            for one in plan.operator_by_name[name].variants
        }
        self._whole = RunOutputs({}, 0.0)
        self._tier = {source.name: source.tier for source in plan.sources}
        self._service_rng = {op.name: random.Random(f"{seed}/service/{op.name}") for op in plan.operators}
        self._child_rng = random.Random(f"{seed}/children")
        self._open: dict[str, _Open] = {}
        self._requests = {workflow: RequestSums() for workflow in [w.name for w in plan.workflows] or [""]}

    def _station(self, planned: PlannedWorker, site: int, worker: Worker) -> _Station:
        served = [self._plan.operator_at(name, planned.name) for name in self._served.get(planned.name, ())]
        samplers = {one.name: self._sampler(one, planned.pool) for one in served}
        variants = {one.name: one.variant for one in served}
        return _Station(planned.name, planned.tier, site, worker, samplers, variants)

    def _sampler(self, operator: PlannedOperator, pool: str) -> Sampler:
        key = operator.name, operator.variant, pool
        if key not in self._samplers:
            self._samplers[key] = service_sampler(operator.service[pool])
        return self._samplers[key]

    def run(self, times: MakeTimes, settings: SimulationSettings, limit: Clock) -> None:
        """Process all events, or those until `drain_s` after the window or the time limit."""
        drain_s, drawer = settings.drain_s, partial(request_drawer, self._plan, scale=settings.rate_scale)
        for index, stream in enumerate(request_streams(self._plan)):
            rng = random.Random(f"{self._seed}/arrivals/{index}")
            ways = own_routes(self._plan.routes, stream.operators)
            routes, weights = list(ways), list(ways.values())
            if stream.sites == 1:
                arrivals = times(stream, rng, index * GOLDEN % 1.0)
                self._next_arrival(_Traffic(stream, arrivals, routes, drawer(stream, weights), 0))
                continue
            own = replace(stream, rate_per_s=stream.rate_per_s / stream.sites, sites=1)
            for site in range(stream.sites):  # with independent arrivals and routes
                rng = random.Random(f"{self._seed}/arrivals/{index}/{site}")
                place = site * most_sites(self._plan.sites) // stream.sites
                arrivals = times(own, rng, rng.random())
                self._next_arrival(_Traffic(own, arrivals, routes, drawer(own, weights, rng), place))
        if drain_s is not None:
            self._last_s = self._window.end_s + drain_s
        while limit.left() != 0.0:
            if not self._process(EVENTS_BETWEEN_CHECKS):
                return
        self._complete = False
        self._window = replace(self._window, end_s=max(self._window.start_s, min(self._window.end_s, self._now)))

    def _process(self, most: int) -> bool:
        """Process some events; False if none is left."""
        events, pop = self._events, heapq.heappop
        for _ in range(most):
            if not events:
                return False
            now, _, handle, first, second = pop(events)
            if now > self._last_s:
                return False
            self._now = now
            handle(first, second)
        return True

    def _at(self, time: float, handle: Callable[..., None], first: Any, second: Any = None) -> None:
        heapq.heappush(self._events, (time, next(self._number), handle, first, second))

    def _next_arrival(self, traffic: _Traffic) -> None:
        time = next(traffic.times, None)
        if time is not None:
            self._at(time, self._arrive, traffic)

    def _arrive(self, traffic: _Traffic, _: None) -> None:
        stream, route, place = traffic.stream, traffic.routes[traffic.drawer.draw()], traffic.place
        arrived = next(self._arrived)
        request = str(arrived)
        self._open[request] = _Open(self._now, Answers(stream.sinks), stream.workflow)
        if (sums := self._requests.get(stream.workflow)) is not None:  # nobody waits for an audit
            sums.offered += self._window.holds(self._now)
            if self._observer is not None:
                self._observer.arrived(self._now, stream.workflow)
        levels = {name: self._child_rng.random() for name in self._ratios if name in self._tier}
        for edge in stream.entries:
            paths: list[Path] = [()]
            if edge.kind is EdgeKind.FAN_OUT:
                rows = child_count(edge.ratio, levels[edge.upstream])
                paths = [((row, rows),) for row in range(rows)] or [((0, 0),)]
            base, tier = self._worker_at(route, edge.downstream, place), self._tier[edge.upstream]
            group = self._groups.get((edge.downstream, base))
            number = place * len(self._plan.routes) + route
            if self._groups:  # the routes of which children are spread come after the others
                number += len(self._plan.routes) * most_sites(self._plan.sites)
            burst: _Burst = {}
            for path in paths:
                worker = base if group is None else child_worker(group, round_robin_offset(arrived), path)
                message = SourceMessage(request, number, edge.upstream, edge.downstream, path)
                self._send(burst, tier, site_of(self._plan.sites, tier, place), worker, message)
            self._deliver_later(burst)
        self._next_arrival(traffic)

    def _worker_at(self, route: int, operator: str, place: int) -> str:
        worker = self._plan.worker_by_name[self._plan.routes[route].workers[operator]]
        return worker_at(self._plan.sites, worker.tier, worker.name, site_of(self._plan.sites, worker.tier, place))

    def _send(self, burst: _Burst, tier: str, site: int, worker: str, message: Any, variant: str = "") -> None:
        """Send from a site of `tier` to another process: over the link between the tiers, if any, plus one hop.

        `burst`: messages that are sent together. `variant`: of the operator that sends; empty for a source.
        """
        time = self._now
        if self._stations[worker].tier != tier:
            time = self._links.send(tier, site, self._stations[worker].tier, message, self._now, variant)
        burst.setdefault((time + self._plan.hop_s, worker), []).append(message)

    def _deliver_later(self, burst: _Burst) -> None:
        for (time, worker), messages in burst.items():
            self._at(time, self._deliver, self._stations[worker], messages)

    def _deliver(self, station: _Station, messages: Sequence[Any]) -> None:
        """Messages that arrive together, such as the children of a fan-out: a run takes all of them that it can."""
        if len(messages) == 1:
            self._follow(station, station.worker.received(messages[0], self._now))
            return
        for message in messages:
            self._follow(station, station.worker.received(message, self._now, more=True))
        self._follow(station, station.worker.start(self._now))

    def _finish(self, station: _Station, run: int) -> None:
        operator, items = station.running
        outputs = [self._whole] * items
        fan_out = self._fan_outs.get((operator, station.variants[operator]))
        if fan_out is not None:
            ratios, shares = fan_out
            outputs = [RunOutputs(ratios, self._child_rng.random(), shares) for _ in range(items)]
        self._follow(station, station.worker.completed(run, outputs, self._now))

    def _due(self, station: _Station, _: None) -> None:
        self._follow(station, station.worker.due(self._now))

    def _follow(self, station: _Station, instructions: Sequence[Any]) -> None:
        """Execute a worker's instructions; a run starts after all messages are sent."""
        run, burst = None, _Burst()
        for instruction in instructions:
            if instruction.kind == "run":
                run = instruction
            elif instruction.kind == "failed":
                raise SolverError(f"the plan cannot be simulated: {instruction.operator}: {instruction.reason}")
            elif instruction.kind == "wait":
                self._at(instruction.until, self._due, station)
            elif instruction.worker == GATEWAY:
                self._answer(instruction.message)
            else:
                message, variant = instruction.message, station.variants[instruction.message.upstream]
                self._send(burst, station.tier, station.site, instruction.worker, message, variant)
        self._deliver_later(burst)
        if run is not None:
            self._start(station, run)

    def _start(self, station: _Station, run: Any) -> None:
        operator, items = station.running = run.operator, len(run.items)
        service = station.samplers[operator](self._service_rng[operator], items)
        station.busy_s += self._window.overlap(self._now, self._now + service)
        if self._observer is not None:
            self._observer.busy(station.name, self._now, self._now + service)
        self._at(self._now + service, self._finish, station, run.run)

    def _answer(self, message: Any) -> None:
        """Record an answer, which reaches the gateway one hop later without queueing."""
        request = self._open.get(message.request)
        if request is None or not request.answers.add(message.upstream, message.path):
            raise SolverError(f"request {message.request} was answered twice by {message.upstream}")
        if request.answers.complete:
            del self._open[message.request]
            time = self._now + self._plan.hop_s
            sums = self._requests.get(request.workflow)
            if sums is None:
                return
            sums.answered += self._window.holds(time)
            if self._observer is not None:
                self._observer.answered(request.arrived_s, time, request.workflow)
            if self._window.holds(request.arrived_s) and time <= self._last_s:
                sums.latencies.append(time - request.arrived_s)

    def result(self) -> SimulationResult:
        """The figures of the window."""
        busy_s = dict.fromkeys(self._plan.worker_by_name, 0.0)
        for station in self._stations.values():
            busy_s[station.name] += station.busy_s
        length_s = self._window.length_s
        window_s = {w.name: length_s * self._plan.sites_of(w.tier) for w in self._plan.workers}
        utilisation = {name: seconds / window_s[name] if length_s else 0.0 for name, seconds in busy_s.items()}
        return result_of(self._requests, utilisation, length_s, complete=self._complete)


@dataclass(slots=True)
class _Traffic:
    """Future requests of a stream in one site. `place`: index of that site, among those of the tier with most sites."""

    stream: RequestStream
    times: Iterator[float]
    routes: Sequence[int]
    drawer: RouteDrawer | StreamDrawer
    place: int
