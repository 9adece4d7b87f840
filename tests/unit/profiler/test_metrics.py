"""Metrics count what people mean by right."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.bench.answer_metrics import MetricError, is_correct, score


def test_exact_match_ignores_a_leading_dimension_of_one() -> None:
    assert is_correct("exact_match", np.array([42]), np.int64(42))
    assert is_correct("exact_match", np.array([[4, 2]]), np.array([4, 2]))
    assert not is_correct("exact_match", np.array([4, 2]), np.array([4, 3]))
    assert not is_correct("exact_match", np.array([4, 2]), np.array([4]))


def test_top1_takes_the_highest_score() -> None:
    assert is_correct("top1", np.array([[0.1, 0.7, 0.2]]), np.int64(1))
    assert not is_correct("top1", np.array([[0.1, 0.7, 0.2]]), np.int64(2))


def test_top1_of_no_scores_is_wrong() -> None:
    assert not is_correct("top1", np.zeros((0,)), np.int64(0))


def test_score_is_percent_of_right_answers() -> None:
    assert score("exact_match", [np.array([1]), np.array([2]), np.array([3]), np.array([9])], np.arange(1, 5)) == 75.0


def test_score_refuses_what_does_not_fit() -> None:
    with pytest.raises(MetricError, match="2 answers for 3 labels"):
        score("exact_match", [np.array([1]), np.array([2])], np.arange(3))
    with pytest.raises(MetricError, match="no labels"):
        score("exact_match", [], np.arange(0))
    with pytest.raises(MetricError, match="unknown metric 'f1'; known: exact_match, top1"):
        score("f1", [np.array([1])], np.arange(1))
