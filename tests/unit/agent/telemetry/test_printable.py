"""Foreign text as it is shown."""

from __future__ import annotations

import unicodedata

import pytest

from jellybean_agent import printable, printable_lines


def test_text_of_people_stays_as_it_is() -> None:
    for text in ("worker edge-1: 40 \N{MICRO SIGN}s", "\N{LATIN SMALL LETTER E WITH ACUTE}\u00a0\u4e2d\U0001f980", ""):
        assert printable(text) == printable_lines(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("\u2028\u202e\u2066", "\\u2028\\u202e\\u2066"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_and_no_separator_of_lines_is_left() -> None:
    every = "".join(map(chr, range(0x30000)))
    left = {unicodedata.category(character) for character in printable(every)}
    assert left.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
    assert len(printable(every).splitlines()) == 1


def test_lines_stay_lines_where_they_may() -> None:
    assert printable_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"


def test_of_a_long_text_the_beginning_is_shown() -> None:
    assert printable("\x1b" * 10, 3) == "\\x1b\\x1b\\x1b... (7 characters more)"
    assert printable("abc", 3) == "abc"
