"""Human units to SI and back: the only place that knows what `20 ms` or `0.10 USD/GiB` is.

Durations become seconds, sizes bytes, bandwidths bytes per second, rates per second. Prices stay as bills state them:
USD per hour and USD per GiB. A number without a unit is refused where a unit is needed, because a wrong guess of the
unit is a plan that is wrong by 1000.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*([+-]?)({_NUMBER})\s*(\S(?:.*\S)?)?\s*", re.DOTALL)
_LONGEST = 100

_GIB = 2**30
_SIZES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_DECIMAL_SIZES = {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BITS = {"bit/s": 1 / 8, "kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}


class UnitError(ValueError):
    """A quantity that cannot be read. `hint` says what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Kind:
    """A kind of quantity: its units as factors to the unit that the code uses, and what to write as an example.

    `human` are the units that `format_quantity` chooses from, in ascending order; `usual` those that are offered for a
    number without one: which was meant only its author knows.
    """

    name: str
    units: Mapping[str, float]
    zero: str
    example: str
    human: tuple[str, ...]
    usual: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """A regular expression (ECMAScript, as JSON Schema wants) of all that is accepted."""
        units = "|".join(re.escape(unit).replace("/", r"\/") for unit in self.units)
        return rf"^\s*(?:{_NUMBER})\s*(?:{units})\s*$"


