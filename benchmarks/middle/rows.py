"""A mixed-integer program built column by column and row by row, and passed to HiGHS."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import highspy
import numpy as np

Terms = list[tuple[int, float]]  # column, coefficient


class Rows:
    """A program built column by column and row by row."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.high: list[float] = []
        self.integer: list[bool] = []
        self.low_side: list[float] = []
        self.high_side: list[float] = []
        self.entries: list[tuple[int, int, float]] = []

    def column(self, cost: float = 0.0, high: float = 1.0, *, integer: bool = False) -> int:
        """A variable from 0 to `high`."""
        self.cost.append(cost)
        self.high.append(high)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, terms: Terms, low: float = -math.inf, high: float = 0.0) -> None:
        """low <= terms <= high."""
        summed: dict[int, float] = defaultdict(float)
        for column, value in terms:
            summed[column] += value
        self.entries += [(len(self.low_side), column, value) for column, value in summed.items()]
        self.low_side.append(low)
        self.high_side.append(high)

    def equal(self, terms: Terms, right: float = 0.0) -> None:
        """terms = right."""
        self.row(terms, right, right)

    def lp(self) -> highspy.HighsLp:
        """As HiGHS takes it; entries are in the order of rows."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.low_side)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.array(self.cost), np.zeros(len(self.cost)), np.array(self.high)
        lp.row_lower_, lp.row_upper_ = np.array(self.low_side), np.array(self.high_side)
        rows, columns, values = (np.array(part) for part in zip(*self.entries, strict=True))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.searchsorted(rows, np.arange(lp.num_row_ + 1)).astype(np.int32)
        lp.a_matrix_.index_, lp.a_matrix_.value_ = columns.astype(np.int32), values.astype(float)
        kinds = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [kinds[0] if integer else kinds[1] for integer in self.integer]
        return lp


def plus(columns: Sequence[int]) -> Terms:
    """Each with a coefficient of 1."""
    return [(column, 1.0) for column in columns]
