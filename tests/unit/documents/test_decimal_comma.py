"""A decimal comma in a YAML map is named as such: YAML divides it into a number and a key."""

from __future__ import annotations

import pytest

from jellybean.documents.schema.reader import read_text


@pytest.mark.parametrize(
    ("text", "path", "written"),
    [
        ("{price: 0,05 USD/h, count: 3}", "price", "0.05 USD/h"),
        ("links: [{from: a, latency: 1,5 ms}]", "links.0.latency", "1.5 ms"),
        ("{ratio: 0,3}", "ratio", "0.3"),
        ("{rate: 1,000 /s}", "rate", "1.000 /s or 1000 /s"),
        ("{latency: 1.000,5 ms}", "latency", "1000.5 ms"),
    ],
)
def test_a_comma_in_a_number_is_named_and_no_part_of_it_is_read(text: str, path: str, written: str) -> None:
    (problem,) = read_text(text, "x.yaml").problems
    assert (problem.path, problem.hint) == (
        path,
        f"a comma ends a value here: write {written}, with a point before decimals",
    )


@pytest.mark.parametrize("text", ["{1: 5,2: 6}", "{a: 1, 05: }", "{a: x,05: y}", "{a: 1,b: 2}", "[0,05]"])
def test_other_commas_divide(text: str) -> None:
    assert read_text(text, "x.yaml").problems == []
