"""The columns and rows of one flow in the program of ways: how requests spread, with everything there or after a loss.

Columns:
    x[w]        fraction of its block's requests that take way w (ways.py); 0 for ways that a loss closes
    u[b]        1 if block b is left out; the same column in all flows
    q[i, p, h]  requests of instance i = (operator, variant) on workers of pool p that hold the instances h, as a
                fraction of the largest rate that the operator has on any way
Rows:
    sum_w x[w] = 1 - u[b] in each block, or at most so much in one that does not survive the loss;
    sum_{p in t, h} q[i, p, h] = sum of x[w] times rate, over the ways with i in tier t;
    sum_i workers[i, p] q[i, p, h] <= n[p, h]; q[i, p, h] <= n[p, h]; traffic within the bandwidth of each link;
    sum_w accuracy[w] x[w] >= the mean of its block times 1 - u[b], less what it may lack, unless it does not survive.
    After the loss of a worker n[p, h] is n[p, h] - 1, where there are any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.milp.highs_program import Floats, Indices, Program
from jellybean_solver.mixture.blocks import surviving
from jellybean_solver.mixture.seats import Held, Lost
from jellybean_solver.mixture.ways import Instance, Way, WayTable
from jellybean_solver.model.targets import LossKind

Count = tuple[str, Held]  # pool, instances
PRESENT = 1e-5  # share of the largest rate: an operator without requests needs a worker all the same


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that all flows share. `counts`: column of the number of workers that hold these instances.

    `busy`: workers that the largest rate of an instance keeps busy in a pool. `stored`: the part of a worker's memory
    that an instance takes, where the rows count it.
    """

    counts: Mapping[Count, int]
    busy: Mapping[tuple[Instance, str], float]
    stored: Mapping[tuple[Instance, str], float]


@dataclass(frozen=True, slots=True)
class Mean:
    """The least mean accuracy of a block, in percent. `lacking`: column of what it may lack; -1: nothing."""

    block: int
    least: float
    lacking: int = -1


class FlowRows:
    """One flow in a program. `taken`: column of each way; `served`: of each instance on the workers of a count.

    `partial`: blocks that need not be served in full, as their targets do not survive the loss.
    """

    def __init__(
        self,
        program: Program,
        table: WayTable,
        workers: Workers,
        means: Sequence[Mean],
        left_out: Mapping[int, int],
        lost: Lost | None,
    ) -> None:
        """`means`: of the blocks that have one. `left_out`: block -> its column u, of those that may be left out."""
        self.program, self.table, self.workers, self.lost = program, table, workers, lost
        every = frozenset(range(len(table.blocks)))
        kept = every if lost is None else surviving(table.network.problem, table.blocks, lost.kind, lost.of)
        self.partial = every - kept
        usd_per_h: Floats = np.array([way.usd_per_h if lost is None else 0.0 for way in table.ways])
        is_open: Floats = np.array([self._is_open(way) for way in table.ways])
        self.taken: Indices = program.add_columns(usd_per_h, is_open)
        least: Floats = np.array([0.0 if number in self.partial else 1.0 for number in range(len(table.blocks))])
        everything = program.add_rows(least, np.ones(len(table.blocks)), len(table.blocks))
        program.fill(everything[[way.block for way in table.ways]], self.taken, 1.0)
        program.fill(everything[list(left_out)], list(left_out.values()), 1.0)
        self.served: dict[tuple[Instance, str, Held], int] = {}
        for (pool, held), count in workers.counts.items():
            self._capacity(pool, held, count)
        self._meet()
        self._links()
        for mean in (mean for mean in means if mean.block not in self.partial):
            row = int(program.add_rows(mean.least, math.inf, 1)[0])
            self.fill_accuracy(row, mean.block)
            if mean.lacking >= 0:
                program.fill([row], [mean.lacking], 1.0)
            if mean.block in left_out:
                program.fill([row], [left_out[mean.block]], mean.least)

    def fill_accuracy(self, row: int, block: int) -> None:
        """Add a block's mean accuracy to a row."""
        own = np.flatnonzero([way.block == block for way in self.table.ways])
        accuracies = [self.table.ways[number].accuracy for number in own]
        self.program.fill(np.full(len(own), row), self.taken[own], accuracies)

    def _is_open(self, way: Way) -> float:
        return 0.0 if self.lost is not None and way.is_closed_by(self.lost.kind, self.lost.of) else 1.0

    def _capacity(self, pool: str, held: Held, count: int) -> None:
        program, busy, stored = self.program, self.workers.busy, self.workers.stored
        own = [instance for instance in held if (instance, pool) in busy]
        columns = program.add_columns(np.zeros(len(own)), 1.0).tolist()
        load = int(program.add_rows(-math.inf, 0.0, 1)[0])
        present = program.add_rows(-math.inf, 0.0, len(own)).tolist()
        full = int(program.add_rows(-math.inf, 0.0, 1)[0])
        rows = [load, full, *present]
        program.fill(rows, [count] * len(rows), -1.0)
        if self.lost == Lost(LossKind.WORKER, (pool,), held):
            program.fill(rows, [self._has_any(count)] * len(rows), 1.0)
        for instance, column, row in zip(own, columns, present, strict=True):
            self.served[instance, pool, held] = column
            kept = stored.get((instance, pool), 0.0) * max(1.0, busy[instance, pool])
            program.fill([load, row, full], [column] * 3, [busy[instance, pool], 1.0, kept])

    def _has_any(self, count: int) -> int:
        """A column that is 1 where a count is not 0."""
        used = int(self.program.add_columns([0.0], 1.0, integer=True)[0])
        row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
        most = float(np.concatenate(self.program.high)[count])
        self.program.fill([row, row], [count, used], [1.0, -most])
        return used

    def _meet(self) -> None:
        """Rows: what the pools of a tier serve of an instance is what the ways bring there."""
        network = self.table.network
        rows: dict[tuple[Instance, str], int] = {}

        def row(instance: Instance, tier: str) -> int:
            if (instance, tier) not in rows:
                rows[instance, tier] = int(self.program.add_rows(0.0, 0.0, 1)[0])
            return rows[instance, tier]

        for (instance, pool, _), column in self.served.items():
            self.program.fill([row(instance, network.tier_of[pool])], [column], 1.0)
        at, columns, values = [], [], []
        for way, column in zip(self.table.ways, self.taken.tolist(), strict=True):
            for instance, tier, rate in self.table.placed(way):
                at.append(row(instance, tier))
                columns.append(column)
                values.append(-max(rate / self.table.most[instance[0]], PRESENT))
        self.program.fill(at, columns, values)

    def _links(self) -> None:
        for link, bandwidth in self.table.network.bandwidth.items():
            used = [
                (column, way.sent[link] / bandwidth)
                for way, column in zip(self.table.ways, self.taken.tolist(), strict=True)
                if link in way.sent
            ]
            if used:
                row = int(self.program.add_rows(-math.inf, 1.0, 1)[0])
                self.program.fill([row] * len(used), [column for column, _ in used], [share for _, share in used])
