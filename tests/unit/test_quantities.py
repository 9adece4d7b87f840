"""Parsing and formatting of quantities with units."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean import quantities
from jellybean.quantities import (
    PRICE_OF_TIME_PATTERN,
    InvalidValueError,
    did_you_mean_file,
    format_price_of_time,
    format_quantity,
    parse_price_of_time,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (quantities.DURATION, "20 ms", 0.020),
        (quantities.DURATION, "1.5us", 1.5e-6),
        (quantities.DURATION, "3 µs", 3e-6),
        (quantities.DURATION, "2 min", 120),
        (quantities.DURATION, "1e3 ns", 1e-6),
        (quantities.DURATION, ".5 h", 1800),
        (quantities.SIZE, "794 KiB", 794 * 1024),
        (quantities.SIZE, "1 MB", 1e6),
        (quantities.SIZE, "4 GiB", 4 * 2**30),
        (quantities.BANDWIDTH, "100 Mbit/s", 12.5e6),
        (quantities.BANDWIDTH, "8 bit/s", 1),
        (quantities.BANDWIDTH, "1 MiB/s", 2**20),
        (quantities.BANDWIDTH, "1 GB/s", 1e9),
        (quantities.RATE, "40/s", 40),
        (quantities.RATE, "2400/min", 40),
        (quantities.RATE, "3600 /h", 1),
        (quantities.PRICE_PER_H, "0.096 USD/h", 0.096),
        (quantities.PRICE_PER_H, "1 USD/day", 1 / 24),
        (quantities.PRICE_PER_H, "730 USD/month", 1),
        (quantities.PRICE_PER_GIB, "0.10 USD/GiB", 0.10),
        (quantities.PRICE_PER_GIB, "0.10 USD/GB", 0.10 * 2**30 / 1e9),
        (quantities.PERCENT, "3 %", 0.03),
        (quantities.DURATION, "0 ms", 0),
    ],
)
def test_parsed_units(kind: quantities.QuantityKind, text: str, value: float) -> None:
    assert parse_quantity(kind, text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "value", "message", "hint"),
    [
        (quantities.DURATION, 20, "20 has no unit", "give a unit: 20 us, 20 ms or 20 s"),
        (quantities.DURATION, "20", "'20' has no unit", "20 ms or 20 s"),
        (quantities.SIZE, 512, "512 has no unit", "give a unit: 512 B, 512 KiB, 512 MiB or 512 GiB"),
        (quantities.PRICE_PER_H, 0.1, "0.1 has no unit", "write 0.1 USD/h"),
        (quantities.RATE, 40.5, "40.5 has no unit", "40.5/s, 40.5/min or 40.5/h"),
        (quantities.DURATION, "-1 ms", "must not be negative", ""),
        (quantities.DURATION, "-0 ms", "must not be negative", ""),
        (quantities.DURATION, -1, "must not be negative", ""),
        (quantities.DURATION, math.nan, "nan is not a duration", ""),
        (quantities.DURATION, math.inf, "inf is not a duration", ""),
        (quantities.DURATION, "nan ms", "'nan ms' is not a duration", "20 ms"),
        (quantities.DURATION, "1e999 ms", "is too large", ""),
        (quantities.DURATION, "3 KiB", "not have the unit of a duration", "unit of a size"),
        (quantities.DURATION, "3 msec", "not have the unit of a duration", "did you mean 'ms'"),
        (quantities.SIZE, "3 kib", "not have the unit of a size", "did you mean 'KiB'"),
        (quantities.SIZE, True, "true is not a size", ""),
        (quantities.SIZE, [1], "a list is not a size", ""),
        (quantities.SIZE, None, "an empty value is not a size", ""),
        pytest.param(quantities.SIZE, 10**5000, "with thousands of digits has no unit", "", id="long"),
        (quantities.SIZE, "9" * 5000, "is not a size", ""),
        (quantities.SIZE, "٣ KiB", "is not a size", ""),
        (quantities.PRICE_PER_H, "1 USD", "not have the unit of a price per hour", "did you mean 'USD/h'"),
        (quantities.PRICE_PER_GIB, "8 USD", "not have the unit of a price per GiB", "did you mean 'USD/GiB'"),
        (quantities.PRICE_PER_H, "1 EUR/h", "not have the unit of a price per hour", ""),
    ],
)
def test_invalid_quantity_is_rejected_with_a_hint(
    kind: quantities.QuantityKind, value: object, message: str, hint: str
) -> None:
    with pytest.raises(InvalidValueError) as raised:
        parse_quantity(kind, value)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert len(str(raised.value)) < 200


def test_shares_and_percentages() -> None:
    assert quantities.parse_fraction("80 %") == pytest.approx(0.8)
    assert quantities.parse_fraction(0.8) == 0.8
    assert quantities.parse_percent("56 %") == quantities.parse_percent(56) == 56.0
    assert quantities.parse_percent(-3.8) == -3.8
    for bad in ("56", "0.56 ms", True, None, math.inf):
        with pytest.raises(InvalidValueError):
            quantities.parse_percent(bad)


magnitudes = st.floats(min_value=0, max_value=1e15, allow_subnormal=False).filter(lambda x: x == 0 or x > 1e-9)


@given(st.sampled_from(quantities.WITH_DISTINCT_UNITS), magnitudes)
def test_formatted_quantities_read_back(kind: quantities.QuantityKind, value: float) -> None:
    back = parse_quantity(kind, format_quantity(kind, value))
    assert back == pytest.approx(value, rel=1e-15, abs=0)


@given(st.sampled_from(quantities.WITH_DISTINCT_UNITS), magnitudes, st.integers(3, 10))
def test_rounded_quantities_read_back_nearly(kind: quantities.QuantityKind, value: float, digits: int) -> None:
    back = parse_quantity(kind, format_quantity(kind, value, digits))
    assert back == pytest.approx(value, rel=10.0 ** (1 - digits), abs=0)


@pytest.mark.parametrize("kind", quantities.WITH_DISTINCT_UNITS, ids=lambda kind: kind.name)
def test_rounding_does_not_leave_the_limits(kind: quantities.QuantityKind) -> None:
    for share in (1.0, 0.99999, 0.9996, 0.999, 0.99):
        for value in (kind.most * share, kind.least / share):
            for digits in (1, 3, 4):
                back = parse_quantity(kind, format_quantity(kind, value, digits))
                assert back == pytest.approx(value, rel=10.0 ** (1 - digits), abs=0)
            assert value <= quantities.rounded_up(kind, value) <= kind.most


@given(
    st.text(max_size=30) | st.floats() | st.integers() | st.none() | st.booleans(),
    st.sampled_from(quantities.WITH_DISTINCT_UNITS),
)
def test_other_input_raises_invalid_value_error(value: object, kind: quantities.QuantityKind) -> None:
    try:
        parsed = parse_quantity(kind, value)
    except InvalidValueError as error:
        assert error.message
    else:
        assert parsed >= 0
        assert math.isfinite(parsed)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (quantities.DURATION, 0.0081, "8.1 ms"),
        (quantities.DURATION, 3600, "1 h"),
        (quantities.DURATION, 0, "0 ms"),
        (quantities.SIZE, 100, "100 B"),
        (quantities.SIZE, 40 * 2**20, "40 MiB"),
        (quantities.BANDWIDTH, 12.5e6, "100 Mbit/s"),
        (quantities.RATE, 40, "40/s"),
        (quantities.PRICE_PER_H, 0.096, "0.096 USD/h"),
    ],
)
def test_formatted_in_a_readable_unit(kind: quantities.QuantityKind, value: float, text: str) -> None:
    assert format_quantity(kind, value) == text


@pytest.mark.parametrize(
    ("path", "siblings", "meant"),
    [
        ("models/fuse.onnx", ("features.onnx", "mlp.onnx"), ""),
        ("models/fuze.onnx", ("features.onnx", "fuse.onnx"), "models/fuse.onnx"),
        ("models/deep/Fuse.onnx", ("fuse.onnx",), "models/deep/fuse.onnx"),
        ("data/heldout.npy", ("heldout.npz",), "data/heldout.npz"),
        ("rowz.csv", ("rows.csv",), "rows.csv"),
        ("models/x.onnx", (), ""),
    ],
)
def test_a_file_that_was_probably_meant_keeps_its_folder(path: str, siblings: tuple[str, ...], meant: str) -> None:
    assert did_you_mean_file(path, siblings) == (f"did you mean {meant!r}?" if meant else "")


@pytest.mark.parametrize(
    ("text", "usd_per_h_per_s"),
    [("0.02 USD/h per 10 ms", 2.0), ("2 USD/h per s", 2.0), ("1e-3 USD/h  per  ms", 1.0), ("48 USD/d per 1 s", 2.0)],
)
def test_a_price_of_time_is_per_any_length_of_time(text: str, usd_per_h_per_s: float) -> None:
    assert parse_price_of_time(text) == pytest.approx(usd_per_h_per_s)
    assert re.fullmatch(PRICE_OF_TIME_PATTERN, text)
    assert parse_price_of_time(format_price_of_time(usd_per_h_per_s)) == usd_per_h_per_s
    assert re.fullmatch(PRICE_OF_TIME_PATTERN, format_price_of_time(usd_per_h_per_s))


@pytest.mark.parametrize(
    "text", ["", " per ", "1 USD/h per s per s", "1 USD/h per", "USD/h per s", "1 per s", "x" * 200]
)
def test_what_is_no_price_of_time_is_told(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_price_of_time(text)
    assert not re.fullmatch(PRICE_OF_TIME_PATTERN, text)


@pytest.mark.parametrize("text", ["0.8", "1", " .5 "])
def test_a_share_as_text_is_not_taken_for_a_hundredth_of_it(text: str) -> None:
    with pytest.raises(quantities.InvalidValueError) as raised:
        quantities.parse_fraction(text)
    assert raised.value.hint == f"write {text.strip()} without quotes, or {text.strip()} %"


@pytest.mark.parametrize("kind", quantities.WITH_DISTINCT_UNITS, ids=lambda kind: kind.name)
def test_values_that_no_plan_could_be_made_for_are_refused(kind: quantities.QuantityKind) -> None:
    unit = max(kind.units, key=kind.units.__getitem__)
    for number, reason in (("1e300", "is too large"), ("1e-400", "is too small")):
        with pytest.raises(InvalidValueError, match=reason):
            parse_quantity(kind, f"{number} {unit}" if unit[0] != "/" else f"{number}{unit}")
    assert parse_quantity(kind, f"0 {unit}" if unit[0] != "/" else f"0{unit}") == 0.0
