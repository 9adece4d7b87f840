"""Several gateways of the same workers: who bills them, whoever is killed when, and what the sums are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import update

from jellybean.ledger import (
    COLUMNS,
    KINDS,
    RECEIVED,
    By,
    Deployment,
    EventKind,
    Ledger,
    LedgerError,
    Reading,
    RequestKey,
    Sent,
    SentKey,
    all_events,
    compact,
    cost,
    run_cost,
    served,
    tables,
)
from jellybean.ledger.deployments import LEASE_S, Written
from tests.support.made_up_run import BEGIN_S, DAY_S, Serving

DEPLOYMENT = Deployment("shop/flow-1a2b3c4d-gateway", "flow")
USD_PER_S = (0.36 + 3.6) / 3600
USD_PER_BYTE = 9.0 / 2**30
CLIENTS = ("ann", "bob")


@dataclass
class Pod:
    """One of the gateways: its own requests and bytes of sources; the workers are those of all."""

    name: str
    ledger: Ledger
    workers: Serving
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLIENTS, 0))
    source_bytes: float = 0.0
    first: Reading | None = None

    def __post_init__(self) -> None:
        self._rng = random.Random(self.name)

    def reading(self, at_s: float, **more: object) -> Reading:
        """A reading by this pod: of all workers, and of what it did itself."""
        for client in CLIENTS:
            self.requests[client] += self._rng.randrange(1, 20)
        self.source_bytes += self._rng.randrange(2**20)
        counts = {}
        for client, count in self.requests.items():
            row = [0] * COLUMNS
            row[RECEIVED] = row[KINDS["answered"]] = count
            counts[RequestKey("flow", client)] = tuple(row)
        found = self.workers.read(at_s)
        sent = {**found.sent, SentKey("p1", "frames", "", "", "store", "cloud"): Sent(self.source_bytes)}
        found = replace(found, run=self.name, sent=sent, requests=counts, counted=self.name, **more)
        self.first = self.first or found
        return found

    def write(self, at_s: float, **more: object) -> Written:
        return self.ledger.write_shared(self.reading(at_s, is_first=self.first is None, **more))

    def paid_s(self, at_s: float, **more: object) -> float:
        """Write, and return for how long the workers are billed."""
        return sum(one.seconds for one in self.write(at_s, **more).intervals)

    def answered(self, client: str) -> int:
        """Since its first reading."""
        assert self.first is not None
        return self.requests[client] - self.first.requests[RequestKey("flow", client)][RECEIVED]


Pods = Callable[..., list[Pod]]


@pytest.fixture
def pods(url: str) -> Iterator[Pods]:
    """A function that makes gateways by their names."""
    made: list[Pod] = []
    workers = Serving(clients=())

    def make(*names: str, deployment: Deployment = DEPLOYMENT) -> list[Pod]:
        found = [Pod(name, Ledger(url, name, deployment), workers) for name in names]
        made.extend(found)
        return found

    yield make
    for pod in made:
        pod.ledger.close()


@pytest.mark.slow
def test_workers_are_billed_once_and_all_sums_are_the_cost_by_hand(pods: Pods) -> None:
    both = first, second = pods("one", "two")
    assert (first.paid_s(0.0), second.paid_s(1.0)) == (0.0, 0.0)
    bytes_before = [pod.source_bytes for pod in both]
    workers_before = sum(first.first.sent[key].sent_bytes for key in first.first.sent if key.sender)
    for tick in range(1, 400):
        for pod, late_s in ((first, 0.0), (second, 3.0)):
            pod.write(10.0 * tick + late_s)
    first.write(4000.0)
    sent_bytes = sum(pod.source_bytes - before for pod, before in zip(both, bytes_before, strict=True))
    sent_bytes += first.workers.sent_bytes - workers_before
    expected = 4000.0 * USD_PER_S + sent_bytes * USD_PER_BYTE
    answered = {name: sum(pod.answered(name) for pod in both) for name in CLIENTS}
    for _ in range(2):
        for by in By:
            lines = cost(first.ledger, by)
            assert sum(line.usd for line in lines) == pytest.approx(expected, rel=1e-9), by
        by_client = {line.name: line for line in cost(first.ledger, By.CLIENT)}
        assert {name: line.done for name, line in by_client.items()} == answered
        assert by_client["ann"].usd == pytest.approx(expected / 2, rel=0.1)
        assert sum(line.received for line in served(first.ledger, By.DAY)) == sum(answered.values())
        assert sum(run_cost(first.ledger, "one", "flow")) == pytest.approx(expected, rel=1e-9)
        compact(first.ledger, BEGIN_S + DAY_S)
    paid_usd = second.write(4000.0).paid_usd
    assert sum(paid_usd) == pytest.approx(sum(run_cost(first.ledger, "one", "flow")), rel=1e-9)


def test_the_holder_of_the_lease_bills_and_another_takes_over(pods: Pods) -> None:
    first, second = pods("one", "two")
    first.write(0.0)
    second.write(1.0)
    for at_s in (10.0, 20.0):
        assert (first.paid_s(at_s), second.paid_s(at_s + 1.0)) == (10.0, 0.0)
    # `first` is killed: nobody bills until its lease is over, then all of the time since its last interval.
    assert LEASE_S == 30.0
    assert [second.paid_s(at_s) for at_s in (31.0, 41.0, 51.0, 61.0)] == [0.0, 0.0, 31.0, 10.0]
    assert sum(one.seconds for one in first.ledger.write_shared(first.reading(65.0, is_first=True)).intervals) == 0.0
    assert [event.kind for event in all_events(first.ledger)] == [EventKind.UP, EventKind.RESTART]


def test_a_gateway_that_leaves_hands_the_lease_over_at_once(pods: Pods) -> None:
    first, second = pods("one", "two")
    first.write(0.0)
    second.write(1.0)
    assert first.paid_s(15.0, is_last=True) == 15.0
    assert second.paid_s(16.0) == 1.0
    assert second.paid_s(20.0, is_last=True) == 4.0
    events = [(event.kind, event.run) for event in all_events(first.ledger)]
    assert events == [(EventKind.UP, "one"), (EventKind.DOWN, "one")]


@pytest.mark.slow
def test_time_without_any_gateway_is_not_billed(pods: Pods) -> None:
    first, second, third = pods("one", "two", "three")
    first.write(0.0)
    first.write(10.0)
    assert second.paid_s(10.0 + LEASE_S) == LEASE_S  # it took over in time
    second.write(45.0, is_last=True)
    assert (third.paid_s(5000.0), third.paid_s(5010.0)) == (0.0, 10.0)
    events = [(event.kind, event.run) for event in all_events(first.ledger)]
    assert events == [(EventKind.UP, "one"), (EventKind.DOWN, "one"), (EventKind.UP, "three")]
    assert third.write(5010.0).paid_usd[0] == pytest.approx(10.0 * USD_PER_S)  # of this run


def test_readings_that_waited_for_the_database_bill_no_second_twice(pods: Pods) -> None:
    first, second = pods("one", "two")
    first.write(0.0)
    second.write(1.0)
    waiting = [(pod, pod.reading(at_s + late)) for at_s in (10.0, 500.0) for pod, late in ((first, 0.0), (second, 1.0))]
    order = [waiting[1], waiting[3], waiting[0], waiting[2]]  # the second is the first that finds the database back
    seconds = [sum(one.seconds for one in pod.ledger.write_shared(reading).intervals) for pod, reading in order]
    assert sum(seconds) == 501.0
    (line,) = cost(first.ledger, By.WORKFLOW)
    assert line.done == sum(pod.answered(client) for pod in (first, second) for client in CLIENTS)


def test_a_clock_that_is_behind_bills_nothing_twice(pods: Pods) -> None:
    first, second = pods("one", "two")
    first.write(100.0)
    second.write(101.0)
    first.write(110.0, is_last=True)
    assert (second.paid_s(105.0), second.paid_s(115.0)) == (0.0, 5.0)


def test_gateways_that_write_at_once(pods: Pods) -> None:
    several = pods(*map(str, range(4)))
    readings = [(pod, pod.reading(10.0 * tick)) for tick in range(8) for pod in several]
    several[0].ledger.write_shared(readings[0][1])  # makes the tables

    def write(pod: Pod) -> float:
        own = [reading for one, reading in readings if one is pod]
        return sum(one.seconds for reading in own for one in pod.ledger.write_shared(reading).intervals)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, several)) == pytest.approx(70.0)
    (line,) = cost(several[0].ledger, By.WORKFLOW)
    assert line.usd >= 70.0 * USD_PER_S
    assert line.done == sum(pod.answered(client) for pod in several for client in CLIENTS)


def test_deployments_of_one_database_are_billed_apart(pods: Pods) -> None:
    (mine,) = pods("one")
    (theirs,) = pods("two", deployment=replace(DEPLOYMENT, name="farm/flow-1a2b3c4d-gateway"))
    assert [(mine.paid_s(at_s), theirs.paid_s(at_s)) for at_s in (0.0, 10.0)] == [(0.0, 0.0), (10.0, 10.0)]


def test_a_damaged_reading_is_told(pods: Pods) -> None:
    (pod,) = pods("one")
    pod.write(0.0)
    with pod.ledger.changing() as connection:
        connection.execute(update(tables.deployments).values(reading="{}"))
    with pytest.raises(LedgerError, match="last reading of shop/flow-1a2b3c4d-gateway, flow, in ledger_deployments"):
        pod.write(10.0)


def test_a_gateway_that_shares_its_workers_with_no_other() -> None:
    with pytest.raises(LedgerError, match="shares its workers with no other"):
        Ledger("nowhere.db", "gateway").write_shared(Serving().read(0.0))
