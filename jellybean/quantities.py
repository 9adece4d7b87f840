"""Parse and format quantities with units (`20 ms`, `0.10 USD/GiB`).

Durations become seconds, sizes bytes, bandwidths bytes per second, rates per second; prices stay in USD per hour and
USD per GiB. A number without a unit is rejected: guessing the unit could make a plan wrong by a factor of 1000.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from jellybean.unit_hints import number_readings, readings, time_readings

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
_ABOVE_ZERO = r"(?:[0-9]*[1-9][0-9]*(?:\.[0-9]*)?|[0-9]*\.[0-9]*[1-9][0-9]*)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*([+-]?)({_NUMBER})\s*(\S(?:.*\S)?)?\s*", re.DOTALL)
_DECIMAL = re.compile(rf"[+-]?(?:{_NUMBER})")
_MAX_CHARACTERS = 100

_GIB = 2**30
_SIZES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_DECIMAL_SIZES = {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BITS = {"bit/s": 1 / 8, "kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}


class InvalidValueError(ValueError):
    """An invalid value in a document or an option. `hint` says what to write instead.

    `keys`: those that contradict each other, of the map that is invalid; `sync.way` is a key of a map in it.
    """

    def __init__(self, message: str, hint: str = "", *, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.keys = keys


@dataclass(frozen=True)
class QuantityKind:
    """A kind of quantity, for example a duration. `units` maps each unit to its factor to the unit used in code.

    `zero` is the unit in which 0 is written, `display` are the units that `format_quantity` chooses from, ascending,
    and `suggested` the units offered in the error message for a number without a unit. `least`, `most`: in the unit
    used in code, beyond which a value other than 0 is a mistake, and programs of planning fail.
    """

    name: str
    units: Mapping[str, float]
    zero: str
    example: str
    display: tuple[str, ...]
    suggested: tuple[str, ...]
    least: float = 1e-12
    most: float = 1e15

    @property
    def pattern(self) -> str:
        """ECMAScript regular expression of the accepted texts, for JSON Schema."""
        return rf"^\s*(?:{_NUMBER})\s*{self.unit_pattern}\s*$"

    @property
    def unit_pattern(self) -> str:
        """ECMAScript regular expression of the units."""
        units = "|".join(re.escape(unit).replace("/", r"\/") for unit in self.units)
        return rf"(?:{units})"


def above_zero(pattern: str) -> str:
    """The pattern of a quantity for numbers above 0 alone, without lookahead, which Kubernetes does not know."""
    return pattern.replace(_NUMBER, _ABOVE_ZERO, 1)


DURATION = QuantityKind(
    "duration",
    {
        "ns": 1e-9,
        "us": 1e-6,
        "µs": 1e-6,
        "μs": 1e-6,
        "ms": 1e-3,
        "s": 1.0,
        "min": 60.0,
        "h": 3600.0,
        "d": 86400.0,
        "day": 86400.0,
        "days": 86400.0,
    },
    "ms",
    "20 ms",
    ("ns", "us", "ms", "s", "min", "h"),
    ("us", "ms", "s"),
)
SIZE = QuantityKind(
    "size", {**_SIZES, **_DECIMAL_SIZES}, "KiB", "794 KiB", tuple(_SIZES), ("B", "KiB", "MiB", "GiB"), 0.0, 1e18
)
BANDWIDTH = QuantityKind(
    "bandwidth",
    {**_BITS, **{f"{unit}/s": factor for unit, factor in {**_SIZES, **_DECIMAL_SIZES}.items()}},
    "Mbit/s",
    "100 Mbit/s",
    ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"),
    ("kbit/s", "Mbit/s", "MB/s"),
    most=1e18,
)
RATE = QuantityKind(
    "rate",
    {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/d": 1 / 86400, "/day": 1 / 86400},
    "/s",
    "40/s",
    ("/d", "/h", "/min", "/s"),
    ("/s", "/min", "/h"),
    least=1e-9,
)
PRICE = QuantityKind("price", {"USD": 1.0}, "USD", "0.02 USD", ("USD",), ("USD",))
PRICE_PER_H = QuantityKind(
    "price per hour",
    {"USD/h": 1.0, "USD/d": 1 / 24, "USD/day": 1 / 24, "USD/month": 1 / 730},  # 8,760 hours a year, as clouds count
    "USD/h",
    "0.096 USD/h",
    ("USD/h",),
    ("USD/h",),
)
PRICE_PER_GIB = QuantityKind(
    "price per GiB",
    {"USD/GiB": 1.0, "USD/GB": _GIB / 1e9, "USD/TiB": 1 / 1024, "USD/TB": _GIB / 1e12},
    "USD/GiB",
    "0.10 USD/GiB",
    ("USD/GiB",),
    ("USD/GiB", "USD/GB", "USD/TB"),
)
POWER = QuantityKind("power", {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}, "W", "120 W", ("W", "kW"), ("W", "kW"))
ENERGY_PER_GIB = QuantityKind(
    "energy per GiB",
    {"Wh/GiB": 1.0, "Wh/GB": _GIB / 1e9, "kWh/GiB": 1e3, "kWh/GB": _GIB / 1e6},
    "Wh/GiB",
    "20 Wh/GB",
    ("Wh/GiB", "kWh/GiB"),
    ("Wh/GB", "kWh/GB"),
)
PRICE_PER_KWH = QuantityKind(
    "price of energy", {"USD/kWh": 1e-3, "USD/MWh": 1e-6}, "USD/kWh", "0.12 USD/kWh", ("USD/kWh",), ("USD/kWh",)
)
CARBON_PER_KWH = QuantityKind(
    "carbon intensity", {"g/kWh": 1e-3, "kg/kWh": 1.0, "kg/MWh": 1e-3}, "g/kWh", "350 g/kWh", ("g/kWh",), ("g/kWh",)
)
CARBON_PER_H = QuantityKind(
    "emission per hour", {"g/h": 1.0, "kg/h": 1e3, "t/h": 1e6}, "g/h", "200 g/h", ("g/h", "kg/h"), ("g/h", "kg/h")
)
PRICE_PER_T = QuantityKind(
    "price of carbon", {"USD/t": 1e-6, "USD/kg": 1e-3}, "USD/t", "90 USD/t", ("USD/t",), ("USD/t", "USD/kg")
)
PRICE_OF_TIME = "price per hour for a length of time"
PRICE_OF_TIME_PATTERN = (
    rf"^\s*(?:{_NUMBER})\s*{PRICE_PER_H.unit_pattern}\s+per\s+(?:{_NUMBER})?\s*{DURATION.unit_pattern}\s*$"
)
_PRICE_OF_TIME_HINT = "write for example 0.02 USD/h per 10 ms"
PERCENT = QuantityKind("percentage", {"%": 0.01}, "%", "3 %", ("%",), ("%",), 0.0)
# Used to recognise a unit of the wrong kind. Without PRICE: "USD" alone more often means a price per hour or GiB.
WITH_DISTINCT_UNITS = (
    *(DURATION, SIZE, BANDWIDTH, RATE, PRICE_PER_H, PRICE_PER_GIB, PERCENT, POWER),
    *(ENERGY_PER_GIB, PRICE_PER_KWH, CARBON_PER_KWH, CARBON_PER_H, PRICE_PER_T),
)


def parse_quantity(kind: QuantityKind, value: object) -> float:
    """Parse a quantity to SI units (prices: USD, USD/h, USD/GiB).

    InvalidValueError if the number or the unit is invalid.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidValueError(f"{describe_value(value)} is not a {kind.name}", f"write for example {kind.example}")
    if isinstance(value, int | float):
        text = _finite_text(kind, value)
        raise InvalidValueError(f"{text} has no unit", _units_hint(kind, text))
    match = _QUANTITY.fullmatch(value) if len(value) <= _MAX_CHARACTERS else None
    if match is None:
        raise InvalidValueError(
            f"{quoted(value)} is not a {kind.name}", _time_hint(kind, value) or f"write for example {kind.example}"
        )
    sign, number, unit = match.groups()
    if unit is None:
        raise InvalidValueError(f"{quoted(value)} has no unit", _units_hint(kind, sign + number))
    if unit not in kind.units:
        if hint := _time_hint(kind, value):
            raise InvalidValueError(f"{quoted(value)} is not a {kind.name}", hint)
        if written := number_readings(value.strip()):
            raise InvalidValueError(f"{quoted(value)} is not a {kind.name}", _separator_hint(kind, written))
        hint = _unit_hint(kind, number, unit)
        raise InvalidValueError(f"{quoted(value)} does not have the unit of a {kind.name}", hint)
    converted = float(sign + number) * kind.units[unit]
    if (abs(converted) < kind.least or not converted) and number.lower().partition("e")[0].strip("0."):
        raise InvalidValueError(f"{quoted(value)} is too small", f"write for example {kind.example}")
    return _checked(kind, value, converted)