DURATION = Kind(
    "duration",
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    "ms",
    "20 ms",
    ("ns", "us", "ms", "s", "min", "h"),
    ("us", "ms", "s"),
)
SIZE = Kind("size", {**_SIZES, **_DECIMAL_SIZES}, "KiB", "794 KiB", tuple(_SIZES), ("B", "KiB", "MiB", "GiB"))
BANDWIDTH = Kind(
    "bandwidth",
    {**_BITS, **{f"{unit}/s": factor for unit, factor in {**_SIZES, **_DECIMAL_SIZES}.items()}},
    "Mbit/s",
    "100 Mbit/s",
    ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"),
    ("kbit/s", "Mbit/s", "MB/s"),
)
RATE = Kind(
    "rate",
    {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/d": 1 / 86400},
    "/s",
    "40/s",
    ("/d", "/h", "/min", "/s"),
    ("/s", "/min", "/h"),
)
PRICE = Kind("price", {"USD": 1.0}, "USD", "0.02 USD", ("USD",), ("USD",))
PRICE_PER_H = Kind("price per hour", {"USD/h": 1.0}, "USD/h", "0.096 USD/h", ("USD/h",), ("USD/h",))
PRICE_PER_GIB = Kind(
    "price per GiB",
    {"USD/GiB": 1.0, "USD/GB": _GIB / 1e9, "USD/TiB": 1 / 1024, "USD/TB": _GIB / 1e12},
    "USD/GiB",
    "0.10 USD/GiB",
    ("USD/GiB",),
    ("USD/GiB", "USD/GB", "USD/TB"),
)
PERCENT = Kind("percentage", {"%": 0.01}, "%", "3 %", ("%",), ("%",))
# Whose units say what was meant instead. Not PRICE: a price per hour or GiB is more likely than it.
KINDS = (DURATION, SIZE, BANDWIDTH, RATE, PRICE_PER_H, PRICE_PER_GIB, PERCENT)


def parse_quantity(kind: Kind, value: object) -> float:
    """The quantity in SI (or USD per h, USD per GiB). UnitError with a hint unless number and unit are right."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnitError(f"{describe(value)} is no {kind.name}", f"write for example {kind.example}")
    if isinstance(value, int | float):
        text = _finite_text(kind, value)
        raise UnitError(f"{text} has no unit", _units_hint(kind, text))
    match = _QUANTITY.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        raise UnitError(f"{shown(value)} is no {kind.name}", f"write for example {kind.example}")
    sign, number, unit = match.groups()
    if unit is None:
        raise UnitError(f"{shown(value)} has no unit", _units_hint(kind, sign + number))
    if unit not in kind.units:
        raise UnitError(f"{shown(value)} has no unit of a {kind.name}", _unit_hint(kind, unit))
    return _checked(kind, value, float(sign + number) * kind.units[unit])


def parse_fraction(value: object) -> float:
    """A share between 0 and 1, written `0.8` or `80 %`."""
    if isinstance(value, str):
        return parse_quantity(PERCENT, value)
    return parse_number("share", value, "0.8 or 80 %")


def parse_percent(value: object) -> float:
    """A figure in percent, written `56` or `56 %`; 56.0 either way."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value) if len(value) <= _LONGEST else None
        if match is None or match[3] != "%":
            raise UnitError(f"{shown(value)} is no percentage", "write for example 56 or 56 %")
        value = float(match[1] + match[2])
    return parse_number("percentage", value, "56 or 56 %", negative=True)


def parse_number(name: str, value: object, example: str, *, negative: bool = False) -> float:
    """A plain number without a unit; not negative unless `negative`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnitError(f"{describe(value)} is no {name}", f"write a number, for example {example}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnitError(f"{name} must be finite, not {number}", f"write for example {example}")
    if number < 0 and not negative:
        raise UnitError(f"{name} must not be negative: {number:g}", f"write for example {example}")
    return number


def format_quantity(kind: Kind, value: float, digits: int | None = None) -> str:
    """The quantity for people, in the unit that keeps the number small but at least 1.

    `digits` rounds to that many significant digits; without it there are as many as reading back the very same value
    takes.
    """
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"{value} is no {kind.name}", f"give for example {kind.example}")
    unit = kind.human[0] if value else kind.zero
    for candidate in kind.human:
        if value >= kind.units[candidate] * (1 - 1e-12):
            unit = candidate
    number = value / kind.units[unit]
    if digits is not None:
        return _spaced(_plain(number, digits), unit)
    for count in range(1, 18):
        text = _plain(number, count)
        if float(text) * kind.units[unit] == value:
            break
    return _spaced(text, unit)


def rounded_up(kind: Kind, value: float, digits: int = 4) -> float:
    """The least quantity of at least `value` that is written with so many digits."""
    steps = (value * (1 + step * 1.02 * 10.0**-digits) for step in range(7))  # half of the last digit is five of them
    written = (parse_quantity(kind, format_quantity(kind, step, digits)) for step in steps)
    return next((found for found in written if found >= value), value)


def format_number(number: float, digits: int) -> int | float:
    """The number rounded to significant digits; an int when it is one, as a person would write it."""
    rounded = float(f"{number:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def describe(value: object) -> str:
    """A YAML value in a few words, for messages."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    text = f"{value:g}" if isinstance(value, float) else _int_text(value)
    return f"the number {text}"


def shown(text: str) -> str:
    """Quoted, short and printable."""
    short = text if len(text) <= 40 else text[:37] + "..."
    return repr(short)


def close(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known word nearest to `word`, else nothing."""
    found = nearest(word, known)
    return "" if found is None else f"did you mean {found!r}?"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    words = list(known)
    lowered = {item.lower(): item for item in words}
    if word.lower() in lowered:
        return lowered[word.lower()]
    found = difflib.get_close_matches(word[:_LONGEST], words, n=1, cutoff=0.6)
    return found[0] if found else None


def _int_text(value: object) -> str:
    try:
        text = str(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "of very many digits"
    return text if len(text) <= 40 else text[:37] + "..."


def _finite_text(kind: Kind, value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise UnitError(f"{value} is no {kind.name}", f"write for example {kind.example}")
    if value < 0:
        raise UnitError(f"a {kind.name} must not be negative: {describe(value)}", f"write for example {kind.example}")
    return _int_text(value)


def _checked(kind: Kind, text: str, value: float) -> float:
    if not math.isfinite(value):
        raise UnitError(f"{shown(text)} is too large", f"write for example {kind.example}")
    if value < 0 or math.copysign(1.0, value) < 0:
        raise UnitError(f"a {kind.name} must not be negative: {shown(text)}", f"write for example {kind.example}")
    return value


def _units_hint(kind: Kind, number: str) -> str:
    """`give a unit: 512 B, 512 KiB or 512 MiB`: the number with each unit that it may have been meant in."""
    if not number.lstrip("+-.")[:1].isdigit():
        return f"write for example {kind.example}"
    written = [_spaced(number, unit) for unit in kind.usual]
    return f"write {written[0]}" if len(written) == 1 else f"give a unit: {', '.join(written[:-1])} or {written[-1]}"


def _unit_hint(kind: Kind, unit: str) -> str:
    for other in KINDS:
        if other is not kind and unit in other.units and not (kind is PERCENT and other is PERCENT):
            return f"{unit!r} is the unit of a {other.name}; write for example {kind.example}"
    near = close(unit, kind.units)
    return near or f"units of a {kind.name}: {', '.join(kind.units)}"


def _spaced(number: str, unit: str) -> str:
    return f"{number}{unit}" if unit.startswith("/") else f"{number} {unit}"


def _plain(number: float, digits: int) -> str:
    """Significant digits without an exponent where that stays short."""
    text = f"{number:.{digits}g}"
    if "e" not in text:
        return text
    plain = f"{float(text):f}".rstrip("0").rstrip(".")
    return plain if len(plain) <= digits + 8 and float(plain) == float(text) else text
