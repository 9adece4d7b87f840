"""Human units to SI and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean.documents.schema import units
from jellybean.documents.schema.units import UnitError, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (units.DURATION, "20 ms", 0.020),
        (units.DURATION, "1.5us", 1.5e-6),
        (units.DURATION, "3 µs", 3e-6),
        (units.DURATION, "2 min", 120),
        (units.DURATION, "1e3 ns", 1e-6),
        (units.DURATION, ".5 h", 1800),
        (units.SIZE, "794 KiB", 794 * 1024),
        (units.SIZE, "1 MB", 1e6),
        (units.SIZE, "4 GiB", 4 * 2**30),
        (units.BANDWIDTH, "100 Mbit/s", 12.5e6),
        (units.BANDWIDTH, "8 bit/s", 1),
        (units.BANDWIDTH, "1 MiB/s", 2**20),
        (units.BANDWIDTH, "1 GB/s", 1e9),
        (units.RATE, "40/s", 40),
        (units.RATE, "2400/min", 40),
        (units.RATE, "3600 /h", 1),
        (units.PRICE_PER_H, "0.096 USD/h", 0.096),
        (units.PRICE_PER_GIB, "0.10 USD/GiB", 0.10),
        (units.PRICE_PER_GIB, "0.10 USD/GB", 0.10 * 2**30 / 1e9),
        (units.PERCENT, "3 %", 0.03),
        (units.DURATION, "0 ms", 0),
    ],
)
def test_units(kind: units.Kind, text: str, value: float) -> None:
    assert parse_quantity(kind, text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "value", "message", "hint"),
    [
        (units.DURATION, 20, "20 has no unit", "give a unit: 20 us, 20 ms or 20 s"),
        (units.DURATION, "20", "'20' has no unit", "20 ms or 20 s"),
        (units.SIZE, 512, "512 has no unit", "give a unit: 512 B, 512 KiB, 512 MiB or 512 GiB"),
        (units.PRICE_PER_H, 0.1, "0.1 has no unit", "write 0.1 USD/h"),
        (units.RATE, 40.5, "40.5 has no unit", "40.5/s, 40.5/min or 40.5/h"),
        (units.DURATION, "-1 ms", "must not be negative", ""),
        (units.DURATION, "-0 ms", "must not be negative", ""),
        (units.DURATION, -1, "must not be negative", ""),
        (units.DURATION, math.nan, "nan is no duration", ""),
        (units.DURATION, math.inf, "inf is no duration", ""),
        (units.DURATION, "nan ms", "'nan ms' is no duration", "20 ms"),
        (units.DURATION, "1e999 ms", "is too large", ""),
        (units.DURATION, "3 KiB", "no unit of a duration", "unit of a size"),
        (units.DURATION, "3 msec", "no unit of a duration", "did you mean 'ms'"),
        (units.SIZE, "3 kib", "no unit of a size", "did you mean 'KiB'"),
        (units.SIZE, True, "true is no size", ""),
        (units.SIZE, [1], "a list is no size", ""),
        (units.SIZE, None, "an empty value is no size", ""),
        pytest.param(units.SIZE, 10**5000, "of very many digits has no unit", "", id="long"),
        (units.SIZE, "9" * 5000, "is no size", ""),
        (units.SIZE, "٣ KiB", "is no size", ""),
        (units.PRICE_PER_H, "1 USD", "no unit of a price per hour", "did you mean 'USD/h'"),
        (units.PRICE_PER_H, "1 EUR/h", "no unit of a price per hour", ""),
    ],
)
def test_refused_with_a_hint(kind: units.Kind, value: object, message: str, hint: str) -> None:
    with pytest.raises(UnitError) as raised:
        parse_quantity(kind, value)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert len(str(raised.value)) < 200


def test_shares_and_percentages() -> None:
    assert units.parse_fraction("80 %") == pytest.approx(0.8)
    assert units.parse_fraction(0.8) == 0.8
    assert units.parse_percent("56 %") == units.parse_percent(56) == 56.0
    assert units.parse_percent(-3.8) == -3.8
    for bad in ("56", "0.56 ms", True, None, math.inf):
        with pytest.raises(UnitError):
            units.parse_percent(bad)


quantities = st.floats(min_value=0, max_value=1e15, allow_subnormal=False).filter(lambda x: x == 0 or x > 1e-12)


@given(st.sampled_from(units.KINDS), quantities)
def test_formatted_quantities_read_back(kind: units.Kind, value: float) -> None:
    back = parse_quantity(kind, format_quantity(kind, value))
    assert back == pytest.approx(value, rel=1e-15, abs=0)


@given(st.sampled_from(units.KINDS), quantities, st.integers(3, 10))
def test_rounded_quantities_read_back_nearly(kind: units.Kind, value: float, digits: int) -> None:
    back = parse_quantity(kind, format_quantity(kind, value, digits))
    assert back == pytest.approx(value, rel=10.0 ** (1 - digits), abs=0)


@given(st.text(max_size=30) | st.floats() | st.integers() | st.none() | st.booleans(), st.sampled_from(units.KINDS))
def test_anything_else_is_a_unit_error(value: object, kind: units.Kind) -> None:
    try:
        parsed = parse_quantity(kind, value)
    except UnitError as error:
        assert error.message
    else:
        assert parsed >= 0
        assert math.isfinite(parsed)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (units.DURATION, 0.0081, "8.1 ms"),
        (units.DURATION, 3600, "1 h"),
        (units.DURATION, 0, "0 ms"),
        (units.SIZE, 100, "100 B"),
        (units.SIZE, 40 * 2**20, "40 MiB"),
        (units.BANDWIDTH, 12.5e6, "100 Mbit/s"),
        (units.RATE, 40, "40/s"),
        (units.PRICE_PER_H, 0.096, "0.096 USD/h"),
    ],
)
def test_written_as_a_person_would(kind: units.Kind, value: float, text: str) -> None:
    assert format_quantity(kind, value) == text
