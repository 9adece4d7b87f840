"""Assertions are counted in the tier of their test, and known by their text wherever they stand."""

from __future__ import annotations

from tests.tools.assertions import Assertion, assertions_of

SOURCE = """
import pytest

pytestmark = pytest.mark.slow


def helper():
    assert one


def test_of_the_module():
    def inner():
        assert two

    with pytest.raises(ValueError, match="three"):
        inner()


@pytest.mark.nightly
@pytest.mark.parametrize("x", [1])
async def test_longer(x):
    assert four, "a message"
"""


def test_the_latest_tier_that_module_or_test_names() -> None:
    assert list(assertions_of("tests/a.py", SOURCE)) == [
        Assertion("support", "tests/a.py", "one"),
        Assertion("slow", "tests/a.py", "two"),
        Assertion("slow", "tests/a.py", "pytest.raises(ValueError, match='three')"),
        Assertion("nightly", "tests/a.py", "four"),
    ]


def test_without_marks_it_is_the_first_tier() -> None:
    source = SOURCE.replace("pytestmark = pytest.mark.slow", "")
    assert [assertion.tier for assertion in assertions_of("tests/a.py", source)] == [
        "support",
        "test",
        "test",
        "nightly",
    ]
