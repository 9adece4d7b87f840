"""A text that is read again gives the same tree, or the same problems, and shares nothing with the first."""

from __future__ import annotations

import pytest

from jellybean.documents.schema.reader import MAX_DEPTH, read_text

TEXT = "kind: Workflow\noperators:\n  a: {inputs: [x], rate: 1.5}\n  b: [1, two, null]\n"
BROKEN = ("a: [1, 2\nb: 3\n", "a: 1\na: 2\n", "--- 1\n--- 2\n", "a: *b\n", "[" * (MAX_DEPTH + 1), "a: \x07\n", "")


def test_the_same_tree_that_is_not_shared() -> None:
    first = read_text(TEXT, "one.yaml")
    first.data["operators"]["a"]["inputs"].append("y")
    first.keys.clear()
    again = read_text(TEXT, "two.yaml")
    assert again.data == {"kind": "Workflow", "operators": {"a": {"inputs": ["x"], "rate": 1.5}, "b": [1, "two", None]}}
    mark = again.position(("operators", "b"), key=True)
    assert (mark.file, mark.line, mark.column) == ("two.yaml", 4, 3)


@pytest.mark.parametrize("text", BROKEN)
def test_the_same_problems(text: str) -> None:
    first, again = read_text(text, "one.yaml"), read_text(text, "one.yaml")
    assert first.problems == again.problems != []
    assert (first.data, first.keys, first.values) == (again.data, again.keys, again.values)
