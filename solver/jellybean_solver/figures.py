"""Figures as text, for every message and table: significant digits, a unit, and no exponent.

A figure is rounded before its decimals and unit are chosen, so that 99.99999 is `100` and 0.99999 s is `1.00 s`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

SMALLEST_PLAIN = 1e-3  # below it a number of a sentence keeps its digits, whatever decimals or exponent that takes
MOST_DECIMALS = 3  # decimals beyond the significant digits: 0.0000123 with three digits is shown as 0.000012
USD_DECIMALS, SMALL_USD_DECIMALS, SMALL_USD = 2, 4, 0.1

MOST_IN_UNIT = 10_000.0  # two durations share a unit in which both are below this

Unit = tuple[str, float, float]  # name, factor, least value shown in it

DURATION_UNITS: tuple[Unit, ...] = (
    ("µs", 1e-6, 0.0),
    ("ms", 1e-3, 1e-3),
    ("s", 1.0, 1.0),
    ("min", 60.0, 120.0),
)
SIZE_UNITS: tuple[Unit, ...] = (
    ("B", 1.0, 0.0),
    ("KiB", 2.0**10, 2.0**10),
    ("MiB", 2.0**20, 2.0**20),
    ("GiB", 2.0**30, 2.0**30),
    ("TiB", 2.0**40, 2.0**40),
)


def number_text(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, or more before the point: 7.01, 0.00430, 1234.

    At most `digits` + 3 decimals.
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value
    return f"{value:.{min(max(0, digits - 1 - exponent), digits + MOST_DECIMALS)}f}"


def unit_text(value: float, units: Sequence[Unit], digits: int = 3) -> tuple[str, str]:
    """Number and unit of a value, in the smallest of `units` that keeps the number, as shown, below the next unit.

    `units` ascend; their factors turn them into the unit of `value`.
    """
    for (name, factor, _), (_, _, following) in pairwise(units):
        text = number_text(value / factor, digits)
        if abs(float(text)) * factor < following * (1 - 1e-12):
            return text, name
    name, factor, _ = units[-1]
    return number_text(value / factor, digits), name


def duration_text(seconds: float, digits: int = 3) -> str:
    """A duration with `digits` significant digits: 1.20 ms, 340 ms, 2.50 s, 3.00 min."""
    return " ".join(unit_text(seconds, DURATION_UNITS, digits))


def distinct_durations(one_s: float, other_s: float) -> tuple[str, str]:
    """Two durations in one unit, with three to eight significant digits, as show their difference: 40.02 and 40.00 ms.

    The unit is that of the smaller one, unless the other would have more than four digits before the point.
    """
    least_s, most_s = sorted((abs(one_s), abs(other_s)))
    unit = next(unit for unit in DURATION_UNITS if unit[0] == unit_text(least_s, DURATION_UNITS)[1])
    units = (unit,) if most_s < MOST_IN_UNIT * unit[1] else DURATION_UNITS
    for digits in range(3, 9):
        texts = " ".join(unit_text(one_s, units, digits)), " ".join(unit_text(other_s, units, digits))
        if texts[0] != texts[1]:
            return texts
    return duration_text(one_s), duration_text(other_s)


def size_text(size_bytes: float) -> str:
    """A size in binary units with at most three significant digits: 700 MiB, 1.5 GiB."""
    return _size_text(size_bytes, 3)


def distinct_sizes(one_bytes: float, other_bytes: float) -> tuple[str, str]:
    """Two sizes with three to eight significant digits, as show their difference: 1.0004 GiB and 1 GiB."""
    for digits in range(3, 9):
        texts = _size_text(one_bytes, digits), _size_text(other_bytes, digits)
        if texts[0] != texts[1]:
            return texts
    return size_text(one_bytes), size_text(other_bytes)


def _size_text(size_bytes: float, digits: int) -> str:
    text, unit = unit_text(size_bytes, SIZE_UNITS, digits)
    return f"{without_zeros(text)} {unit}"


def without_zeros(text: str) -> str:
    """A number as text without zeros at the end of its decimals."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def grouped_text(text: str) -> str:
    """A number as text with its thousands apart: 38,080 for 38080."""
    return f"{Decimal(text):,f}" if math.isfinite(float(text)) else text


def plain_text(value: float, digits: int = 6) -> str:
    """A number of a sentence, with thousands apart and no zeros at the end: 24.31, 60, 38,080, 1,000,000.

    It has `digits` significant digits, or more before the point. What is far below 1 has an exponent: 5e-12.
    """
    if 0 < abs(value) < SMALLEST_PLAIN:
        return f"{value:.{digits}g}"
    return grouped_text(without_zeros(number_text(value, digits)))


def listed(items: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """The first `most` items in words, and the number of the others: `a, b, c and 4 more`."""
    more = len(items) - most
    return between.join(items[:most]) + (f" and {more} more" if more > 0 else "")


def rate_text(per_s: float, digits: int = 6) -> str:
    """A rate of a sentence, as by `plain_text`: 24.31/s, 1,000,000/s."""
    return f"{plain_text(per_s, digits)}/s"


def usd_text(value: float, decimals: int = 0) -> str:
    """An amount in USD per hour without unit: two decimals, four below 0.1, and at least `decimals`.

    An amount other than 0 is never shown as 0, but as `< 0.0001` or `> -0.0001`.
    """
    least = 10.0 ** -max(decimals, SMALL_USD_DECIMALS)
    if 0 < abs(value) < least:
        return f"{'< ' if value > 0 else '> -'}{least:.{max(decimals, SMALL_USD_DECIMALS)}f}"
    is_small = value != 0 and abs(round(value, SMALL_USD_DECIMALS)) < SMALL_USD
    return f"{value + 0.0:.{max(decimals, SMALL_USD_DECIMALS if is_small else USD_DECIMALS)}f}"


def distinct_usd(one: float, other: float) -> tuple[str, str]:
    """Two amounts in USD per hour with as many decimals as show their difference: 0.7812 and 0.7831.

    At most six decimals: amounts that are equal in them are shown as by `usd_text`.
    """
    for decimals in range(USD_DECIMALS, 7):
        if f"{one:.{decimals}f}" != f"{other:.{decimals}f}":
            return usd_text(one, decimals), usd_text(other, decimals)
    return usd_text(one), usd_text(other)
