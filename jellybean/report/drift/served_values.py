"""What requests and answers were like, beside held-out inputs, and the answers with which a plan began."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean.ledger.queries.plan_counts import FIRST_ANSWERS
from jellybean.ledger.span import Span
from jellybean.ledger.value_figures import Figure, Port, ValueLine, figures_of
from jellybean.report.drift.drift_watch import Observation
from jellybean_agent import Array

TOLERANCE = 0.25  # standard deviations of the figure over what is expected
MOST_ROWS = 2000  # of held-out inputs that are looked at
_SURE = 3.0  # standard errors by which the expected mean may be off


@dataclass(frozen=True, slots=True)
class _Expected:
    mean: float
    deviation: float
    tolerance: float

    @classmethod
    def of(cls, mean: float, deviation: float, count: int) -> _Expected | None:
        """From `count` requests; None if they say nothing: too few, or the same in all."""
        if count < 2 or deviation <= 1e-9 * max(1.0, abs(mean)):
            return None
        return cls(mean, deviation, TOLERANCE + _SURE / math.sqrt(count))


_Of = Mapping[tuple[Port, str, Figure], _Expected | None]


def value_observations(
    lines: Sequence[ValueLine], held_out: Mapping[str, Array], span: Span = Span()
) -> Iterator[Observation]:
    """Figures of a plan's requests and answers by interval, in the order of time.

    `lines`: of the span, and of the plan's first answers. `held_out`: source -> requests as rows. Answers are compared
    with the plan's first ones, which are left out.
    """
    first, began_s = _first_answers(lines)
    expected = {**_expected_inputs(held_out), **first}
    for line in lines:
        known = expected.get((line.port, line.name, line.figure))
        is_first = line.port is Port.ANSWER and line.begin_s < began_s
        if known is not None and not is_first and span.since_s <= line.begin_s < span.until_s:
            name = f"{line.figure} of {line.name}{' answers' if line.port is Port.ANSWER else ''}"
            predicted = line.mean, line.requests, known.mean, known.mean
            yield Observation(name, line.begin_s, line.seconds, *predicted, 1.0, known.deviation, known.tolerance)


def _expected_inputs(held_out: Mapping[str, Array]) -> _Of:
    """The distribution of each figure over held-out requests."""
    expected: dict[tuple[Port, str, Figure], _Expected | None] = {}
    for source, rows in held_out.items():
        chosen = rows[:: max(1, -(-len(rows) // MOST_ROWS))]
        figures = [found for row in chosen if (found := figures_of(np.asarray(row)))]
        for figure in Figure:
            values = np.array([found[figure] for found in figures])
            deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            mean = float(values.mean()) if len(values) else 0.0
            expected[Port.SOURCE, source, figure] = _Expected.of(mean, deviation, len(values))
    return expected


def _first_answers(lines: Sequence[ValueLine]) -> tuple[_Of, float]:
    """The distribution of each figure over a plan's first answers, and from when on answers are compared with it."""
    sums: dict[tuple[Port, str, Figure], list[float]] = {}
    began_s = math.inf
    for line in (line for line in lines if line.port is Port.ANSWER):
        total = sums.setdefault((line.port, line.name, line.figure), [0.0, 0.0, 0.0])
        if total[0] >= FIRST_ANSWERS:
            began_s = min(began_s, line.begin_s)
            continue
        total[0] += line.requests
        total[1] += line.requests * line.mean
        total[2] += line.requests * (line.deviation**2 + line.mean**2)
    expected: dict[tuple[Port, str, Figure], _Expected | None] = {}
    for key, (count, total_of_means, squares) in sums.items():
        mean = total_of_means / count
        deviation = math.sqrt(max(0.0, squares / count - mean * mean))
        expected[key] = _Expected.of(mean, deviation, int(count))
    return expected, began_s
