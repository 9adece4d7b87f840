"""Modules are left out only where no test of theirs can be selected."""

from __future__ import annotations

import pytest

from tests.tools.tiers import marks_of_module, may_select

KNOWN = ["slow", "nightly", "alone"]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("import pytest\n\npytestmark = pytest.mark.slow\n", {"slow"}),
        ("pytestmark = [pytest.mark.alone, pytest.mark.slow]\n", {"alone", "slow"}),
        ("pytestmark = [\n    pytest.mark.nightly,\n    pytest.mark.timeout(600),\n]\n", {"nightly", "timeout"}),
        ("@pytest.mark.slow\ndef test_one(): ...\n", set()),
        ("TEXT = 'pytestmark = pytest.mark.slow'\n", set()),
    ],
)
def test_only_marks_of_the_whole_module_count(text: str, marks: set[str]) -> None:
    assert marks_of_module(text) == marks


@pytest.mark.parametrize(
    ("expression", "marks", "selects"),
    [
        ("(not slow and not nightly) and not alone", {"slow"}, False),
        ("(not slow and not nightly) and alone", {"nightly"}, False),
        ("(not slow and not nightly) and alone", {"timeout"}, True),
        ("(slow and not nightly) and not alone", {"slow"}, True),
        ("(slow and not nightly) and not alone", {"alone"}, False),
        ("(slow and not nightly) and not alone", {"timeout"}, True),
        ("slow or not slow", {"slow", "nightly"}, True),
        ("not nightly", {"slow"}, True),
    ],
)
def test_a_module_stays_if_a_test_with_more_marks_may_be_selected(
    expression: str, marks: set[str], selects: bool
) -> None:
    assert may_select(expression, frozenset(marks), KNOWN) is selects
