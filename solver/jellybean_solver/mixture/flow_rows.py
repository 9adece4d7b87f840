"""The columns and rows of one flow in the program of ways: how requests spread, with everything there or after a loss.

Columns:
    x[w]        fraction of its block's requests that take way w (ways.py); 0 for ways that a loss closes
    u[b]        1 if block b is left out; the same column in all flows
    q[i, p, h]  requests of instance i = (operator, variant) on workers of pool p that hold the instances h, as a
                fraction of the largest rate that the operator has on any way; of whole streams for each rate by itself
Rows:
    sum_w x[w] = 1 - u[b] in each block, or at most so much in one that does not survive the loss;
    sum_{p in t, h} q[i, p, h] = sum of x[w] times rate, over the ways with i in tier t;
    sum_i workers[i, p] q[i, p, h] <= n[p, h]; q[i, p, h] <= n[p, h]; traffic within the bandwidth of each link;
    sum_w accuracy[w] x[w] >= the mean of its block times 1 - u[b], less what it may lack, unless it does not survive.
    After the loss of a worker n[p, h] is n[p, h] - 1, where there are any. Audits are shed after any loss.
Where the requests of a block come in k streams that keep to one route (whole_streams.py), with s[i, p, h] = k q:
    y[g]        streams on the ways of g, integer; g: ways that are alike for the operators of the streams
    m[p, h, a]  workers with the allotment a, integer;  s[i, p, h] <= sum_a a[i] m[p, h, a];  sum_a m <= n[p, h]
    k sum_{w in g} x[w] = y[g].
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
from jellybean_solver.mixture.whole_streams import NO_ROOM, Allotment, Room, Task
from jellybean_solver.model.targets import LossKind

Count = tuple[str, Held]  # pool, instances
PRESENT = 1e-5  # share of the largest rate: an operator without requests needs a worker all the same


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that all flows share. `counts`: column of the number of workers that hold these instances.

    `busy`: workers that the largest rate of an instance keeps busy in a pool. `stored`: the part of a worker's memory
    that an instance takes, where the rows count it. `rooms`: for streams, of workers that hold any which keep to one
    route. `relaxed`: the instances of a count need not fit on one worker.
    """

    counts: Mapping[Count, int]
    busy: Mapping[tuple[Instance, str], float]
    stored: Mapping[tuple[Instance, str], float]
    rooms: Mapping[Count, Room]
    relaxed: bool


@dataclass(frozen=True, slots=True)
class Mean:
    """The least mean accuracy of a block, in percent. `lacking`: column of what it may lack; -1: nothing."""

    block: int
    least: float
    lacking: int = -1