def decimal_number(text: str) -> float:
    """The number that a cell of a table has, with a point before decimals; ValueError for all else, as 1_000 and ١."""
    if _DECIMAL.fullmatch(text.strip()) is None:
        raise ValueError(f"{quoted(text)} is no decimal number")
    return float(text)


def parse_price_of_time(value: object) -> float:
    """Parse a price per hour for a length of time, `0.02 USD/h per 10 ms`, to USD per hour per second."""
    if not isinstance(value, str):
        raise InvalidValueError(f"{describe_value(value)} is not a {PRICE_OF_TIME}", _PRICE_OF_TIME_HINT)
    price, *lengths = re.split(r"\s+per\s+", value.strip()) if len(value) <= _MAX_CHARACTERS else [value]
    if len(lengths) != 1:
        raise InvalidValueError(f"{quoted(value)} does not say per how much time", _PRICE_OF_TIME_HINT)
    length = lengths[0]
    usd_per_h = parse_quantity(PRICE_PER_H, price)
    length_s = parse_quantity(DURATION, f"1 {length}" if length in DURATION.units else length)
    if length_s <= 0:
        raise InvalidValueError(f"{quoted(length)} is no length of time", _PRICE_OF_TIME_HINT)
    found = usd_per_h / length_s
    if not math.isfinite(found):
        raise InvalidValueError(f"{quoted(value)} is too large", _PRICE_OF_TIME_HINT)
    return found


