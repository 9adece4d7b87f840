"""Workers that several gateways use are billed once: by the gateway that holds their deployment's lease.

Each gateway writes the requests that it answered, and the bytes of sources that it sent. The holder of the lease also
writes what the workers did and cost, as the difference from the last reading of whoever held it before, so a second is
billed once whoever dies when. What workers cost is divided among the clients of all gateways, by the requests that
arrived since. Everything that a gateway writes is one transaction, in which it has the deployment's row for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from jellybean.ledger import tables
from jellybean.ledger.columns import RECEIVED
from jellybean.ledger.errors import LedgerError
from jellybean.ledger.events import Event, EventKind, events
from jellybean.ledger.lines import Interval, gateway_interval, workers_interval
from jellybean.ledger.reading_document import reading_from_text, reading_to_text
from jellybean.ledger.readings import Reading, RequestKey

# Seconds after its last interval for which a gateway keeps the lease, and counts as alive. Three intervals, so that a
# slow write costs no lease. A gateway that was killed is replaced at the next interval of another one after that; time
# without any gateway is billed up to so long.
LEASE_S = 30.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Gateways that use the same workers. `name`: unique among all that write to the database."""

    name: str
    workflow: str


@dataclass(frozen=True, slots=True)
class Written:
    """What one gateway writes: its intervals, and the events. `paid_usd`: of the run, for workers and links."""

    intervals: tuple[Interval, ...]
    events: tuple[Event, ...]
    paid_usd: tuple[float, float]


@dataclass(slots=True)
class _State:
    """A deployment's row. `seen`: gateway -> when it wrote last (Unix time)."""

    holder: str
    until_s: float
    run: str
    seen: dict[str, float]
    reading: Reading | None
    workers_usd: float
    links_usd: float

    def may_bill(self, gateway: str, now_s: float) -> bool:
        """True if a gateway holds the lease, or may take it."""
        is_free = self.holder not in self.seen or self.until_s <= now_s
        return self.holder == gateway or is_free

    def continues(self, before: Reading | None, now: Reading) -> bool:
        """True if serving went on since the last reading of the workers: another gateway took over in time, or one that
        has written before is back.
        """
        if self.reading is None:
            return False
        return before is not None or now.at.unix_s - self.reading.at.unix_s <= LEASE_S


def share(
    connection: Connection, deployment: Deployment, gateway: str, before: Reading | None, now: Reading
) -> Written:
    """The intervals of one of a deployment's gateways up to now; notes in the deployment's row what they end with.

    `before`: its last reading; None: this is its first.
    """
    state = _locked(connection, deployment)
    now_s = now.at.unix_s
    state.seen = {name: at_s for name, at_s in state.seen.items() if now_s - at_s < LEASE_S or name == gateway}
    state.seen[gateway] = now_s
    found: list[Interval] = []
    told = [one for one in events(before, now) if one.kind is EventKind.RESTART]
    if before is not None:
        own = gateway_interval(before, now, state.run or now.run)
        state.links_usd += own.links_usd
        _add_arrivals(connection, deployment, own)
        found.append(own)
    if state.may_bill(gateway, now_s) and (state.reading is None or state.reading.at.unix_s <= now_s):
        workers, more = _bill(connection, deployment, state, now, continues=state.continues(before, now))
        found += workers
        told += more
        state.holder, state.until_s = gateway, now_s + LEASE_S
    if now.is_last:
        del state.seen[gateway]  # so that the next one need not wait for the lease
        if not state.seen and now.tells_events:
            told.append(Event(now_s, state.run or now.run, EventKind.DOWN, now.serving))
    _store(connection, deployment, state)
    return Written(tuple(found), tuple(told), (state.workers_usd, state.links_usd))


