"""Metrics count what people mean by right."""

from __future__ import annotations

import random

import numpy as np
import pytest

from jellybean.answer_metrics import MAX_COMPARED, MetricError, correctness, score


def test_exact_match_ignores_a_leading_dimension_of_one() -> None:
    assert correctness("exact_match", np.array([42]), np.int64(42))
    assert correctness("exact_match", np.array([[4, 2]]), np.array([4, 2]))
    assert not correctness("exact_match", np.array([4, 2]), np.array([4, 3]))
    assert not correctness("exact_match", np.array([4, 2]), np.array([4]))


def test_top1_takes_the_highest_score() -> None:
    assert correctness("top1", np.array([[0.1, 0.7, 0.2]]), np.int64(1))
    assert not correctness("top1", np.array([[0.1, 0.7, 0.2]]), np.int64(2))


def test_top1_of_no_scores_is_wrong() -> None:
    assert not correctness("top1", np.zeros((0,)), np.int64(0))


def test_score_is_percent_of_right_answers() -> None:
    assert score("exact_match", [np.array([1]), np.array([2]), np.array([3]), np.array([9])], np.arange(1, 5)) == 75.0


def test_score_refuses_what_does_not_fit() -> None:
    with pytest.raises(MetricError, match="2 answers for 3 labels"):
        score("exact_match", [np.array([1]), np.array([2])], np.arange(3))
    with pytest.raises(MetricError, match="no labels"):
        score("exact_match", [], np.arange(0))
    with pytest.raises(MetricError, match="unknown metric 'f1'; known: character_accuracy, exact_match, top1"):
        score("f1", [np.array([1])], np.arange(1))


def _bytes(text: str, width: int = 0) -> np.ndarray:
    data = text.encode().ljust(width, b"\0")
    return np.frombuffer(data, np.uint8)[np.newaxis]


@pytest.mark.parametrize(
    ("answer", "label", "share"),
    [
        ("one two", "two\none", 1.0),  # in another order
        ("one two", "one two three four", 0.5),
        ("one two three four", "one two", 0.5),  # words that are not there
        ("one one", "one two", 0.5),  # each word counts once
        ("One", "one", 0.0),
        ("grün", "grün", 1.0),
        ("", "", 1.0),
        ("", "one", 0.0),
    ],
)
def test_word_accuracy(answer: str, label: str, share: float) -> None:
    assert correctness("word_accuracy", _bytes(answer), _bytes(label, 64)) == share


@pytest.mark.parametrize(
    ("answer", "label", "edits"),
    [
        ("kitten", "sitting", 3),
        ("sitting", "kitten", 3),
        ("flaw", "lawn", 2),
        ("a  b\n", "a b", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("intention", "execution", 5),
    ],
)
def test_character_accuracy_is_by_edit_distance(answer: str, label: str, edits: int) -> None:
    most = max(len(answer.strip().replace("  ", " ")), len(label))
    assert correctness("character_accuracy", _bytes(answer), _bytes(label)) == pytest.approx(1 - edits / most)


def _distance_by_table(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for count, character in enumerate(one, 1):
        above, row = row, [count]
        for place, wanted in enumerate(other):
            row.append(min(row[-1] + 1, above[place + 1] + 1, above[place] + (character != wanted)))
    return row[-1]


@pytest.mark.parametrize("letters", ["ab", "abcdé€😀", "x"])
def test_character_accuracy_is_that_of_the_table_of_distances(letters: str) -> None:
    generator = random.Random(5)
    for _ in range(100):
        one, other = ("".join(generator.choices(letters, k=generator.randrange(1, 40))) for _ in range(2))
        share = 1 - _distance_by_table(one, other) / max(len(one), len(other))
        assert correctness("character_accuracy", _bytes(one), _bytes(other)) == pytest.approx(share)


def test_a_long_text_is_compared_in_a_few_steps_and_a_longer_one_is_refused() -> None:
    """A label of one client, and its own long answer, kept a gateway busy for minutes."""
    text = "ab" * (MAX_COMPARED // 2)
    assert correctness("character_accuracy", _bytes(text), _bytes("b" * 50)) == pytest.approx(50 / MAX_COMPARED)
    with pytest.raises(MetricError, match="a text of 1,048,577 characters is not compared"):
        correctness("character_accuracy", _bytes(text + "a"), _bytes("b"))


def test_text_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(MetricError, match="uint8"):
        correctness("word_accuracy", np.array([1.5]), _bytes("one"))
