"""Format figures for display: three significant digits and a unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

MISSING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """A number as text with `digits` significant digits and without an exponent: 7.01, 0.0043, 1234."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = digits - 1
    while magnitude >= 10 and decimals > 0:
        magnitude, decimals = magnitude / 10, decimals - 1
    while 0 < magnitude < 1 and decimals < digits + 3:
        magnitude, decimals = magnitude * 10, decimals + 1
    return f"{value:.{decimals}f}"


def usd(value: float | None) -> str:
    """An amount in USD per hour as text without unit: two decimals, or four below 0.1."""
    if value is None:
        return MISSING
    if 0 < value < 0.0001:
        return "< 0.0001"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4f}"


def duration(seconds: float | None) -> str:
    """A duration: 1.2 ms, 340 ms, 2.5 s, 3 min."""
    if seconds is None:
        return MISSING
    if seconds < 1e-3:
        return f"{number(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    return f"{number(seconds)} s" if seconds < 120 else f"{number(seconds / 60)} min"


def axis_duration(seconds: float) -> str:
    """A duration without trailing zeros, for axes: 100 ms, 1 s, 10 s, 1000 s."""
    if seconds == 0:
        return "0 s"
    unit, factor = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    return f"{plain(seconds * factor)} {unit}"


def usd_column(values: Sequence[float]) -> tuple[str, ...]:
    """Amounts in USD per hour with the same decimals, so that a column can be compared: two, or four if all are small.

    An amount that would be shown as zero is `< 0.01`.
    """
    decimals = 4 if max(map(abs, values), default=0.0) < 1 and any(0 < abs(value) < 0.1 for value in values) else 2
    least = 10.0**-decimals
    return tuple(f"< {least:.{decimals}f}" if 0 < value < least / 2 else f"{value:.{decimals}f}" for value in values)


def interval(seconds: float | None, low_s: float | None, high_s: float | None) -> str:
    """A duration with its confidence interval: `1.66 s (1.61 to 1.71)`; without one, the duration alone."""
    stated = duration(seconds)
    if seconds is None or low_s is None or high_s is None:
        return stated
    value, low, high = (duration(each).split() for each in (seconds, low_s, high_s))
    if value[1] == low[1] == high[1]:
        return f"{stated} ({low[0]} to {high[0]})"
    return f"{stated} ({' '.join(low)} to {' '.join(high)})"


def rate(per_s: float | None) -> str:
    """A rate in requests per second as text."""
    return MISSING if per_s is None else f"{number(per_s)}/s"


def byte_rate(bytes_per_s: float | None) -> str:
    """A byte rate in decimal units: B/s, kB/s, MB/s, GB/s."""
    return MISSING if bytes_per_s is None else f"{decimal_size(bytes_per_s)}/s"


def decimal_size(size_bytes: float) -> str:
    """A size in decimal units, as papers, data sheets and bandwidths have them: B, kB, MB, GB, TB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{number(size_bytes / factor)} {unit}"
    return f"{number(size_bytes)} B"


def axis_size(size_bytes: float) -> str:
    """A decimal size without trailing zeros, for axes: 10 MB."""
    value, unit = decimal_size(size_bytes).split()
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"


def size(size_bytes: float | None) -> str:
    """A size in binary units: B, KiB, MiB, GiB."""
    if size_bytes is None:
        return MISSING
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{plain(size_bytes / factor, 3)} {unit}"
    return f"{plain(size_bytes)} B"


def plain(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits and without trailing zeros: 4, 0.25, 56.5."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(fraction: float | None) -> str:
    """A fraction as a percentage without decimals: 0.994 is 99 %."""
    if fraction is None:
        return MISSING
    return f"{fraction * 100:.0f} %" if fraction == 0 or fraction >= 0.01 else "< 1 %"


def accuracy(value: float | None) -> str:
    """An accuracy in percent as text, with two decimals and without the percent sign."""
    return MISSING if value is None else f"{value:.2f}"


def moment(unix_s: float | None) -> str:
    """A Unix time as text in UTC, to the minute."""
    return MISSING if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def tier(name: str, sites: Mapping[str, int]) -> str:
    """A tier with its number of sites, if it has several: `1,000 x store`."""
    count = sites.get(name, 1)
    return f"{count:,} x {name}" if count > 1 else name
