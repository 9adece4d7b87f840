"""Amounts of money as people read them: rounded, and still summing to the rounded total."""

from __future__ import annotations

import math
from collections.abc import Sequence

_DIGITS = 4  # of small totals


def decimals_for(total_usd: float) -> int:
    """Two decimals, or as many as a small total needs for four digits."""
    if total_usd <= 0:
        return 2
    return max(2, min(9, _DIGITS - 1 - math.floor(math.log10(total_usd))))


def amount_text(usd: float) -> str:
    """An amount in USD without unit: two decimals, or four digits if it is small."""
    return f"{usd:,.{decimals_for(usd)}f}"


_SUM_ERROR = 1e-6  # units of the last decimal: far above the error of a sum, and below what is shown


def apportioned(amounts: Sequence[float], decimals: int, total: int | None = None) -> list[int]:
    """The amounts in units of the last decimal, rounded so that their sum is `total`: the rounded sum by default.

    The units that are left over go to those that lose most by rounding down (largest remainder method). Halves are
    rounded up, also those that miss it by an error of their sum: other orders of the same amounts have the same sum.
    """
    unit = 10.0**decimals
    units = [math.floor(amount * unit + _SUM_ERROR) for amount in amounts]
    if total is None:
        total = math.floor(math.fsum(amounts) * unit + 0.5 + _SUM_ERROR)
    left = total - sum(units)
    order = sorted(range(len(amounts)), key=lambda index: units[index] - amounts[index] * unit)
    for index in order[: max(0, left)]:
        units[index] += 1
    for index in order[min(0, left) or len(order) :]:  # amounts just below whole units were rounded up
        units[index] -= 1
    return units


def apportioned_table(rows: Sequence[Sequence[float]], decimals: int) -> list[list[int]]:
    """Rows of amounts in units of the last decimal: they, the columns and the sum of all add up.

    The columns' sums depend on nothing but the amounts' sums, so that other divisions of the same cost have them too.
    """
    columns = list(zip(*rows, strict=True))
    totals = apportioned([math.fsum(column) for column in columns], decimals)
    units = [apportioned(column, decimals, total) for column, total in zip(columns, totals, strict=True)]
    return [list(row) for row in zip(*units, strict=True)]
