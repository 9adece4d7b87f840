"""Accuracy metrics of answers against labels, shared by profiler, bench and audits, so that figures are comparable.

An answer is the sink's output for one request; answers and labels are in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from jellybean_solver import JellyBeanError

Array = npt.NDArray[np.generic]
_CACHED_MASKS = 256  # places of a character in a text that are kept: few characters are most of a text
MAX_COMPARED = 2**20  # characters of a text: a longer one is no answer to read


class MetricError(JellyBeanError):
    """Unknown metric, or answers that do not fit the labels."""


def exact_match(answer: Array, label: Array) -> bool:
    """True if answer and label are equal in every element; dimensions of 1 are ignored."""
    return bool(np.array_equal(np.squeeze(answer), np.squeeze(label)))


def top1(answer: Array, label: Array) -> bool:
    """True if the highest score is at the label's index; False if a score is NaN, beside which none is the highest."""
    scores = np.asarray(answer).reshape(-1)
    if not scores.size or np.isnan(scores).any():
        return False
    return int(np.argmax(scores)) == int(np.asarray(label).reshape(-1)[0])


def word_accuracy(answer: Array, label: Array) -> float:
    """Share of words that are in both texts, wherever they stand in them: reading order is not judged.

    The share is of the words of the longer text, so that words read into a picture count as words missed.
    """
    found, wanted = (Counter(text_of(text).split()) for text in (answer, label))
    most = max(found.total(), wanted.total())
    return (found & wanted).total() / most if most else 1.0


def character_accuracy(answer: Array, label: Array) -> float:
    """1 minus the edit distance (Levenshtein) of the two texts over the length of the longer one; spaces are equal."""
    found, wanted = (" ".join(text_of(text).split()) for text in (answer, label))
    most = max(len(found), len(wanted))
    if most > MAX_COMPARED:
        raise MetricError(f"a text of {most:,} characters is not compared by them, of which {MAX_COMPARED:,} are most")
    return 1.0 - _edit_distance(found, wanted) / most if most else 1.0


def text_of(array: Array) -> str:
    """The text of UTF-8 bytes as uint8; zeros fill rows of one array up and do not count. MetricError for others."""
    if array.dtype != np.uint8:
        raise MetricError(f"text is UTF-8 bytes (uint8), not {array.dtype.name}")
    return array.tobytes().rstrip(b"\0").decode("utf-8", "replace")


def _edit_distance(one: str, other: str) -> int:
    """Fewest insertions, deletions and replacements of characters that make the texts equal.

    A column of the table of distances is two integers, of a bit for each character of the longer text (Myers, 1999;
    Hyyro, 2003): labels of one client that are long must not keep a server busy.
    """
    text, pattern = sorted((one, other), key=len)
    if not text:
        return len(pattern)
    codes = np.frombuffer(pattern.encode("utf-32-le", "surrogatepass"), np.uint32)

    @lru_cache(_CACHED_MASKS)
    def places(character: str) -> int:
        return int.from_bytes(np.packbits(codes == ord(character), bitorder="little").tobytes(), "little")

    every, last = (1 << len(pattern)) - 1, 1 << (len(pattern) - 1)
    rises, falls, distance = every, 0, len(pattern)  # where the distance rises, or falls, down the column
    for character in text:
        equal = places(character)
        diagonal = ((((equal & rises) + rises) ^ rises) | equal | falls) & every
        right, left = falls | (every ^ (diagonal | rises)), diagonal & rises
        distance += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & every, left << 1 & every
        rises, falls = left | (every ^ (diagonal | right)), right & diagonal
    return distance


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "exact_match": exact_match,
    "top1": top1,
    "word_accuracy": word_accuracy,
    "character_accuracy": character_accuracy,
}


def correctness(metric: str, answer: Array, label: Array) -> float:
    """Share of an answer that is correct according to `metric`, from 0 to 1. MetricError if there is no such metric."""
    if metric not in METRICS:
        raise MetricError(f"unknown metric {metric!r}; known: {', '.join(sorted(METRICS))}")
    return float(METRICS[metric](np.asarray(answer), np.asarray(label)))


def agreement(metric: str, answer: Array, reference: Array) -> float:
    """How far an answer is that of a reference, from 0 to 1: as if the reference's answer were the label.

    MetricError if there is no such metric, or the answers are not of its kind.
    """
    if metric != "top1":
        return correctness(metric, answer, reference)
    scores = np.asarray(reference).reshape(-1)
    if scores.size == 0:
        raise MetricError("the reference has no scores")
    return correctness(metric, answer, np.asarray(np.argmax(scores)))


def score(metric: str, outputs: Array | Sequence[Array], labels: Array) -> float:
    """Percent of the answers that is correct; `outputs[i]` belongs to `labels[i]`.

    MetricError if there are no answers, or not as many as labels.
    """
    if len(outputs) != len(labels):
        raise MetricError(f"{len(outputs)} answers for {len(labels)} labels: one answer per label is needed")
    if len(labels) == 0:
        raise MetricError("no labels: accuracy needs at least one labelled request")
    correct = sum(correctness(metric, outputs[index], labels[index]) for index in range(len(labels)))
    return 100.0 * correct / len(labels)
