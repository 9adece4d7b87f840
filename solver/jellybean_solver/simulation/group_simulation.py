"""A coarse simulation for searches, tens of times faster than the exact one: it moves groups of requests, not messages.

All requests that a run hands to one operator on one worker are a group, and a run takes the oldest groups that wait
there, whole or in part. It leaves out what `simulator.py` has beside that: batch delays, fair queueing, several sites,
and which children of a join belong together (it joins them by number). So its figures order plans; `simulator.py`
decides.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

from jellybean_solver.model.distributions import Sampler, child_count, service_sampler
from jellybean_solver.model.flows import link_s
from jellybean_solver.model.plan import Plan, PlannedOperator
from jellybean_solver.model.route_drawing import own_routes
from jellybean_solver.model.spreading import groups_by_worker, round_robin_offset
from jellybean_solver.model.stream_assignment import request_drawer
from jellybean_solver.model.streams import RequestStream, arrival_times, request_streams
from jellybean_solver.model.workflow import EdgeKind
from jellybean_solver.simulation.result import nearest_rank
from jellybean_solver.time_limit import work_limit

# As many as in a prediction: where queues take long to fill, the p99 of fewer is lower.
REQUESTS = 2_000  # measured requests of each stream: 20 of them are slower than p99
MOST_PER_STREAM = 5  # times as many, where streams are of unlike rates
CHECKED_EVERY = 4_096  # events after which the time limit of the work is looked at
WARMUP = 0.1  # requests before them, as a share


@dataclass(slots=True)
class _Request:
    """`workflow`: whose it is; `route`: index; `offset`: where the round of its children begins.

    `missing`: answers that are not there yet; `waiting`: requests that a join or gather holds.
    """

    arrived_s: float
    workflow: str
    route: int
    offset: float
    missing: float
    waiting: dict[tuple[str, str], float] = field(default_factory=dict)
    gathered: dict[tuple[str, str], float] = field(default_factory=dict)
    opened: dict[str, float] = field(default_factory=dict)  # operator that gathers -> children not there yet


@dataclass(slots=True)
class _Server:
    """An operator's queue at a worker: parts (request, number) in the order in which they came."""

    operator: PlannedOperator
    batch: int
    sampler: Sampler
    queue: deque[tuple[float, _Request, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Station:
    """A worker: its servers by operator, and whether it runs."""

    servers: dict[str, _Server]
    tier: str
    runs: bool = False


class GroupSimulation:
    """One simulation of a plan with one site per tier."""

    def __init__(self, plan: Plan, seed: int = 0, requests: int = REQUESTS) -> None:
        self.plan, self.rng, self.requests = plan, random.Random(f"groups/{seed}"), requests
        self.events: list[tuple[float, int, Any, Any]] = []
        self.number, self.arrived = count(), count()
        self.now = 0.0
        self.idle_s: dict[tuple[str, str], float] = {}
        self.latencies: dict[str, list[float]] = {}  # workflow -> of its measured requests
        self.spent_s: dict[str, float] = {}  # operator -> seconds of all its requests, waits and runs
        self.groups = groups_by_worker(plan)
        self.stations = {worker.name: _Station({}, worker.tier) for worker in plan.workers}
        for route in plan.routes:
            for name, at in route.workers.items():
                if name not in self.stations[at].servers:
                    operator, pool = plan.operator_at(name, at), plan.worker_by_name[at].pool
                    server = _Server(operator, operator.batch[pool], service_sampler(operator.service[pool]))
                    self.stations[at].servers[name] = server

    @cached_property
    def readers(self) -> Mapping[str, Sequence[tuple[str, EdgeKind, float]]]:
        """Source or operator -> its readers, with the kind and ratio of the edge."""
        found: dict[str, list[tuple[str, EdgeKind, float]]] = {}
        for operator in self.plan.operators:
            for edge in operator.inputs:
                found.setdefault(edge.upstream, []).append((operator.name, edge.kind, edge.ratio))
        return found

    @cached_property
    def inputs(self) -> Mapping[str, int]:
        """Operator -> number of its inputs."""
        return {operator.name: len(operator.inputs) for operator in self.plan.operators}

    def slowest_s(self) -> float:
        """p99 latency in seconds; of several workflows the longest in proportion to their deadlines, as `latency`."""
        found = self.p99_by_workflow()
        return max(found.get(name, 0.0) / share for name, share in self.plan.deadline_shares.items())

    def p99_by_workflow(self) -> Mapping[str, float]:
        """Workflow -> p99 latency in seconds; a single workflow has the name ""."""
        streams = request_streams(self.plan)
        whole_s = self._whole_s([stream.rate_per_s for stream in streams if stream.rate_per_s > 0])
        for stream in streams:
            self._arrivals(stream, whole_s)
        for step in count():
            if not self.events or (step % CHECKED_EVERY == 0 and work_limit().left() == 0.0):
                break  # without time the figures are those of the requests so far
            self.now, _, handle, data = heapq.heappop(self.events)
            handle(data)
        answered = {name: nearest_rank(sorted(own), 0.99) for name, own in self.latencies.items()}
        served = [workflow.name for workflow in self.plan.workflows] or [""]
        return {**(dict.fromkeys(served, math.inf) if self.events else {}), **answered}

    def _whole_s(self, rates_per_s: Sequence[float]) -> float:
        """The measured time: `requests` of the slowest stream, unless the others bring far more meanwhile."""
        most = MOST_PER_STREAM * self.requests * len(rates_per_s)
        return min(self.requests / min(rates_per_s), most / sum(rates_per_s))

    def _at(self, time: float, handle: Any, data: Any) -> None:
        heapq.heappush(self.events, (time, next(self.number), handle, data))

    def _arrivals(self, stream: RequestStream, whole_s: float) -> None:
        """All requests of a stream, with their routes."""
        ways = own_routes(self.plan.routes, stream.operators)
        drawer, routes = request_drawer(self.plan, stream, list(ways.values())), list(ways)
        warmup_s = WARMUP * whole_s
        end_s = warmup_s + whole_s
        for time in arrival_times([(end_s, stream.rate_per_s)], stream.arrivals, self.rng):
            offset = round_robin_offset(next(self.arrived))
            request = _Request(time, stream.workflow, routes[drawer.draw()], offset, float(len(stream.sinks)))
            self._at(time, self._enter, (request, stream, time >= warmup_s))

    def _enter(self, data: tuple[_Request, RequestStream, bool]) -> None:
        request, stream, measured = data
        request.opened[""] = float(measured)
        for source in stream.sources:
            self._hand_on(source.name, source.tier, source.message_bytes, request, 1, {}, ())

    def _hand_on(
        self,
        name: str,
        tier: str,
        size: float | Mapping[str, float],
        request: _Request,
        number: int,
        ratios: Mapping[str, float],
        shares: Sequence[float],
    ) -> None:
        """Send what `number` requests of a source or operator put out to all its readers."""
        level = [self.rng.random() for _ in range(number)]
        for reader, kind, ratio in self.readers.get(name, ()):
            sent = number
            if kind is EdgeKind.FAN_OUT:
                sent = sum(child_count(ratios.get(reader, ratio), one, shares) for one in level)
                self._open(request, reader, sent, number)
            for at, part in self._parts(reader, request, kind, sent):
                station, time = self.stations[at], self.now
                if station.tier != tier:
                    one = size if isinstance(size, float | int) else size[reader]
                    time = self._over_link((tier, station.tier), one * part)
                self._at(time + self.plan.hop_s, self._arrive, (station, reader, name, kind, request, part))

    def _parts(self, reader: str, request: _Request, kind: EdgeKind, sent: int) -> list[tuple[str, int]]:
        """The workers that get `sent` requests of an operator, and how many each: one, or those of a group in turn."""
        at = self.plan.routes[request.route].workers[reader]
        group = self.groups.get((reader, at), ())
        if kind is EdgeKind.GATHER or len(group) < 2 or not sent:
            return [(at, sent)]
        first, size = int(request.offset * len(group)), len(group)
        return [(group[(first + k) % size], (sent + size - 1 - k) // size) for k in range(min(size, sent))]

    def _open(self, request: _Request, reader: str, sent: int, parents: int) -> None:
        """Count the children of a fan-out: below it every sink answers as often, or once for a parent without any."""
        if sent:
            request.missing += (sent - parents) * len(self._below[reader])
        request.opened[reader] = request.opened.get(reader, 0.0) + sent

    @cached_property
    def _below(self) -> Mapping[str, tuple[str, ...]]:
        """Operator -> the sinks that its requests reach without passing a gather."""
        found: dict[str, tuple[str, ...]] = {}
        for operator in reversed(self.plan.operators):
            readers = self.readers.get(operator.name, ())
            own = [sink for reader, kind, _ in readers if kind is not EdgeKind.GATHER for sink in found[reader]]
            found[operator.name] = tuple(dict.fromkeys(own)) if readers else (operator.name,)
        return found

    def _over_link(self, tiers: tuple[str, str], size: float) -> float:
        """When a message arrives over a link, which carries one at a time."""
        link = self.plan.link_by_tiers[tiers]
        if not link.bandwidth_bytes_per_s:
            return self.now + link.latency_s
        end_s = max(self.now, self.idle_s.get(tiers, 0.0)) + size / link.bandwidth_bytes_per_s
        self.idle_s[tiers] = end_s
        return end_s + link_s(self.plan, tiers, 0.0)

    def _arrive(self, data: tuple[_Station, str, str, EdgeKind, _Request, int]) -> None:
        station, name, upstream, kind, request, sent = data
        ready = sent
        if kind is EdgeKind.GATHER:
            ready = self._gathered(name, upstream, request, sent)
        if kind is EdgeKind.FAN_OUT and sent == 0:
            self._answer(request, len(self._below[name]))
            for gather, last in (key for key, opener in self._opener.items() if opener == name):
                at = self.stations[self.plan.routes[request.route].workers[gather]]
                self._enqueue(at, gather, last, request, 1)
        self._enqueue(station, name, upstream, request, ready)

    def _enqueue(self, station: _Station, name: str, upstream: str, request: _Request, ready: int) -> None:
        """Add inputs of an operator from one upstream to its queue, those of a join once they are complete."""
        if ready and self.inputs[name] > 1:
            ready = self._joined(name, upstream, request, ready)
        if ready:
            station.servers[name].queue.append((self.now, request, ready))
            self._start(station)

    def _joined(self, name: str, upstream: str, request: _Request, sent: int) -> int:
        """How many requests of a join are complete now that these have come from one upstream."""
        before = self._complete(name, request)
        key = name, upstream
        request.waiting[key] = request.waiting.get(key, 0.0) + sent
        return int(self._complete(name, request) - before)

    def _complete(self, name: str, request: _Request) -> float:
        operator = self.plan.operator_by_name[name]
        return min(request.waiting.get((name, edge.upstream), 0.0) for edge in operator.inputs)

    def _gathered(self, name: str, upstream: str, request: _Request, sent: int) -> int:
        """1 once all children of the fan-out that a gather closes are there."""
        key = name, upstream
        request.gathered[key] = request.gathered.get(key, 0.0) + sent
        opened = self._opener[key]
        return int(request.gathered[key] >= request.opened.get(opened, 0.0) and bool(sent))

    @cached_property
    def _opener(self) -> Mapping[tuple[str, str], str]:
        """(operator, upstream that it gathers from) -> the first operator below the fan-out that is closed."""
        openers: dict[str, tuple[str, ...]] = {}
        found: dict[tuple[str, str], str] = {}
        for operator in self.plan.operators:
            for edge in reversed(operator.inputs):  # all inputs of a join are below the same fan-outs
                levels = openers.get(edge.upstream, ())
                if edge.kind is EdgeKind.FAN_OUT:
                    levels = (*levels, operator.name)
                elif edge.kind is EdgeKind.GATHER and levels:
                    found[operator.name, edge.upstream], levels = levels[-1], levels[:-1]
                openers[operator.name] = levels
        return found

    def _start(self, station: _Station) -> None:
        """Start a run of the operator whose oldest request has waited longest, if the worker is idle."""
        if station.runs:
            return
        waiting = [server for server in station.servers.values() if server.queue]
        if not waiting:
            return
        server = min(waiting, key=lambda one: one.queue[0][0])
        taken: list[tuple[_Request, int, float]] = []
        room = server.batch
        while room and server.queue:
            came_s, request, number = server.queue[0]
            part = min(room, number)
            taken.append((request, part, came_s))
            room -= part
            if part < number:
                server.queue[0] = came_s, request, number - part
                break
            server.queue.popleft()
        station.runs = True
        busy_s = server.sampler(self.rng, server.batch - room)
        self._at(self.now + busy_s, self._finish, (station, server, taken))

    def _finish(self, data: tuple[_Station, _Server, list[tuple[_Request, int, float]]]) -> None:
        station, server, taken = data
        operator = server.operator
        for request, number, came_s in taken:
            self.spent_s[operator.name] = self.spent_s.get(operator.name, 0.0) + (self.now - came_s)
            if operator.name in self.readers:
                sizes, ratios = operator.message_bytes, operator.ratios
                self._hand_on(operator.name, station.tier, sizes, request, number, ratios, operator.children)
            else:
                self._answer(request, number)
        station.runs = False
        self._start(station)

    def _answer(self, request: _Request, number: int) -> None:
        request.missing -= number
        if request.missing <= 0 and request.opened[""]:
            own = self.latencies.setdefault(request.workflow, [])
            own.append(self.now + self.plan.hop_s - request.arrived_s)
