"""What happened to a project, in order: plans, predictions and measurements of the store, and events of the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jellybean.display import formats
from jellybean.ledger.events import Event, EventKind
from jellybean.report.store import StoreRow

_KINDS = {
    "plan": "planned",
    "prediction": "simulated",
    "bench": "measured",
    "scaled": "measured at another rate",
    "saturate": "measured its highest rate",
}
_EVENTS = {
    EventKind.UP: "up",
    EventKind.PLAN: "plan took over",
    EventKind.RESTART: "gateway started again",
    EventKind.DOWN: "down",
}


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """`what` happened at `at_unix_s` to the plan of hash `plan`; `text` says more.

    `workflow`: the one that was measured; empty for all else.
    """

    at_unix_s: float
    what: str
    plan: str
    text: str
    workflow: str = ""

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return asdict(self)


def history(rows: Sequence[StoreRow], events: Sequence[Event]) -> tuple[HistoryEntry, ...]:
    """All entries, the oldest first."""
    found = [*_of_rows(rows), *map(_of_event, events)]
    return tuple(sorted(found, key=lambda entry: entry.at_unix_s))


def _of_rows(rows: Sequence[StoreRow]) -> Iterator[HistoryEntry]:
    for row in rows:
        workflow = str(row.record.get("workflow") or "")
        own = f"{workflow}: " if row.record.get("beside") else ""  # it is one of several
        text = own + "; ".join(_figures(row.record))
        yield HistoryEntry(row.created_s, _KINDS[row.kind], row.plan_hash, text, workflow)


def _of_event(event: Event) -> HistoryEntry:
    return HistoryEntry(event.at_unix_s, _EVENTS[event.kind], event.plan, event.note)


def _figures(record: Mapping[str, Any]) -> Iterator[str]:
    """What a record of the store says, as short texts."""
    if (status := record.get("status")) is not None:
        yield str(status)
    if (cost := record.get("cost_usd_per_h")) is not None:
        yield f"{formats.usd(cost)} USD/h"
    if (accuracy := record.get("accuracy")) is not None:
        yield f"accuracy {formats.accuracy(accuracy)}"
    if (throughput := record.get("throughput_per_s")) is not None:
        yield f"{formats.rate(throughput)}"
    if (p99_s := record.get("latency_p99_s")) is not None:
        yield f"p99 {formats.duration(p99_s)}"
    if (highest := record.get("highest_rate_per_s")) is not None:
        at_least = "at least " if record.get("highest_rate_is_limit") else ""
        yield f"highest rate {at_least}{formats.rate(highest)}"
    yield from record.get("breaches", ())
