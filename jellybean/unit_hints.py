"""What a quantity with an unknown unit may mean, in units that are known.

A hint that changes the meaning is worse than none: whoever follows it gets a wrong plan. So a unit is read as people
write it (Mb is megabit, mb may be either), each reading is offered with its number, and what cannot be read is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_GIB = 2**30
_DURATIONS: Mapping[str, tuple[str, ...]] = {  # unit -> what else it is called, in lower case
    "ns": ("ns", "nsec", "nsecs", "nanosecond", "nanoseconds", "nanos"),
    "us": ("us", "µs", "μs", "usec", "usecs", "µsec", "μsec", "microsecond", "microseconds", "micros"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "min": ("min", "mins", "minute", "minutes", "m"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds", "millis", "m"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "week": ("w", "wk", "week", "weeks"),
    "month": ("mo", "mon", "month", "months"),
    "year": ("y", "yr", "year", "years"),
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "week": 604800.0}
_MONTHS = {"month": 1.0, "year": 12.0}  # whose length in days is not certain
_DATA = re.compile(
    r"(?:(?P<word>kilo|mega|giga|tera|peta|kibi|mebi|gibi|tebi|pebi)(?=bit|byte)|(?P<prefix>[kmgtp]i?))?"
    r"(?P<what>bits?|bytes?|b)?",
    re.IGNORECASE,
)
_PREFIXES = "kmgtp"
_LARGEST_POWER = 4  # of 1000 or 1024, of the units below
_DECIMAL_UNITS, _BINARY_UNITS = ("B", "kB", "MB", "GB", "TB"), ("B", "KiB", "MiB", "GiB", "TiB")
_PER = re.compile(r"(?P<what>.*?)\s*(?:/|\bper\b|(?<=[bB])p(?=s$))\s*(?P<time>[^/]*)", re.DOTALL)
# Digits in groups of three, or with a comma.
_SEPARATED = re.compile(
    r"(?P<number>[0-9]{1,3}(?:[_'\u2019\u00a0\u202f ][0-9]{3})+(?:[.,][0-9]+)?|"
    r"[0-9]*(?:[.,][0-9]{3})*,[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]+)\s*(?P<unit>[^0-9,.].*)?",
    re.DOTALL,
)
_COUNTS = ("", "1", "req", "reqs", "request", "requests", "frame", "frames", "message", "messages", "call", "calls")
_HERTZ = {"Hz": 1.0, "kHz": 1e3, "KHz": 1e3, "MHz": 1e6, "GHz": 1e9, "mHz": 1e-3}  # as it is written: m is milli
_PER_SECOND = {"rps": 1.0, "qps": 1.0, "fps": 1.0, "tps": 1.0, "ips": 1.0}
_DOLLARS = ("usd", "$", "us$", "dollar", "dollars")
Reading = tuple[float, str]  # the unit that is meant, and what the number is multiplied with for it


def readings(kind: str, unit: str) -> list[Reading]:
    """What a unit of a kind of quantity may mean; none if that is not certain."""
    read = _READERS.get(kind)
    return [] if read is None else list(dict.fromkeys(read(unit)))


def _duration(unit: str) -> Iterator[Reading]:
    for known, names in _DURATIONS.items():
        if unit.lower() in names:
            if known == "week":
                yield 7.0, "d"
            elif known in _SECONDS:
                yield 1.0, known


def _size(unit: str) -> Iterator[Reading]:
    for size, wanted, _ in _data(unit):
        yield size, wanted
    if unit == "kb":  # which is kilobit, but sizes are seldom written in bits
        yield 1.0, "kB"


def _data(unit: str) -> Iterator[tuple[float, str, bool]]:
    """(factor, unit of bytes, True if bits were written) of each reading of a size."""
    match = _DATA.fullmatch(unit)
    if match is None or not unit:
        return
    word, prefix, what = (match[name] or "" for name in ("word", "prefix", "what"))
    letter = (prefix or word)[:1].lower()
    is_binary = prefix[1:].lower() == "i" or word.lower().endswith("bi")
    power = _PREFIXES.index(letter) + 1 if letter else 0
    scale = 1.0
    if power > _LARGEST_POWER:
        power, scale = _LARGEST_POWER, 1024.0 if is_binary else 1000.0

    # kb is kilobit, mib nothing but MiB; mb may be either, as m alone is milli.
    in_bits = what.lower().startswith("bit") or (what == "b" and not (is_binary and prefix.islower()))
    in_bytes = not what or what.lower().startswith("byte") or what == "B"
    in_bytes |= what == "b" and (is_binary or (letter != "k" and prefix.islower()))
    for binary in (is_binary,) if what or is_binary else (False, True):
        name = (_BINARY_UNITS if binary else _DECIMAL_UNITS)[power]
        if in_bits:
            yield scale / 8, name, True
        if in_bytes:
            yield scale, name, False


def _bandwidth(unit: str) -> Iterator[Reading]:
    match = _PER.fullmatch(unit)
    what, time = (unit, "s") if match is None else (match["what"], match["time"])
    seconds = _seconds(time)
    if len(seconds) != 1:
        return
    is_plain = re.fullmatch(r"[kKMGTP]?", what) is not None  # which of bits and bytes is not certain
    for factor, name, bits in () if is_plain else _data(what):
        if not bits:
            yield factor / seconds[0], f"{name}/s"
            continue
        prefix = name.removesuffix("B").removesuffix("i").replace("K", "k")
        thousands = 1.024 ** (_PREFIXES.find(prefix.lower()) + 1) if name.endswith("iB") else 1.0
        in_bits = 8 * factor * thousands * (1000 if prefix == "T" else 1) / seconds[0]
        yield in_bits, f"{'G' if prefix == 'T' else prefix}bit/s"


def _seconds(time: str) -> list[float]:
    """Seconds of each reading of a unit of time; `m` below a stroke is no millisecond."""
    names = [known for known, names in _DURATIONS.items() if time.strip().lower() in names]
    return [_SECONDS[name] for name in names if name in _SECONDS and not (name == "ms" and time.strip() in "mM")]


def _rate(unit: str) -> Iterator[Reading]:
    if (factor := _PER_SECOND.get(unit.lower(), _HERTZ.get(unit))) is not None:
        yield factor, "/s"
    elif unit.lower() in map(str.lower, _HERTZ):  # mhz may be either
        yield from ((factor, "/s") for name, factor in _HERTZ.items() if name.lower() == unit.lower())
    match = _PER.fullmatch(unit)
    if match is None or match["what"].strip().lower() not in _COUNTS:
        return
    for seconds in _seconds(match["time"]):
        known = {1.0: "/s", 60.0: "/min", 3600.0: "/h", 86400.0: "/d"}.get(seconds)
        yield (1.0, known) if known else (1 / seconds, "/s") if seconds < 1 else (86400 / seconds, "/d")


def _price_per_h(unit: str) -> Iterator[Reading]:
    if unit.lower() in _DOLLARS:
        yield 1.0, "USD/h"
    match = _PER.fullmatch(unit)
    if match is None or match["what"].strip().lower() not in _DOLLARS:
        return
    time = match["time"].strip().lower()
    for seconds in _seconds(time):
        yield (1.0, "USD/d") if seconds == 86400 else (3600 / seconds, "USD/h")
    for known, months in _MONTHS.items():
        if time in (*_DURATIONS[known], *(("m",) if known == "month" else ())):
            yield 1 / months, "USD/month"


def _price_per_gib(unit: str) -> Iterator[Reading]:
    if unit.lower() in _DOLLARS:
        yield 1.0, "USD/GiB"
    match = _PER.fullmatch(unit)
    if match is None or match["what"].strip().lower() not in _DOLLARS:
        return
    for factor, name, _ in _data(match["time"].strip()):
        letter = name[:1].lower()
        power = _PREFIXES.find(letter) + 1 if name != "B" else 0
        if name.endswith("iB") or name == "B":
            yield 1024.0 ** (3 - power) / factor, "USD/GiB"
        else:
            yield 1000.0 ** (3 - power) / factor, "USD/GB"


def _percentage(unit: str) -> Iterator[Reading]:
    if unit.lower() in ("percent", "per cent", "pct"):
        yield 1.0, "%"
    if unit in ("‰", "permille", "per mille"):
        yield 0.1, "%"


_READERS = {
    "duration": _duration,
    "size": _size,
    "bandwidth": _bandwidth,
    "rate": _rate,
    "price per hour": _price_per_h,
    "price per GiB": _price_per_gib,
    "percentage": _percentage,
}


def number_readings(text: str) -> list[tuple[str, str]]:
    """(number, unit) of each reading of a quantity whose number has a comma or separators; none if there are none.

    A comma before three digits may separate thousands or decimals.
    """
    match = _SEPARATED.fullmatch(text)
    if match is None:
        return []
    number, unit = match["number"], (match["unit"] or "").strip()
    if "," in number and "." in number:
        decimal = max(number.rfind(","), number.rfind("."))
        plain = re.sub(r"[^0-9]", "", number[:decimal])
        return [(f"{plain}.{number[decimal + 1 :]}", unit)]
    digits = re.sub(r"[_'\u2019\s]", "", number)
    if "," not in digits or digits != number:
        return [(digits.replace(",", "."), unit)]
    if digits.count(",") > 1:
        return [(digits.replace(",", ""), unit)]
    whole, _, part = digits.partition(",")
    candidates = [(f"{whole or '0'}.{part}", unit)]
    if len(part) == 3 and whole.lstrip("0"):
        candidates.append((f"{whole}{part}", unit))
    return candidates


_CLOCK_UNITS: Mapping[str, float] = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}  # the largest first
_CLOCK_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)")
_CLOCK = re.compile(r"(?:([0-9]+):)?([0-9]{1,2}):([0-9]{2}(?:\.[0-9]+)?)")
_ISO_DATE, _ISO_TIME = "d", {"h": "h", "m": "min", "s": "s"}


def time_readings(text: str) -> list[str]:
    """Each reading of a time in several units, in one: `1h30m`, `1:30` (hours or minutes first), `PT1H30M`."""
    if (clock := _CLOCK.fullmatch(text.strip())) is not None:
        hours, first, second = (float(part or 0) for part in clock.groups())
        if clock[1] is not None:
            return [_in_one_unit(3600 * hours + 60 * first + second)]
        return [_in_one_unit(3600 * first + 60 * second), _in_one_unit(60 * first + second)]
    plain = text.strip().lower()
    if plain.startswith("p"):
        date, _, time = plain[1:].partition("t")
        parts = [(number, unit if unit == _ISO_DATE else "") for number, unit in _clock_parts(date)]
        parts += [(number, _ISO_TIME.get(unit, "")) for number, unit in _clock_parts(time)]
    else:  # beside a larger unit, m is minutes
        names = {name: unit for unit in _CLOCK_UNITS for name in _DURATIONS[unit] if name != "m" or unit == "min"}
        parts = [(number, names.get(unit, "")) for number, unit in _clock_parts(plain)]
        if len(parts) < 2:
            return []
    order = [*_CLOCK_UNITS]
    places = [order.index(unit) if unit else -1 for _, unit in parts]
    if not parts or -1 in places or places != sorted(set(places)):
        return []
    return [_in_one_unit(sum(number * _CLOCK_UNITS[unit] for number, unit in parts))]


def _clock_parts(text: str) -> list[tuple[float, str]]:
    """(number, unit) of each part of a time; an unknown unit for what is none."""
    matches = [*_CLOCK_PART.finditer(text)]
    if "".join(match[0] for match in matches).strip() != text.strip():
        return [(0.0, "?")]
    return [(float(match[1]), match[2]) for match in matches]


def _in_one_unit(seconds: float) -> str:
    """A time in the largest unit in which it is a whole number."""
    for unit, factor in _CLOCK_UNITS.items():
        if seconds >= factor and (seconds / factor).is_integer():
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.12g} s"
