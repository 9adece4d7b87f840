"""What held-out inputs are like, beside those of the requests that were served."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jellybean.ledger.input_figures import InputFigure, figures_of, input_lines
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.questions import Span
from jellybean.report.drift_watch import Observation
from jellybean_agent import Array

TOLERANCE = 0.25  # standard deviations of the figure over held-out inputs
MOST_ROWS = 2000  # of held-out inputs that are looked at
_SURE = 3.0  # standard errors by which the held-out mean may be off


@dataclass(frozen=True, slots=True)
class _Expected:
    mean: float
    deviation: float
    tolerance: float


def input_observations(
    ledger: Ledger, held_out: Mapping[str, Array], plan_hash: str, span: Span = Span()
) -> Iterator[Observation]:
    """The inputs of a plan's requests by interval, in the order of time. `held_out`: source -> requests as rows."""
    expected = {source: _expected(rows) for source, rows in held_out.items()}
    for line in input_lines(ledger, plan_hash, span):
        known = expected.get(line.source, {}).get(line.figure)
        if known is not None:
            name = f"{line.figure} of {line.source}"
            predicted = line.mean, line.requests, known.mean, known.mean
            yield Observation(name, line.begin_s, line.seconds, *predicted, 1.0, known.deviation, known.tolerance)


def _expected(rows: Array) -> dict[InputFigure, _Expected]:
    """The distribution of each figure over held-out requests; without those that are the same in all."""
    chosen = rows[:: max(1, -(-len(rows) // MOST_ROWS))]
    figures = [found for row in chosen if (found := figures_of(np.asarray(row)))]
    expected: dict[InputFigure, _Expected] = {}
    for figure in InputFigure:
        values = np.array([found[figure] for found in figures])
        if len(values) > 1 and (deviation := float(values.std(ddof=1))) > 1e-9 * max(1.0, abs(float(values.mean()))):
            unsure = _SURE / math.sqrt(len(values))
            expected[figure] = _Expected(float(values.mean()), deviation, TOLERANCE + unsure)
    return expected
