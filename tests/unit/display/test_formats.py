"""Figures as text: significant digits and units at their boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from jellybean.display import formats
from jellybean_solver import distinct_durations, distinct_usd, plain_text, rate_text, size_text, usd_text

FACTORS = {"": 1.0, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
FACTORS |= {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (formats.number(99.99999), "100"),
        (formats.number(9.995), "9.99"),  # as a binary fraction it is a little below
        (formats.number(9.9951), "10.0"),
        (formats.number(0.099996), "0.100"),
        (formats.number(999.9), "1,000"),
        (formats.plain(0.99999), "1"),
        (formats.plain(38_083.4), "38,083"),
        (formats.rate(1e6), "1,000,000/s"),
        (rate_text(1e6), "1,000,000/s"),
        (plain_text(24.307, 4), "24.31"),
        (plain_text(4.999e-12, 4), "4.999e-12"),
        (plain_text(0.00025), "0.00025"),
        (plain_text(-1234.5), "-1,234.5"),
        (plain_text(float("inf")), "inf"),
        (formats.span(86_400), "24 h"),
        (formats.span(24 * 60), "24 min"),
        (formats.span(90), "90 s"),
        (formats.span(7 * 86_400), "7 d"),
        (formats.duration(0.99999), "1.00 s"),
        (formats.duration(0.000999999), "1.00 ms"),
        (formats.duration(119.9), "2.00 min"),
        (formats.duration(10.3325), "10.3 s"),
        (formats.axis_duration(0.99999), "1 s"),
        (formats.size(1023.9 * 1024), "1 MiB"),
        (size_text(3 * 2**40), "3 TiB"),
        (formats.decimal_size(999_999), "1.00 MB"),
        (formats.axis_size(9.9999e6), "10 MB"),
        (formats.load(0.0), "0.00"),
        (formats.load(0.73), "0.73"),
        (formats.load(0.0049), "0.005"),
        (formats.load(0.0004), "0.0004"),
        (formats.load(0.00004), "< 0.0001"),
        (formats.usd(0.09999), "0.10"),
        (formats.usd(0.8388), "0.84"),
    ],
)
def test_a_figure_is_rounded_before_its_decimals_and_unit_are_chosen(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize("show", [formats.duration, formats.decimal_size, formats.number])
def test_text_has_the_promised_digits_and_parses_back_within_half_a_step(show: Callable[[float], str]) -> None:
    draw = random.Random(19)
    for _ in range(3_000):
        value = round(draw.uniform(1, 1000), draw.choice((0, 1, 12))) * 10.0 ** draw.randint(-4, 4)
        value *= draw.choice((1.0, 1 - 1e-9))
        number, _, unit = show(value).replace(",", "").partition(" ")
        factor = FACTORS[unit]
        digits = number.replace(".", "").lstrip("0")
        assert len(digits) == 3 or (len(digits) > 3 and "." not in number), (value, number)
        step = 10.0 ** -len(number.partition(".")[2]) * factor
        assert abs(float(number) * factor - value) <= 0.5 * step * (1 + 1e-6), (value, number, unit)


def test_no_unit_shows_what_the_next_unit_would_show_as_one() -> None:
    limits = {"µs": 1000, "ms": 1000, "s": 120, "B": 1024, "KiB": 1024, "MiB": 1024, "kB": 1000, "MB": 1000, "GB": 1000}
    draw = random.Random(7)
    for _ in range(3_000):
        exponent = draw.uniform(-6, 4)
        near = draw.choice((10.0 ** round(exponent), 1024.0 ** draw.randint(0, 3), 120.0)) * (
            1 - 10 ** -draw.uniform(2, 9)
        )
        for text in (formats.duration(near), formats.size(near), formats.decimal_size(near)):
            number, unit = text.split()
            assert float(number) < limits.get(unit, float("inf")), text


def test_two_figures_that_differ_are_shown_with_the_digits_that_differ() -> None:
    assert distinct_usd(0.7812, 0.7831) == ("0.781", "0.783")
    assert distinct_usd(7.03, 7.51) == ("7.03", "7.51")
    assert distinct_usd(0.05, 0.0501) == ("0.0500", "0.0501")
    assert distinct_usd(0.78, 0.78) == ("0.78", "0.78")
    assert distinct_durations(0.04002, 0.04) == ("40.02 ms", "40.00 ms")
    assert distinct_durations(1.2, 0.04) == ("1200 ms", "40.0 ms")
    assert distinct_durations(1.00001, 0.99999) == ("1.0000 s", "0.99999 s")  # in one unit
    assert distinct_durations(121.0, 119.0) == ("121 s", "119 s")
    assert distinct_durations(3.0, 5e-6) == ("3.00 s", "5.00 µs")  # too far apart for one
    assert usd_text(-0.00001) == "> -0.0001"
    assert usd_text(-0.0) == "0.00"
    assert distinct_usd(2.0, 1e-9) == ("2.00", "< 0.0001")
    assert distinct_durations(0.04, 0.04) == ("40.0 ms", "40.0 ms")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00"), (23_400, "06:30"), (86_400, "24:00"), (109_800, "1d 06:30"), (61.2, "00:01:01")],
)
def test_times_of_a_day(seconds: float, text: str) -> None:
    assert formats.clock(seconds) == text