def format_price_of_time(usd_per_h_per_s: float, digits: int | None = None) -> str:
    """Format a price per hour for a length of time: per second, so that parsing returns the same value."""
    return f"{format_quantity(PRICE_PER_H, usd_per_h_per_s, digits)} per s"


def parse_fraction(value: object) -> float:
    """Parse a fraction, written `0.8` or `80 %`; both give 0.8. The caller checks the upper limit."""
    if isinstance(value, str):
        if _DECIMAL.fullmatch(number := value.strip()) and 0.0 <= float(number) <= 1.0:  # not a hundredth of it
            raise InvalidValueError(f"{quoted(value)} is text", f"write {number} without quotes, or {number} %")
        return parse_quantity(PERCENT, value)
    return parse_number("share", value, "0.8 or 80 %")


def parse_percent(value: object) -> float:
    """Parse a percentage, written `56` or `56 %`; both give 56.0."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value) if len(value) <= _MAX_CHARACTERS else None
        if match is None or match[3] != "%":
            raise InvalidValueError(f"{quoted(value)} is not a percentage", "write for example 56 or 56 %")
        value = float(match[1] + match[2])
    return parse_number("percentage", value, "56 or 56 %", negative=True)


def parse_number(name: str, value: object, example: str, *, negative: bool = False) -> float:
    """Validate a finite number without a unit; negative numbers only if `negative`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(f"{describe_value(value)} is not a {name}", f"write a number, for example {example}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} must be finite, not {number}", f"write for example {example}")
    if number < 0 and not negative:
        raise InvalidValueError(f"{name} must not be negative: {number:g}", f"write for example {example}")
    return number


def format_quantity(kind: QuantityKind, value: float, digits: int | None = None) -> str:
    """Format a quantity in the largest unit in which the number is at least 1.

    `digits` rounds to that many significant digits, more where the kind's limits would be left; None writes enough
    digits for parsing to return the same value.
    """
    if not math.isfinite(value) or value < 0:
        raise InvalidValueError(f"{value} is not a {kind.name}", f"give for example {kind.example}")
    unit = kind.display[0] if value else kind.zero
    for candidate in kind.display:
        if value >= kind.units[candidate] * (1 - 1e-12):
            unit = candidate
    number = value / kind.units[unit]
    for count in range(digits or 1, 18):
        text = _plain(number, count)
        read = float(text) * kind.units[unit]
        if read == value or (digits and (_within(kind, read) or not _within(kind, value))):
            break
    return _spaced(text, unit)


def _within(kind: QuantityKind, value: float) -> bool:
    return value == 0 or kind.least <= value <= kind.most


def rounded_up(kind: QuantityKind, value: float, digits: int = 4) -> float:
    """Round `value` up so that formatting with `digits` significant digits does not go below it."""
    steps = (
        min(value * (1 + step * 1.02 * 10.0**-digits), max(value, kind.most)) for step in range(7)
    )  # seven steps together are larger than one unit in the last digit
    written = (parse_quantity(kind, format_quantity(kind, step, digits)) for step in steps)
    return next((candidate for candidate in written if candidate >= value), value)


