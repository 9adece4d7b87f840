"""Hints about units keep the meaning: each quantity that is offered is a reading of the one that was written."""

from __future__ import annotations

import itertools
import re

import pytest

from jellybean import quantities
from jellybean.quantities import InvalidValueError, QuantityKind, parse_quantity
from jellybean.unit_hints import number_readings

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hr": 3600, "hour": 3600, "day": 86400}
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def offered(kind: QuantityKind, text: str) -> list[float]:
    """The values of the quantities that the refusal of `text` offers."""
    with pytest.raises(InvalidValueError) as raised:
        parse_quantity(kind, text)
    hint = raised.value.hint
    number = re.match(r"[0-9.]+", text)
    if meant := re.fullmatch(r"did you mean '(.*)'\?", hint):
        assert number is not None
        return [parse_quantity(kind, f"{number[0]} {meant[1]}")]
    _, write, written = hint.rpartition("write ")
    return [parse_quantity(kind, one) for one in written.split(" or ")] if write and "for example" not in hint else []


@pytest.mark.parametrize(
    ("kind", "text", "values"),
    [
        (quantities.BANDWIDTH, "100 Mb/s", [12.5e6]),
        (quantities.BANDWIDTH, "100 mb/s", [12.5e6, 100e6]),
        (quantities.BANDWIDTH, "100 Mbps", [12.5e6]),
        (quantities.BANDWIDTH, "100 MBps", [100e6]),
        (quantities.BANDWIDTH, "8 Mib/s", [2**20, 8 * 2**20]),
        (quantities.BANDWIDTH, "1 Tbit/s", [125e9]),
        (quantities.BANDWIDTH, "60 MB/min", [1e6]),
        (quantities.BANDWIDTH, "1 G", []),
        (quantities.DURATION, "1 m", [60.0, 1e-3]),
        (quantities.DURATION, "2 hours", [7200.0]),
        (quantities.DURATION, "2 w", [14 * 86400.0]),
        (quantities.DURATION, "1 month", []),
        (quantities.DURATION, "5 ps", []),
        (quantities.DURATION, "1h30m", [5400.0]),
        (quantities.DURATION, "1 h 30 min", [5400.0]),
        (quantities.DURATION, "2m30s", [150.0]),
        (quantities.DURATION, "1s500ms", [1.5]),
        (quantities.DURATION, "1:30", [5400.0, 90.0]),
        (quantities.DURATION, "1:30:15", [5415.0]),
        (quantities.DURATION, "PT1H30M", [5400.0]),
        (quantities.DURATION, "P1DT0.5S", [86400.5]),
        (quantities.DURATION, "P1M", []),
        (quantities.DURATION, "30m1h", []),
        (quantities.DURATION, "1h 30", []),
        (quantities.DURATION, "1,5 ms", [1.5e-3]),
        (quantities.DURATION, "1,000 ms", [1e-3, 1.0]),
        (quantities.DURATION, "1.000,5 ms", [1.0005]),
        (quantities.DURATION, "1_000 ms", [1.0]),
        (quantities.DURATION, "1\u202f000 ms", [1.0]),
        (quantities.SIZE, "1 K", [1e3, 1024.0]),
        (quantities.SIZE, "8 Mbit", [1e6]),
        (quantities.SIZE, "8 kb", [1e3, 8e3]),
        (quantities.SIZE, "2 PiB", [2 * 2**50]),
        (quantities.RATE, "40 Hz", [40.0]),
        (quantities.RATE, "40 mHz", [0.04]),
        (quantities.RATE, "40 MHz", [40e6]),
        (quantities.RATE, "40 mhz", [40e6, 0.04]),
        (quantities.RATE, "40 KHZ", [40e3]),
        (quantities.RATE, "2 req/ms", [2000.0]),
        (quantities.RATE, "40 1/s", [40.0]),
        (quantities.PRICE_PER_H, "0,05 USD/h", [0.05]),
        (quantities.PRICE_PER_H, "0.05 USD/min", [3.0]),
        (quantities.PRICE_PER_H, "0.05 EUR/h", []),
        (quantities.PRICE_PER_GIB, "0.1 USD/MB", [100 * 2**30 / 1e9]),
        (quantities.PRICE_PER_GIB, "0.1 USD/Gb", [0.8 * 2**30 / 1e9]),
        (quantities.PERCENT, "3 ‰", [0.003]),
    ],
)
def test_each_reading_is_offered_with_its_number(kind: QuantityKind, text: str, values: list[float]) -> None:
    assert offered(kind, text) == pytest.approx(values)


def test_no_unit_of_data_is_answered_with_another_size() -> None:
    """Every spelling of a bandwidth that is not known: what is offered has the bits or bytes that were written."""
    tried = 0
    for prefix, binary, what, time in itertools.product(
        "kKMGT", ("", "i"), ("bit", "bits", "Byte", "bytes", "b"), _SECONDS
    ):
        text = f"3 {prefix}{binary}{what}/{time}"
        try:
            parse_quantity(quantities.BANDWIDTH, text)
        except InvalidValueError:
            base = (1024 if binary else 1000) ** _POWERS[prefix] * 3 / _SECONDS[time]
            readings = [base] if what.lower().startswith("byte") else [base / 8]
            if binary and what == "b":  # kib is written for KiB alone
                readings = [base] if prefix == "k" else [base / 8, base]
            assert offered(quantities.BANDWIDTH, text) == pytest.approx(readings, rel=1e-9), text
            tried += 1
    assert tried > 300


def test_a_number_too_small_to_be_told_from_zero_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="too small"):
        parse_quantity(quantities.PRICE_PER_H, "1e-400 USD/h")
    assert parse_quantity(quantities.PRICE_PER_H, "0e-400 USD/h") == 0


@pytest.mark.parametrize("text", ["12", "1.5 ms", "1e3 s", "1 2", "1,", ",", "1;5", "a,5"])
def test_other_numbers_have_no_separators(text: str) -> None:
    assert number_readings(text) == []
