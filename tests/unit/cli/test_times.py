"""Options that are times."""

from __future__ import annotations

import pytest
import typer

from jellybean.cli.times import seconds_within


@pytest.mark.parametrize(("given", "seconds"), [("20", 20), ("20s", 20), ("2 min", 120), ("1h", 3600), (1.5, 1.5)])
def test_seconds_and_times_with_a_unit(given, seconds):
    assert seconds_within(1, 86_400)(given) == seconds


@pytest.mark.parametrize("given", ["0.5", "200h", "nan", "-3"])
def test_times_out_of_range_are_refused_with_the_range(given):
    with pytest.raises(typer.BadParameter, match=f"{given} is not from 1 to 86400 s"):
        seconds_within(1, 86_400)(given)


def test_other_texts_are_refused_with_an_example():
    with pytest.raises(typer.BadParameter, match="'abc' is not a duration; write seconds, or a time such as 20s"):
        seconds_within(1)("abc")