class FlowRows:
    """One flow in a program. `taken`: column of each way; `served`: of each task on the workers of a count.

    `partial`: blocks that need not be served in full, as their targets do not survive the loss; `shed`: audits then.
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
        self.shed = frozenset(n for n in every if lost is not None and table.blocks[n].is_audit)
        self.partial = every - kept - self.shed
        usd_per_h: Floats = np.array([way.usd_per_h if lost is None else 0.0 for way in table.ways])
        is_open: Floats = np.array([self._is_open(way) for way in table.ways])
        self.taken: Indices = program.add_columns(usd_per_h, is_open)
        least: Floats = np.array([0.0 if n in self.partial | self.shed else 1.0 for n in range(len(table.blocks))])
        everything = program.add_rows(least, np.ones(len(table.blocks)), len(table.blocks))
        program.fill(everything[[way.block for way in table.ways]], self.taken, 1.0)
        program.fill(everything[list(left_out)], list(left_out.values()), 1.0)
        self.served: dict[tuple[Task, str, Held], int] = {}
        self.streams: dict[tuple[Task, Count], int] = {}  # number of whole streams, by column
        self.allotted: dict[Count, list[tuple[Allotment, int]]] = {}  # to how many workers, by column
        for (pool, held), count in workers.counts.items():
            self._capacity(pool, held, count)
        self._meet()
        self._links()
        self._keep_streams_whole()
        for mean in (mean for mean in means if mean.block not in self.partial):
            row = program.row(mean.least, math.inf)
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
        if self.lost is None:
            return 1.0
        return 0.0 if way.block in self.shed or way.is_closed_by(self.lost.kind, self.lost.of) else 1.0

    def _capacity(self, pool: str, held: Held, count: int) -> None:
        program, stored, most = self.program, self.workers.stored, self.table.most
        room = self.workers.rooms.get((pool, held), NO_ROOM)
        own = [one for one in held if (one, pool) in self.workers.busy]
        whole = {task[:2] for task in room.size}
        tasks = [*room.size, *((*one, most[one[0]]) for one in own if one not in whole)]
        columns = program.add_columns(np.zeros(len(tasks)), 1.0).tolist()
        load = program.row(-math.inf, 0.0)
        present = program.add_rows(-math.inf, 0.0, len(tasks)).tolist()
        full = program.row(-math.inf, 0.0)
        workers = {count: -1.0}
        if self.lost == Lost(LossKind.WORKER, (pool,), held):
            most_workers = float(self.table.network.problem.pool_by_name[pool].count)
            workers[self._has_any(count, most_workers)] = 1.0
        for row in (load, full, *present):
            program.fill([row] * len(workers), [*workers], [*workers.values()])
        for (name, variant, rate), column, row in zip(tasks, columns, present, strict=True):
            instance = name, variant
            self.served[(*instance, rate), pool, held] = column
            busy = self.workers.busy[instance, pool] * rate / most[name]
            kept = stored.get((instance, pool), 0.0) * max(1.0, busy)
            program.fill([load, row, full], [column] * 3, [busy, 1.0, kept])
        if room.size:
            self._allot((pool, held), room, workers)

    def _allot(self, of: Count, room: Room, workers: Mapping[int, float]) -> None:
        """Rows: the streams fit on whole workers. `workers`: the coefficients of less than their number."""
        program = self.program
        counts = [float(self.table.streams[name]) for name, _, _ in room.size]
        whole = program.add_columns(np.zeros(len(counts)), counts, integer=True)
        equal = program.add_rows(0.0, 0.0, len(counts))
        program.fill(equal, whole, -1.0)
        program.fill(equal, [self.served[(task, *of)] for task in room.size], counts)
        self.streams |= {(task, of): column for task, column in zip(room.size, whole.tolist(), strict=True)}
        rows = program.add_rows(-math.inf, 0.0, len(counts)).tolist()
        program.fill(rows, whole, 1.0)
        if len(room.allotments) > 1:
            times = program.add_columns(np.zeros(len(room.allotments)), integer=True).tolist()
            self.allotted[of] = [*zip(room.allotments, times, strict=True)]
            for allotment, column in self.allotted[of]:
                program.fill(rows, [column] * len(rows), [-float(allotment[task]) for task in room.size])
            together = program.row(-math.inf, 0.0, times)
            program.fill([together] * len(workers), [*workers], [*workers.values()])
            return
        for task, row in zip(room.size, rows, strict=True):
            program.fill([row] * len(workers), [*workers], [room.most[task] * less for less in workers.values()])
        if not room.allotments and not self.workers.relaxed:  # room for any stream at the least busy worker
            largest = max(room.size.values())
            free = [(1.0 - largest) * less for less in workers.values()]
            sizes = [*room.size.values()]
            program.row(-math.inf, largest, [*workers, *whole], [*free, *sizes])

    def _keep_streams_whole(self) -> None:
        """Rows: the ways that are alike for streams have a whole number of them (`groups`: count, ways)."""
        self.groups: list[tuple[int, list[int]]] = []
        for number, block in enumerate(self.table.blocks):
            for streams in block.streams:
                at = [index for index, name in enumerate(block.names) if name in streams.operators]
                groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
                for index, way in enumerate(self.table.ways):
                    if way.block == number:
                        key = tuple((way.variants[own], way.tiers[own]) for own in at)
                        groups.setdefault(key, []).append(index)
                whole = self.program.add_columns(np.zeros(len(groups)), float(streams.count), integer=True)
                rows = self.program.add_rows(0.0, 0.0, len(groups))
                self.program.fill(rows, whole, -1.0)
                for row, ways in zip(rows.tolist(), groups.values(), strict=True):
                    self.program.fill([row] * len(ways), self.taken[ways], float(streams.count))
                self.groups += [(streams.count, ways) for ways in groups.values()]

    def shares(self, values: Floats) -> Floats:
        """The share of each way in a solution, without its rounding errors where streams are whole."""
        found: Floats = values[self.taken]
        for _ in range(3):  # ways are in several groups where a block has several kinds of streams
            for count, ways in self.groups:
                if (total := count * float(found[ways].sum())) > 0:
                    found[ways] *= round(total) / total
        return found

    def _has_any(self, count: int, most: float) -> int:
        """A column that is 1 where a count, of up to `most`, is not 0."""
        used = self.program.column(0.0, 1.0, integer=True)
        self.program.row(-math.inf, 0.0, [count, used], [1.0, -most])
        return used

    def _meet(self) -> None:
        """Rows: what the pools of a tier serve of an instance is what the ways bring there."""
        network = self.table.network
        rows: dict[tuple[Task, str], int] = {}

        def row(task: Task, tier: str) -> int:
            if (task, tier) not in rows:
                rows[task, tier] = self.program.row(0.0, 0.0)
            return rows[task, tier]

        for (task, pool, _), column in self.served.items():
            self.program.fill([row(task, network.tier_of[pool])], [column], 1.0)
        at, columns, values = [], [], []
        for way, column in zip(self.table.ways, self.taken.tolist(), strict=True):
            for (name, variant), tier, rate in self.table.placed(way):
                is_whole = name in self.table.streams and not self.workers.relaxed
                most = rate if is_whole else self.table.most[name]
                at.append(row((name, variant, most), tier))
                columns.append(column)
                values.append(-1.0 if is_whole else -max(rate / most, PRESENT))
        self.program.fill(at, columns, values)

    def _links(self) -> None:
        for link, bandwidth in self.table.network.bandwidth.items():
            used = [
                (column, way.sent[link] / bandwidth)
                for way, column in zip(self.table.ways, self.taken.tolist(), strict=True)
                if way.sent.get(link)
            ]
            if used:
                self.program.row(-math.inf, 1.0, *zip(*used, strict=True))
