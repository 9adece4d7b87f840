"""Brains driven by hand: any order of deliveries, repeated messages, batches, failures. Answers are checked against a
reference that evaluates the workflow by recursion."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_agent import (
    GATEWAY,
    BatchPolicy,
    Brain,
    EdgeMessage,
    FanOutPath,
    Instruction,
    OperatorWiring,
    RequestFailed,
    RouteTable,
    RunOperator,
    SendMessage,
)
from jellybean_agent.brain.messages import DIRECT_CALL_ROUTE, WorkItem
from jellybean_solver import Edge, EdgeKind
from jellybean_solver.simulation.answers import Answers
from tests.property.simulator.plans import random_edges
from tests.support.examples import examples

Inputs = Mapping[str, list[Edge]]
Work = tuple[str, str, FanOutPath]  # request, operator, path
Asked = tuple[str, str]  # request, operator: to be run by itself
randoms = st.randoms(use_true_random=False)  # for the wiring, so that it shrinks
orders = st.integers(0, 2**32).map(random.Random)  # for the order of events, of which there are too many to shrink


def children(request: str, operator: str, path: FanOutPath) -> int:
    """How many children a run has: 0 to 3, always the same for the same run."""
    return random.Random(f"{request} {operator} {path}").choice([0, 1, 1, 2, 3])


class Symbols:
    """Outputs whose payload spells out how it came about."""

    def __init__(self, operator: str, item: WorkItem) -> None:
        self._operator, self._item = operator, item

    def rows(self, downstream: str) -> int:
        return children(self._item.request, self._operator, self._item.path)

    def take(self, downstream: str, row: int | None) -> object:
        whole = (self._operator, self._item.inputs)
        return whole if row is None else (whole, row)


def value(inputs: Inputs, request: str, operator: str, path: FanOutPath) -> object:
    """What `operator` gives at `path`, by recursion."""
    return (operator, tuple(_input(inputs, request, edge, path) for edge in inputs[operator]))


def _input(inputs: Inputs, request: str, edge: Edge, path: FanOutPath) -> object:
    upstream = edge.upstream
    if upstream not in inputs:
        return (request, upstream)
    if edge.kind is EdgeKind.EACH:
        return value(inputs, request, upstream, path)
    if edge.kind is EdgeKind.FAN_OUT:
        return (value(inputs, request, upstream, path[:-1]), path[-1][0])
    gathered = [p for p in paths(inputs, request, upstream) if p[:-1] == path and p[-1][1] > 0]
    return tuple(value(inputs, request, upstream, child) for child in gathered)


def paths(inputs: Inputs, request: str, operator: str) -> list[FanOutPath]:
    """Where `operator` runs, in order, or is told that it does not: the paths that it emits."""
    edge = inputs[operator][0]
    if edge.upstream not in inputs:
        return [()]
    above = paths(inputs, request, edge.upstream)
    if edge.kind is EdgeKind.EACH:
        return above
    if edge.kind is EdgeKind.GATHER:
        return list(dict.fromkeys(path[:-1] for path in above))
    below: list[FanOutPath] = []
    for path in above:
        alive = all(count for _, count in path)
        count = children(request, edge.upstream, path) if alive else 0
        below += [(*path, (row, count)) for row in range(count)] or [(*path, (0, 0))]
    return below


class Network:
    """Brains with everything in flight in one bag, from which any thing may come next, and some twice.

    A share `failures` of what items are run on is bad: any run with it fails. As many batches fail for nothing.
    """

    def __init__(self, rng: random.Random, inputs: Inputs, repeats: float, failures: float = 0.0) -> None:
        self.rng, self.inputs, self.repeats, self.failures = rng, inputs, repeats, failures
        edges = [edge for into in inputs.values() for edge in into]
        wiring = {
            name: OperatorWiring(
                tuple((e.upstream, e.kind.value) for e in into),
                tuple((e.downstream, e.kind.value) for e in edges if e.upstream == name),
            )
            for name, into in inputs.items()
        }
        names = [f"w{i}" for i in range(rng.randint(1, 3))]
        self.routes = [{op: rng.choice(names) for op in inputs} for _ in range(rng.randint(1, 3))]
        self.batches = {name: {op: rng.choice([1, 1, 2, 3, 8]) for op in inputs} for name in names}
        spread = [op for op in inputs if rng.random() < 0.5]  # below a fan-out their children go round all workers
        self.table = RouteTable(self.routes, {(op, name): tuple(names) for op in spread for name in names})
        self.brains = {name: Brain(name, wiring, self.table, BatchPolicy(self.batches[name])) for name in names}
        self.done: Counter[Work] = Counter()
        self.guilty: set[str] = set()
        self.running: dict[str, RunOperator | None] = dict.fromkeys(names)
        self.bag: list[
            tuple[str, EdgeMessage | str | Asked]
        ] = []  # worker, message, request to forget, operator to ask
        self.answers: dict[str, list[EdgeMessage]] = {}
        self.failed: set[str] = set()

    def offer(self, request: str, sources: list[str]) -> None:
        route = self.rng.randrange(len(self.table))
        self.answers[request] = []
        for edges in self.inputs.values():
            for edge in edges:
                if edge.upstream in sources:
                    message = EdgeMessage(request, route, edge.upstream, edge.downstream, (), (request, edge.upstream))
                    self.bag.append((self.table.worker(route, edge.downstream, (), request), message))

    def follow(self, worker: str, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, RunOperator):
                assert self.running[worker] is None, "two runs outstanding"
                self.running[worker] = instruction
            elif isinstance(instruction, RequestFailed):
                self.failed.add(instruction.request)
                self.bag += [(name, instruction.request) for name in self.brains]
            elif instruction.worker == GATEWAY:
                self.answers[instruction.message.request].append(instruction.message)
            else:
                assert isinstance(instruction, SendMessage)
                assert instruction.worker != worker, "a message to itself left the worker"
                self.bag.append((instruction.worker, instruction.message))

    def drain(self) -> None:
        while True:
            busy = [name for name, run in self.running.items() if run is not None]
            if not busy and not self.bag:
                return
            if busy and (not self.bag or self.rng.random() < 0.4):
                self.finish(self.rng.choice(busy))
            else:
                self.deliver()

    def deliver(self) -> None:
        index = self.rng.randrange(len(self.bag))
        worker, thing = self.bag[index]
        if isinstance(thing, tuple) or self.rng.random() >= self.repeats:
            self.bag[index] = self.bag[-1]
            self.bag.pop()
        brain = self.brains[worker]
        if isinstance(thing, tuple):
            self.follow(worker, list(brain.call_operator(*thing, [thing[0]])))
        else:
            self.follow(worker, list(brain.forget(thing) if isinstance(thing, str) else brain.received(thing)))

    def finish(self, worker: str) -> None:
        run = self.running[worker]
        assert run is not None
        self.running[worker] = None
        assert 1 <= len(run.items) <= self.batches[worker][run.operator]
        assert len(run.items) == 1 or all(item.route != DIRECT_CALL_ROUTE for item in run.items), (
            "one asked for alone was not alone"
        )
        brain, work = self.brains[worker], [(item.request, run.operator, item.path) for item in run.items]
        bad = [request for request, *where in work if random.Random(f"{request} {where}").random() < self.failures]
        if bad or (len(work) > 1 and self.rng.random() < self.failures):
            self.guilty.update(bad if len(work) == 1 else ())
            self.follow(worker, list(brain.failed(run.run, "broken")))
        else:
            self.done.update(work)
            outputs = [Symbols(run.operator, item) for item in run.items]
            self.follow(worker, list(brain.completed(run.run, outputs)))


def check(network: Network, request: str, sinks: list[str]) -> None:
    """The request has the answers that it should, each once."""
    found = {(m.upstream, m.path): m.payload for m in network.answers[request]}
    assert len(found) == len(network.answers[request])
    expected = {(sink, path) for sink in sinks for path in paths(network.inputs, request, sink)}
    assert set(found) == expected
    for (sink, path), payload in found.items():
        alive = all(count for _, count in path)
        assert payload == (value(network.inputs, request, sink, path) if alive else None)
    assert all(count == 1 for (of, *_), count in network.done.items() if of == request), "something was run twice"
    collected = Answers(sinks)
    for index, message in enumerate(network.answers[request], 1):
        assert collected.add(message.upstream, message.path)
        assert collected.complete == (index == len(found))


@settings(deadline=None, max_examples=examples(300))
@given(randoms, orders, st.sampled_from([0.0, 0.2]))
def test_every_request_gets_one_complete_answer_whatever_the_order(
    rng: random.Random, order: random.Random, repeats: float
) -> None:
    sources, inputs = random_edges(rng)
    network = Network(order, inputs, repeats)
    requests = [f"r{i}" for i in range(order.randint(1, 4))]
    for request in requests:
        network.offer(request, sources)
    network.drain()
    used = {edge.upstream for edges in inputs.values() for edge in edges}
    for request in requests:
        check(network, request, [op for op in inputs if op not in used])
    assert not network.failed
    assert [(brain.queued, brain.requests_in_flight) for brain in network.brains.values()] == [(0, 0)] * len(
        network.brains
    )


@settings(deadline=None, max_examples=examples(200))
@given(randoms, orders)
def test_failed_requests_leave_nothing_and_do_not_touch_the_others(rng: random.Random, order: random.Random) -> None:
    sources, inputs = random_edges(rng)
    network = Network(order, inputs, repeats=0.1, failures=0.1)
    requests = [f"r{i}" for i in range(order.randint(1, 5))]
    for request in requests:
        network.offer(request, sources)
    network.drain()
    used = {edge.upstream for edges in inputs.values() for edge in edges}
    for request in requests:
        if request not in network.failed:
            check(network, request, [op for op in inputs if op not in used])
    assert network.failed == network.guilty, "a request failed by another's fault"
    assert all(brain.queued == 0 and brain.requests_in_flight == 0 for brain in network.brains.values())


@settings(deadline=None, max_examples=examples(200))
@given(randoms, orders, st.sampled_from([0.0, 0.1]))
def test_operators_asked_for_alone_run_once_and_change_no_answer(
    rng: random.Random, order: random.Random, failures: float
) -> None:
    sources, inputs = random_edges(rng)
    network = Network(order, inputs, repeats=0.1, failures=failures)
    requests = [f"r{i}" for i in range(order.randint(1, 4))]
    for request in requests:
        network.offer(request, sources)
    asked = {f"a{i}": order.choice(sorted(inputs)) for i in range(order.randint(1, 6))}
    given_up = {request for request in asked if order.random() < 0.3}
    for request, operator in asked.items():
        worker = order.choice(sorted(network.brains))
        network.bag.append((worker, (request, operator)))
        network.bag += [(worker, request)] * (request in given_up)
    network.drain()
    used = {edge.upstream for edges in inputs.values() for edge in edges}
    for request in requests:
        if request not in network.failed:
            check(network, request, [op for op in inputs if op not in used])
    for request, operator in asked.items():
        ran = network.done[request, operator, ()]
        assert ran == (request not in network.guilty) or (ran == 0 and request in given_up)
    assert network.failed <= network.guilty
    assert network.guilty - network.failed <= given_up, "nobody was told of a failure"
    assert all(brain.queued == 0 and brain.requests_in_flight == 0 for brain in network.brains.values())
