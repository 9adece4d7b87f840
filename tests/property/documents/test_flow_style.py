"""A value in flow style is read as the same value, also inside a list and as a key of a map."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jellybean.documents.schema.flow_style import flow_style
from jellybean.documents.schema.reader import read_text

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
keys = texts.filter(bool)  # a document has no empty key
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda item: st.lists(item, max_size=3) | st.dictionaries(keys, item, max_size=3))


@given(values)
@example("495")
@example("a: b")
@example("x, y")
@example("no # yes\n")
@example({"<<": ["1e3", "~", "it's", "-", "é\u2028\x07"]})
def test_a_value_is_read_as_it_was(value: Any) -> None:
    tree = read_text(f"[{flow_style(value)}]", "")
    assert (tree.data, tree.problems) == ([value], [])


@pytest.mark.parametrize("text", ["to_float32", "models/a-b.onnx", "large", "measured"])
def test_names_stay_plain(text: str) -> None:
    assert flow_style({"from": text}) == f"{{from: {text}}}"
