"""A model that is five points worse is found by its labels, within 500 of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import insert

from jellybean.ledger import LabelledBy, Ledger, Span, served_accuracy, tables, wilson

PLANNED, WORSE, LABELS = 95.0, 90.0, 500


def labelled(folder: Path, accuracy: float, seed: int) -> float:
    """The upper end of the interval of the newest plan's accuracy, as `accuracy` compares it with the plan's."""
    ledger = Ledger(str(folder / f"ledger-{accuracy:g}.db"), "g")
    right = np.random.default_rng(seed).random(LABELS) < accuracy / 100
    of_all = {"client": "", "at_s": 100.0, "workflow": "w", "plan": "plan", "selection": "", "site": ""}
    rows = [{**of_all, "id": str(number), "correct": float(one)} for number, one in enumerate(right)]
    with ledger.changing() as connection:
        connection.execute(insert(tables.answers), rows)
    (found,) = served_accuracy(ledger, "w", LabelledBy.PLAN, Span())
    ledger.close()
    assert found.labels == LABELS
    return found.high


@pytest.mark.parametrize("seed", range(2))
def test_five_hundred_labels_tell_five_points(tmp_path: Path, seed: int) -> None:
    assert labelled(tmp_path, WORSE, seed) < PLANNED
    assert labelled(tmp_path, PLANNED, seed) >= PLANNED


def test_five_hundred_labels_tell_five_points_in_most_samples() -> None:
    """The same without a ledger, of many samples."""
    rng = np.random.default_rng(0)
    worse, steady = (
        [100 * wilson(rng.binomial(LABELS, accuracy / 100) / LABELS, LABELS)[1] < PLANNED for _ in range(2000)]
        for accuracy in (WORSE, PLANNED)
    )
    assert np.mean(worse) >= 0.97
    assert np.mean(steady) <= 0.03
