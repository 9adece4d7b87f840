"""Format figures for display: three significant digits and a unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from jellybean_solver import (
    duration_text,
    grouped_text,
    number_text,
    plain_text,
    size_text,
    unit_text,
    usd_text,
    without_zeros,
)

MISSING = "–"
SMALL_LOAD, LEAST_LOAD = 0.005, 0.0001  # below them a load has more than two decimals, or only this bound

# Units in which a value is shown: name, factor, least value.
_DECIMAL_SIZES = (
    ("B", 1.0, 0.0),
    *((name, factor, factor) for name, factor in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))),
)
_AXIS_UNITS = (("µs", 1e-6, 0.0), ("ms", 1e-3, 1e-3), ("s", 1.0, 1.0))
# Units of a span of time and of an axis over it: seconds of the least span, seconds of the unit, its names.
_SPAN_UNITS = (
    (3 * 86_400.0, 86_400.0, "days", "d"),
    (3 * 3600.0, 3600.0, "hours", "h"),
    (300.0, 60.0, "minutes", "min"),
    (0.0, 1.0, "seconds", "s"),
)


def number(value: float | None, digits: int = 3) -> str:
    """A number as text with `digits` significant digits and without an exponent: 7.01, 0.00430, 1,234."""
    return MISSING if value is None else grouped_text(number_text(value, digits))


def usd(value: float | None) -> str:
    """An amount in USD per hour as text without unit: two decimals, or four below 0.1."""
    return MISSING if value is None else usd_text(value)


def duration(seconds: float | None) -> str:
    """A duration: 1.20 ms, 340 ms, 2.50 s, 3.00 min."""
    return MISSING if seconds is None else duration_text(seconds)


def axis_duration(seconds: float) -> str:
    """A duration without trailing zeros, for axes: 100 ms, 1 s, 10 s, 1000 s."""
    if seconds == 0:
        return "0 s"
    text, unit = unit_text(seconds, _AXIS_UNITS, 4)
    return f"{without_zeros(text)} {unit}"


def span_unit(length_s: float) -> tuple[float, str]:
    """The unit of an axis over a span of time: its seconds and its name, such as `minutes` below three hours."""
    return next((unit_s, name) for least_s, unit_s, name, _ in _SPAN_UNITS if length_s >= least_s)


def span(length_s: float) -> str:
    """The length of a span of time in the unit of its axis: 24 h, 90 min, 7 d."""
    unit_s, short = next((unit_s, short) for least_s, unit_s, _, short in _SPAN_UNITS if length_s >= least_s)
    return f"{plain(length_s / unit_s)} {short}"


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
    return " ".join(unit_text(size_bytes, _DECIMAL_SIZES))


def axis_size(size_bytes: float) -> str:
    """A decimal size without trailing zeros, for axes: 10 MB."""
    text, unit = unit_text(size_bytes, _DECIMAL_SIZES)
    return f"{without_zeros(text)} {unit}"


def size(size_bytes: float | None) -> str:
    """A size in binary units: B, KiB, MiB, GiB."""
    return MISSING if size_bytes is None else size_text(size_bytes)


def plain(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits and without trailing zeros: 4, 0.25, 56.5."""
    return MISSING if value is None else plain_text(value, digits)


def percent(fraction: float | None) -> str:
    """A fraction as a percentage without decimals: 0.994 is 99 %."""
    if fraction is None:
        return MISSING
    return f"{fraction * 100:.0f} %" if fraction == 0 or fraction >= 0.01 else "< 1 %"


def count(number: int, noun: str) -> str:
    """A number of things: `1 measurement`, `2 measurements`, `1,200 boxes`."""
    return f"{number:,} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    """The noun as it stands behind the number: `worker` behind 1, otherwise `workers`."""
    if number == 1:
        return noun
    return noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")


def load(share: float) -> str:
    """A worker's load with two decimals, below 0.005 with the first digit that is not zero: 0.73, 0.004, < 0.0001."""
    if 0 < share < LEAST_LOAD:
        return f"< {LEAST_LOAD:.4f}"
    return number(share, 1) if 0 < share < SMALL_LOAD else f"{share:.2f}"


def accuracy(value: float | None) -> str:
    """An accuracy in percent as text, with two decimals and without the percent sign."""
    return MISSING if value is None else f"{value:.2f}"


def moment(unix_s: float | None) -> str:
    """A Unix time as text in UTC, to the minute."""
    return MISSING if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def clock(seconds: float) -> str:
    """Time since 0 as hours and minutes, with days from the second one on: `06:30`, `24:00`, `1d 06:30`."""
    days, of_day = divmod(round(seconds), 86_400)
    if days == 1 and of_day == 0:
        days, of_day = 0, 86_400
    minutes, left = divmod(of_day, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}" + (f":{left:02}" if left else "")
    return f"{days}d {text}" if days else text


def tier(name: str, sites: Mapping[str, int]) -> str:
    """A tier with its number of sites, if it has several: `1,000 x store`."""
    count = sites.get(name, 1)
    return f"{count:,} x {name}" if count > 1 else name
