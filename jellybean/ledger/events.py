"""What happened to serving: it began, a plan took over, the gateway was started again, it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from jellybean.ledger.readings import Reading


class EventKind(StrEnum):
    """Kinds of events."""

    UP = "up"
    PLAN = "plan"  # another plan serves new requests
    RESTART = "restart"  # of the gateway in a run
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Event:
    """`plan`: that serves from then on, or that served. `note`: what else is to be said."""

    at_unix_s: float
    run: str
    kind: EventKind
    plan: str
    note: str = ""


def events(before: Reading | None, now: Reading) -> Iterator[Event]:
    """What happened between two readings, as they tell it."""
    if not now.tells_events:
        return
    at_s, plan = now.at.unix_s, now.serving
    if before is None or before.run != now.run:
        yield Event(at_s, now.run, EventKind.UP, plan)
    elif now.is_first:
        yield Event(at_s, now.run, EventKind.RESTART, plan, now.note)
    if before is not None and before.run == now.run and before.serving != plan:
        yield Event(at_s, now.run, EventKind.PLAN, plan, f"in place of {before.serving}")
    if now.is_last:
        yield Event(at_s, now.run, EventKind.DOWN, plan)
