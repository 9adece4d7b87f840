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


def apportioned(amounts: Sequence[float], decimals: int) -> list[int]:
    """The amounts in units of the last decimal, rounded so that their sum is the rounded sum of all.

    The units that are left over go to those that lose most by rounding down (largest remainder method).
    """
    unit = 10.0**decimals
    units = [math.floor(amount * unit) for amount in amounts]
    left = round(math.fsum(amounts) * unit) - sum(units)
    order = sorted(range(len(amounts)), key=lambda index: units[index] - amounts[index] * unit)
    for index in order[:left]:
        units[index] += 1
    return units
