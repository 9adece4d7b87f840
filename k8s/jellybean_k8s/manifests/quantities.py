"""Kubernetes quantities of CPU and memory: `250m`, `2Gi`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")  # powers of 1024
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")  # powers of 1000
_UNITS = {unit: Fraction(1024) ** power for power, unit in enumerate(_BINARY, 1)}
_UNITS |= {unit: Fraction(1000) ** (power - _DECIMAL.index("")) for power, unit in enumerate(_DECIMAL)}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([EPTGMK]i|[numkMGTPE]?))")
_MAPS, _VALUES = ("limits", "overhead", "requests"), ("divisor", "sizeLimit")  # keys of a pod with quantities


def cores(cpu: float) -> str:
    """CPU quantity, `2` or `250m`, as the API server normalises it."""
    return canonical_quantity(f"{max(1, math.ceil(cpu * 1000 - 1e-6))}m")


def mebibytes(size: float) -> str:
    """Memory quantity rounded up, `256Mi` or `2Gi`, as the API server normalises it."""
    return canonical_quantity(f"{max(1, math.ceil(size / 2**20))}Mi")


def parse_quantity(quantity: object) -> float:
    """Parse a Kubernetes quantity: 250m, 2Gi, 3, 1e3. ValueError for another text."""
    return float(_parsed(str(quantity))[0])


def canonical_quantity(quantity: object) -> str:
    """The quantity as the API server writes it: without a fraction, in the largest unit that needs none.

    `1024Mi` is `1Gi`, `0.5` is `500m`, `1000` is `1k`; what is binary stays so from 1024 on (apimachinery,
    `resource.Quantity`). ValueError for a text that is no quantity.
    """
    value, unit, exponent = _parsed(str(quantity))
    if unit in _BINARY and abs(value) >= 1024 and value.denominator == 1:
        return _in_largest(value, {name: _UNITS[name] for name in _BINARY} | {"": Fraction(1)})
    value = Fraction(math.ceil(value * 10**9), 10**9)  # nothing is below a nano
    if exponent is None:
        return _in_largest(value, {name: _UNITS[name] for name in _DECIMAL})
    return _in_largest(value, {f"e{power}" if power else "": Fraction(10) ** power for power in range(-9, 40, 3)})


def _in_largest(value: Fraction, units: Mapping[str, Fraction]) -> str:
    """The value in the largest of the units (smallest first) of which it is a whole number."""
    ordered = sorted(units.items(), key=lambda item: item[1], reverse=True)
    unit, size = next((name, size) for name, size in ordered if value % size == 0) if value else ("", Fraction(1))
    return f"{value / size}{unit}"


def with_canonical_quantities(value: Any) -> Any:
    """A pod template with all quantities as the API server writes them; a text that is none is left to it to refuse.

    Otherwise an object would differ from what was applied, and would be applied again for ever.
    """
    if isinstance(value, Mapping):
        return {key: _canonical(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_canonical_quantities(item) for item in value]
    return value


def _canonical(key: str, value: Any) -> Any:
    if key in _MAPS and isinstance(value, Mapping):
        return {name: _canonical_or_same(item) for name, item in value.items()}
    return _canonical_or_same(value) if key in _VALUES else with_canonical_quantities(value)


def _canonical_or_same(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return canonical_quantity(value)
    except ValueError:
        return value


def _parsed(text: str) -> tuple[Fraction, str, str | None]:
    """Value, unit, and exponent of ten (None without one)."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity, such as 250m or 2Gi")
    number, exponent, unit = Fraction(match[1]), match[2], match[3] or ""
    return number * (Fraction(10) ** int(exponent) if exponent else _UNITS[unit]), unit, exponent