def _bill(
    connection: Connection, deployment: Deployment, state: _State, now: Reading, *, continues: bool
) -> tuple[list[Interval], list[Event]]:
    """The interval of the workers since their last reading, by whichever gateway that was.

    `continues`: False if another run begins, between which and the last one nothing is billed.
    """
    last = state.reading
    own = {key: sent for key, sent in now.sent.items() if key.sender}
    told = []
    if not continues:
        state.run, state.workers_usd, state.links_usd = now.run, 0.0, 0.0  # a run has the name of its first gateway's
        if now.tells_events:
            told.append(Event(now.at.unix_s, now.run, EventKind.UP, now.serving))
    here = replace(now, run=state.run, sent=own, requests={})
    found = []
    if last is not None:
        found.append(workers_interval(last, here, _take_arrivals(connection, deployment)))
        if continues:
            state.workers_usd += found[0].workers_usd
            state.links_usd += found[0].links_usd
        here = here.with_unread(last)
    state.reading = here
    return found, told


def _locked(connection: Connection, deployment: Deployment) -> _State:
    """A deployment's row, which nobody else changes before the transaction ends; made if it is missing."""
    table = tables.deployments
    same = _of(table, deployment)
    lock = update(table).where(same).values(holder=table.c.holder)  # SQLite has no `FOR UPDATE`
    if not connection.execute(lock).rowcount:
        _insert_unless_there(connection, deployment)
        connection.execute(lock)
    row = connection.execute(select(table).where(same)).one()
    reading = None if row.reading is None else _reading(row.reading, deployment)
    seen = {str(name): float(at_s) for name, at_s in json.loads(row.seen).items()}
    return _State(row.holder, row.until_s, row.run, seen, reading, row.workers_usd, row.links_usd)


def _reading(text: str, deployment: Deployment) -> Reading:
    try:
        return reading_from_text(text)
    except (ValueError, KeyError, TypeError) as error:
        where = f"the last reading of {deployment.name}, {deployment.workflow}, in ledger_deployments"
        raise LedgerError(f"{where} is damaged ({error!r}): delete its row; what was counted since is lost") from error


def _insert_unless_there(connection: Connection, deployment: Deployment) -> None:
    values: dict[str, Any] = {"deployment": deployment.name, "workflow": deployment.workflow, "seen": "{}"}
    values |= {"holder": "", "until_s": 0.0, "run": "", "workers_usd": 0.0, "links_usd": 0.0}
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(tables.deployments).values(**values).on_conflict_do_nothing())


def _store(connection: Connection, deployment: Deployment, state: _State) -> None:
    text = None if state.reading is None else reading_to_text(state.reading)
    values = {"holder": state.holder, "until_s": state.until_s, "run": state.run, "seen": json.dumps(state.seen)}
    values |= {"reading": text, "workers_usd": state.workers_usd, "links_usd": state.links_usd}
    connection.execute(update(tables.deployments).where(_of(tables.deployments, deployment)).values(**values))


def _add_arrivals(connection: Connection, deployment: Deployment, own: Interval) -> None:
    """Note who sent requests, for whoever bills the workers."""
    table = tables.arrivals
    for key, count in _arrived(own):
        same = _of(table, deployment) & (table.c.client == key.client)
        if not connection.execute(update(table).where(same).values(received=table.c.received + count)).rowcount:
            values = {"deployment": deployment.name, "workflow": deployment.workflow, "client": key.client}
            connection.execute(insert(table).values(**values, received=count))


def _arrived(own: Interval) -> Iterator[tuple[RequestKey, int]]:
    return ((line.key, line.counts[RECEIVED]) for line in own.requests if line.counts[RECEIVED])


def _take_arrivals(connection: Connection, deployment: Deployment) -> Mapping[RequestKey, int]:
    table = tables.arrivals
    same = _of(table, deployment)
    found = {
        RequestKey(deployment.workflow, row.client): int(row.received)
        for row in connection.execute(select(table.c.client, table.c.received).where(same).order_by(table.c.client))
    }
    connection.execute(delete(table).where(same))
    return found


def _of(table: Any, deployment: Deployment) -> Any:
    return (table.c.deployment == deployment.name) & (table.c.workflow == deployment.workflow)
