"""Integer columns for worker classes with few workers, where the relaxation without them is weak.

With identical sites, one more worker means one more in every site, which may be a tenth of a plan's cost. Per operator
o and class k of few workers the joint LP gets integer columns, on which branch_and_bound.py branches. So are m[p], the
workers paid in the pools p of these classes.
    u[o, k]   exclusive class: workers of k that serve only o
    x[o, k]   shared class: 1 if o runs on k
    w[o, k]   shared class: memory of k that models of o fill, in workers; continuous
Rows, over the choices c of o (columns y, z, m and coefficients needed, stored: joint_lp.py):
    sum_c needed[c, k] y[c, k] <= u[o, k]; sum_o u[o, k] <= sum_{p in k} m[p];
    sum_c y[c, k] <= x[o, k] <= sum_{p in k} m[p];
    sum_c stored[c, k] y[c, k] <= w[o, k]; sum_o w[o, k] <= sum_{p in k} m[p];
    w[o, k] >= sum_c a[c] z[c] - (1 - x[o, k]) max_c a[c], with a[c] = model bytes of c / memory bytes of a worker of k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.fleet.worker_classes import LEAST_BYTES, Mask, WorkerClasses
from jellybean_solver.milp.highs_program import Floats, Indices, Program

FEW = 8  # most workers of a class that gets integer columns
LITTLE = 1e-7  # fractions of requests, or workers: smaller values are rounding errors


@dataclass(frozen=True, slots=True)
class Box:
    """A node's restrictions: the choices `allowed`, and lower and upper limits of `IntegerCounts.columns`."""

    allowed: Mask
    least: Floats
    most: Floats

    @property
    def key(self) -> bytes:
        """Equal for equal boxes; for use in sets."""
        return self.allowed.tobytes() + self.least.tobytes() + self.most.tobytes()


class IntegerCounts:
    """The integer columns of classes with few workers, and their rows, in a joint LP's program.

    `columns`: indices of the integer columns, first the `pools` columns m, then u or x; `most`: their upper limits.
    `taken`, `there`: per operator and class the row in which y has the coefficient `weight` (per choice and class), and
    the row in which it has the coefficient 1; -1 if there is no such row.
    """

    def __init__(
        self,
        program: Program,
        kinds: WorkerClasses,
        reached: Mask,
        chosen: Indices,
        paid: Indices,
        pools_kind: Indices,
    ) -> None:
        """`reached`: per choice and class, true if there is a y; `chosen`, `paid`: the columns z and m.

        `pools_kind`: class of each column m.
        """
        self._program, self._kinds, self._open = program, kinds, reached
        self.weight = np.where(kinds.runs, np.where(kinds.exclusive, kinds.needed, kinds.stored), 0.0)
        shape = int(kinds.owner.max()) + 1, len(kinds.kinds)
        self.taken, self.there = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        limits = [math.inf if kind.memory_bytes is None else kind.memory_bytes for kind in kinds.kinds]
        # Model bytes over a worker's memory bytes; 0 without a limit.
        self._model = np.where(reached, kinds.memory_bytes / np.maximum(limits, LEAST_BYTES), 0.0)
        integer_counts = [index for index, kind in enumerate(kinds.kinds) if kind.count <= FEW]
        self.kind_of = pools_kind[np.isin(pools_kind, integer_counts)]  # class of each of the first `pools` columns
        columns = paid[np.isin(pools_kind, integer_counts)].tolist()
        most = [float(pool.count) for index in integer_counts for pool in kinds.kinds[index].pools]
        self.pools = len(columns)
        self.at = np.full(shape, -1, np.int64)  # operator, class -> index into `columns`; -1: none
        for index in integer_counts:
            kind, pools = kinds.kinds[index], paid[pools_kind == index]
            operators = np.unique(kinds.owner[reached[:, index]]).tolist()
            if kind.exclusive:
                own, high = self._held(operators, index, pools, whole=True), float(kind.count)
            elif kind.memory_bytes is not None:
                own, high = self._together(operators, index, pools, chosen), 1.0
            else:
                continue
            self.at[operators, index] = np.arange(len(columns), len(columns) + len(own))
            columns += own
            most += [high] * len(own)
        self.columns, self.most = np.array(columns, np.int64), np.array(most)

    def entries(self, choice: int, kind: int) -> tuple[list[int], list[float]]:
        """Rows of this module that y[choice, class] enters, and its coefficients in them."""
        operator = int(self._kinds.owner[choice])
        rows, values = [], []
        for table, value in ((self.taken, float(self.weight[choice, kind])), (self.there, 1.0)):
            if table[operator, kind] >= 0:
                rows.append(int(table[operator, kind]))
                values.append(value)
        return rows, values

    def needed(self, paid: Floats, chosen: Floats, served: Floats) -> Floats:
        """Values of `columns` that are feasible for given values of m (`paid`), z (`chosen`) and y (`served`).

        x is set to 1 where all models of the class's operators fit together, else to the least value.
        """
        found = np.concatenate([paid, np.zeros(len(self.columns) - self.pools)])
        taken, there = np.zeros(self.at.shape), np.zeros(self.at.shape)
        np.add.at(taken, self._kinds.owner, self.weight * served)
        np.add.at(there, self._kinds.owner, served)
        own = self.at >= 0
        there = np.where((there > LITTLE) & self._fit(paid, chosen, there > LITTLE, taken), 1.0, there)
        found[self.at[own]] = np.where(self._kinds.exclusive, taken, there)[own]
        return found

    def _fit(self, paid: Floats, chosen: Floats, there: Mask, taken: Floats) -> Mask:
        """Per class, true if the models of all operators that run there (`there`) fit together into its memory."""
        models = np.zeros(self.at.shape)
        np.add.at(models, self._kinds.owner, self._model * chosen[:, None])
        room = np.bincount(self.kind_of, paid, len(self._kinds.kinds))
        fit: Mask = np.where(there, np.maximum(models, taken), 0.0).sum(axis=0) <= room + LITTLE
        return fit

    def _room(self, pools: Indices) -> int:
        return self._program.row(-math.inf, 0.0, pools, -1.0)

    def _held(self, operators: Sequence[int], kind: int, pools: Indices, *, whole: bool) -> list[int]:
        """Add and return columns u (`whole`) or w, one per operator, with their rows."""
        room, columns = self._room(pools), []
        for operator in operators:
            column = self._program.column(0.0, float(self._kinds.counts[kind]), integer=whole)
            row = self._program.row(-math.inf, 0.0)
            self._program.fill([row, room], [column, column], [-1.0, 1.0])
            self.taken[operator, kind] = row
            columns.append(column)
        return columns

    def _together(self, operators: Sequence[int], kind: int, pools: Indices, chosen: Indices) -> list[int]:
        columns = self._program.add_columns(np.zeros(len(operators)), 1.0, integer=True).tolist()
        held = self._held(operators, kind, pools, whole=False)
        for operator, column, filled in zip(operators, columns, held, strict=True):
            self.there[operator, kind] = self._program.row(-math.inf, 0.0, [column], -1.0)
            self._program.row(-math.inf, 0.0, [column, *pools], [1.0] + [-1.0] * len(pools))
            own = np.flatnonzero((self._kinds.owner == operator) & self._open[:, kind])
            shares = self._model[own, kind]
            most = float(shares.max())
            row = self._program.row(-math.inf, most, chosen[own], shares)
            self._program.fill([row, row], [column, filled], [most, -1.0])
        return list(columns)
