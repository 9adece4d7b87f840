"""The table of limits in docs/security.md says what the code does."""

from __future__ import annotations

from jellybean_agent import PORT_LIMITS, PortLimits
from tests.support.paths import ROOT

SIZES = ((2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def size(count: int) -> str:
    unit, name = next((unit, name) for unit, name in SIZES if count >= unit or unit == 1)
    return f"{count // unit} {name}"


def time(seconds: float) -> str:
    for unit_s, name in ((3600, "h"), (60, "min")):
        if seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {name}"
    return f"{seconds:g} s"


def cells(limits: PortLimits) -> list[str]:
    """A row of the table without its port."""
    return [
        f"{limits.connections:,}",
        time(limits.first_call_s),
        time(limits.idle_s),
        f"{limits.calls:,}",
        str(limits.reserved_calls),
        time(limits.body_s),
        f"{limits.streams:,}",
        size(limits.message_bytes),
        limits.busy_end.value,
    ]


def test_the_table_of_limits_has_a_row_for_each_port_with_its_limits() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = [line for line in text.partition("## Limits of every port")[2].splitlines() if line.startswith("| `")]
    rows = [line.strip("| ").split(" | ") for line in lines[: len(PORT_LIMITS)]]
    written = {row[0].split("`")[1]: row[1:] for row in rows}
    assert written == {port.value: cells(limits) for port, limits in PORT_LIMITS.items()}
