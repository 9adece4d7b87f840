"""Times of the command cost, and its amounts."""

from __future__ import annotations

import time

import pytest
import typer

from jellybean.cli.serving.accounts.cost import parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-11-20", 1795132800.0), ("2026-11-20T15:30", 1795188600.0), ("2026-11-20T15:30+01:00", 1795185000.0)],
)
def test_dates_are_in_utc_unless_they_say_otherwise(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(("text", "age_s"), [("7d", 604_800), ("90min", 5_400), ("1.5h", 5_400), ("2 w", 1_209_600)])
def test_ages_count_back_from_now(text: str, age_s: float) -> None:
    before_s = time.time()
    assert before_s <= parse_time(text) + age_s <= time.time()


@pytest.mark.parametrize("text", ["yesterday", "7", "7m", "", "2026-13-01"])
def test_what_is_no_time_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write an age"):
        parse_time(text)
