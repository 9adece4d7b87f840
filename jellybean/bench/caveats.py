"""What limits a measurement: sentences that travel with it into the report store, the report, its JSON and its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LATE = 0.05  # share of a worker's busy time; below it, lateness of an emulated device does not affect the latencies


def find_caveats(
    late: Mapping[str, float], deaths: Sequence[str] = (), *, joined: bool = False, stale_accuracy: str = ""
) -> Iterator[str]:
    """Sentences about processes that died, changed data, a machine that was too slow or busy, and boxes that joined.

    `late`: worker -> share of its busy time by which it was slower than the device it emulates. `stale_accuracy`: the
    sentence about changed labels or held-out inputs.
    """
    yield from deaths
    if stale_accuracy:
        yield stale_accuracy
    share = max(late.values(), default=0.0)
    if share > LATE:
        worst = max(late, key=lambda name: late[name])
        yield (
            f"this machine was too slow or too busy to emulate the fleet: {share:.0%} of the time that {worst} was "
            "busy, its device would have been done; measured latencies contain that delay; close other programs and "
            "measure again; if it stays so, offer less (`bench --rate-scale 0.5`), or `profile --fresh` and plan again"
        )
    if joined:
        yield (
            "measured through a gateway: workers that `up` started there emulate the plan's speeds and links; boxes "
            "that joined do not, so where theirs differ from the plan's, latencies differ from the predicted ones"
        )


def recorded_caveats(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The caveats of a measurement's record; records that were stored without them have the figures they come from."""
    stored = record.get("caveats")
    return tuple(map(str, stored)) if stored is not None else tuple(find_caveats(record.get("late") or {}))
