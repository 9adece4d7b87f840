"""How far answers agree: by each metric as if the reference's answer were the label."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.answer_metrics import MetricError, agreement
from jellybean.profiler.agreements import agreements_of


def text(value: str) -> np.ndarray:
    return np.frombuffer(value.encode(), np.uint8)


def test_scores_agree_if_the_highest_is_at_the_same_place() -> None:
    assert agreement("top1", np.array([[0.1, 0.9]]), np.array([[-5.0, 3.0]])) == 1.0
    assert agreement("top1", np.array([[0.1, 0.9]]), np.array([[5.0, 3.0]])) == 0.0
    with pytest.raises(MetricError, match="no scores"):
        agreement("top1", np.array([[0.1]]), np.zeros((0,)))


def test_texts_agree_in_parts() -> None:
    assert agreement("word_accuracy", text("one two"), text("two three")) == 0.5
    assert agreement("exact_match", np.array([3]), np.array([[3]])) == 1.0


def test_any_selection_may_be_the_reference() -> None:
    answers = [text("one two"), text("one two"), text("two three"), text("four")]
    found = agreements_of("word_accuracy", answers)
    assert list(found.answer) == [0, 0, 1, 2]
    assert [found.between(index, 2) for index in range(4)] == [0.5, 0.5, 1.0, 0.0]
    assert [found.between(index, 0) for index in range(4)] == [1.0, 1.0, 0.5, 0.0]
