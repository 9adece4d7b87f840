"""How far the answers of selections to one request agree, so that any of them may become the reference later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jellybean.answer_metrics import Array, agreement


@dataclass(frozen=True, slots=True)
class Agreements:
    """`answer`: for each selection the number of its answer, of those that differ; `agreement` of two such answers."""

    answer: Sequence[int]
    agreement: Sequence[Sequence[float]]

    def between(self, selection: int, reference: int) -> float:
        """How far the answer of a selection is that of a reference, from 0 to 1."""
        return self.agreement[self.answer[selection]][self.answer[reference]]


def agreements_of(metric: str, answers: Sequence[Array]) -> Agreements:
    """The agreements of answers to one request: most selections answer alike, so few pairs are compared."""
    differing: list[Array] = []
    numbers: list[int] = []
    for answer in answers:
        alike = (number for number, known in enumerate(differing) if agreement(metric, answer, known) == 1.0)
        numbers.append(next(alike, len(differing)))
        if numbers[-1] == len(differing):
            differing.append(answer)
    return Agreements(numbers, [[agreement(metric, one, other) for other in differing] for one in differing])