def format_number(number: float, digits: int) -> int | float:
    """Round to `digits` significant digits; integral results become int, so that 40.0 is written as 40."""
    rounded = float(f"{number:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def describe_value(value: object) -> str:
    """Describe a YAML value for an error message."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    text = f"{value:g}" if isinstance(value, float) else _int_text(value)
    return f"the number {text}"


def quoted(text: str) -> str:
    """The text quoted with repr and cut to 40 characters, for messages."""
    short = text if len(text) <= 40 else text[:37] + "..."
    return repr(short)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known word closest to `word`; empty if none is close."""
    match = nearest_name(word, known)
    return "" if match is None else f"did you mean {match!r}?"


def did_you_mean_file(path: str, siblings: Iterable[str]) -> str:
    """`did you mean 'folder/x.onnx'?` for the file of the same folder whose name is closest; empty if none is close.

    Names are close if they are without their suffix: a suffix that all files share says nothing.
    """
    written = PurePosixPath(path)
    stems = {name: PurePosixPath(name).stem for name in siblings}
    match = nearest_name(written.name, (name for name, stem in stems.items() if nearest_name(written.stem, [stem])))
    return "" if match is None else f"did you mean {str(written.with_name(match))!r}?"


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """The known word most similar to `word`, in any case (difflib, cutoff 0.6); None if none is similar."""
    words = list(known)
    lowered = {item.lower(): item for item in words}
    if word.lower() in lowered:
        return lowered[word.lower()]
    matches = difflib.get_close_matches(word.lower()[:_MAX_CHARACTERS], lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def _int_text(value: object) -> str:
    try:
        text = str(value)
    except ValueError:  # Python refuses to print an int with too many digits
        return "with thousands of digits"
    return text if len(text) <= 40 else text[:37] + "..."


def _finite_text(kind: QuantityKind, value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValueError(f"{value} is not a {kind.name}", f"write for example {kind.example}")
    if value < 0:
        raise InvalidValueError(
            f"a {kind.name} must not be negative: {describe_value(value)}", f"write for example {kind.example}"
        )
    return _int_text(value)


def _checked(kind: QuantityKind, text: str, value: float) -> float:
    if not abs(value) <= kind.most:
        raise InvalidValueError(f"{quoted(text)} is too large", f"write for example {kind.example}")
    if value < 0 or math.copysign(1.0, value) < 0:
        raise InvalidValueError(
            f"a {kind.name} must not be negative: {quoted(text)}", f"write for example {kind.example}"
        )
    return value


def _units_hint(kind: QuantityKind, number: str) -> str:
    """Hint with the number in each of the suggested units: `give a unit: 512 B, 512 KiB or 512 MiB`."""
    if not number.lstrip("+-.")[:1].isdigit():
        return f"write for example {kind.example}"
    written = [_spaced(number, unit) for unit in kind.suggested]
    return f"write {written[0]}" if len(written) == 1 else f"give a unit: {', '.join(written[:-1])} or {written[-1]}"


def _unit_hint(kind: QuantityKind, number: str, unit: str) -> str:
    for other in WITH_DISTINCT_UNITS:
        if other is not kind and unit in other.units:
            return f"{unit!r} is the unit of a {other.name}; write for example {kind.example}"
    meant = readings(kind.name, unit)
    if len(meant) == 1 and meant[0][0] == 1:
        return f"did you mean {meant[0][1]!r}?"
    if meant:
        return f"write {' or '.join(_multiple(number, factor, known) for factor, known in meant)}"
    return f"the units of a {kind.name} are {', '.join(kind.units)}"


def _time_hint(kind: QuantityKind, text: str) -> str:
    """How to write a time in several units; empty for other texts."""
    written = time_readings(text) if kind is DURATION and len(text) <= _MAX_CHARACTERS else []
    return f"in one unit: write {' or '.join(written)}" if written else ""


def _multiple(number: str, factor: float, unit: str) -> str:
    return _spaced(number if factor == 1 else f"{float(number) * factor:.12g}", unit)


def _separator_hint(kind: QuantityKind, written: Sequence[tuple[str, str]]) -> str:
    """How to write a number that has a comma or separators, if its unit is certain."""
    texts = [_spaced(number, unit) for number, unit in written if unit in kind.units]
    rule = "decimals follow a point, and thousands have no separator"
    return f"{rule}: write {' or '.join(texts)}" if texts else f"{rule}, for example {kind.example}"


def _spaced(number: str, unit: str) -> str:
    return f"{number}{unit}" if unit.startswith("/") else f"{number} {unit}"


def _plain(number: float, digits: int) -> str:
    """The number as text with `digits` significant digits, without an exponent unless the text would be long."""
    text = f"{number:.{digits}g}"
    if "e" not in text:
        return text
    plain = f"{float(text):f}".rstrip("0").rstrip(".")
    return plain if len(plain) <= digits + 8 and float(plain) == float(text) else text
