"""The joint MILP over worker classes: selection, placement, flows, integer worker counts and memory in one program.

Beside the columns of the joint LP (joint_lp.py), for choice c = (operator, variant), worker class k and group g:
    y[c, k, g]   fraction of requests whose operator runs c on workers of group g; 0 to 1
    n[k, g]      workers of group g; integer
    h[c, k, g]   1 if the workers of group g hold the model of c; its sum over an operator's variants is binary
Workers of a group hold the same models. An exclusive class has one group per operator, a shared class whose models all
fit together a single group. A shared class with less memory has one group per worker or, if it has more workers than
operators, one group per operator (the group's leader, which its workers always hold). One group per operator suffices:
the fractions y at a vertex of the transportation problem between operators and groups form a forest. A group that is a
leaf can be merged with another group of its operator; then each tree has fewer groups than operators, so each group can
be led by a different operator. The program is therefore exact, except for accuracy tables in which a better input
lowers the accuracy (accuracy_rows.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.demand.memory import NONE, Memory, together
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.worker_classes import LEAST_BYTES
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats
from jellybean_solver.outcome import Selection

ONE = -1  # number of the group in a class that has a single group


@dataclass(frozen=True, slots=True)
class _Group:
    """Workers of a class that hold the same models.

    `kind`: index of the class. `leader`: index of the operator that they always hold; None if there is none.
    """

    kind: int
    number: int
    count: int  # column n
    load: int  # row: the workers kept busy
    leader: int | None = None


class ExactMilp:
    """The exact MILP; extends the program of `joint_lp`, which must have no other user.

    It may be solved several times, with more selections excluded. With `packed` False, the memory of a shared class is
    limited only in total, not worker by worker: a smaller program, and a relaxation.
    """

    def __init__(self, joint_lp: JointLp, *, packed: bool = True) -> None:
        self.joint_lp, self.program, self.kinds, self.packed = joint_lp, joint_lp.program, joint_lp.kinds, packed
        self.served: dict[tuple[int, int, int], int] = {}  # choice, class, group -> column y
        self.groups: dict[tuple[int, int], _Group] = {}  # class, group
        self.open = joint_lp.open
        for kind in range(len(self.kinds.kinds)):
            choices = np.flatnonzero(self.open[:, kind])
            if len(choices):
                self._add_class(kind, choices.tolist())

    def exclude(self, selection: Selection) -> None:
        """Add a row that excludes this selection (a variant for each operator) and no other."""
        columns = [
            column
            for (name, variant), column in zip(self.kinds.choices, self.joint_lp.chosen.tolist(), strict=True)
            if selection[name] == variant
        ]
        self.program.row(-math.inf, len(selection) - 1.0, columns)

    def only_counts(self, values: Floats) -> Mapping[tuple[int, int], int] | None:
        """The worker counts by group of a solution, if they leave a single place for each operator; else None.

        A place is one worker, or several of an exclusive pool, which get equal shares: not if its workers cost nothing,
        as the solution may have too many then, nor if its class has other pools, which may get other shares. A group
        counts for an operator if it may serve its chosen variant, even if it does not in this solution.
        """
        counts = {key: round(values[group.count]) for key, group in self.groups.items()}
        places: dict[int, list[tuple[int, int]]] = {
            choice: [] for choice in np.flatnonzero(values[self.joint_lp.chosen] > 0.5).tolist()
        }
        for choice, kind, number in self.served:
            if choice in places and counts[kind, number]:
                places[choice].append((kind, number))

        alone = np.array([len(kind.pools) == 1 for kind in self.kinds.kinds])
        may_be_several = self.kinds.exclusive & alone & (self.kinds.price > 0.0)

        def is_single(found: Sequence[tuple[int, int]]) -> bool:
            return len(found) == 1 and (counts[found[0]] == 1 or bool(may_be_several[found[0][0]]))

        return counts if all(map(is_single, places.values())) else None

    def exclude_counts(self, values: Floats, counts: Mapping[tuple[int, int], int]) -> None:
        """Add a row that excludes a selection with at most these worker counts (`only_counts`), and nothing else.

        A plan is left if it has another variant, more workers in a group, or a worker in a group without any.
        """
        chosen = np.flatnonzero(values[self.joint_lp.chosen] > 0.5).tolist()
        row = self.program.row(1.0 - len(chosen), math.inf, self.joint_lp.chosen[chosen], -1.0)
        able = dict.fromkeys((kind, number) for choice, kind, number in self.served if choice in chosen)
        for key in able:
            column = self.groups[key].count
            if counts[key]:
                more = self.program.column(0.0, 1.0, integer=True)
                self.program.row(0.0, math.inf, [column, more], [1.0, -(counts[key] + 1.0)])
                column = more
            self.program.fill([row], [column], 1.0)

    def add_migration(self, running: RunningPlan) -> None:
        """Add a lower bound on the cost of migration from a running plan to the objective.

        Model replicas beyond those that the pools of a class hold today must be loaded.
        """
        served: dict[tuple[int, int], list[int]] = {}
        for (choice, kind, _), column in self.served.items():
            served.setdefault((choice, kind), []).append(column)
        for choice, kind in np.argwhere(self.open).tolist():
            name, variant = self.kinds.choices[choice]
            pools = [pool.name for pool in self.kinds.kinds[kind].pools]
            price = min(running.load_usd_per_h(name, variant, pool) for pool in pools)
            if price > 0:
                loads = self.program.column(price)
                rows = self.program.add_rows(
                    -math.inf, float(sum(running.holding(name, variant, pool) for pool in pools)), 2
                ).tolist()
                self.program.fill(rows, [loads, loads], -1.0)
                columns = served.get((choice, kind), [])
                for row, replicas in zip(rows, (1.0, float(self.kinds.workers[choice, kind])), strict=True):
                    self.program.fill([row] * len(columns), columns, replicas)

    def maximise_rates(self, budget: float) -> None:
        """Replace the objective: maximise the factor (at most 1) on all rates, within a budget in USD per hour."""
        self.program.limit_cost(budget)
        self.program.cost = [np.zeros_like(costs) for costs in self.program.cost]
        scale, total = self.program.column(-1.0, 1.0), self.joint_lp.flows.total
        self.program.change_rows(total, 0.0, 0.0)
        self.program.fill(total, [scale] * len(total), -1.0)
        self.program.change_rows(self.joint_lp.total.tolist(), -math.inf, 0.0)  # y <= z

    def staff(self, values: Floats) -> Staff:
        """The selection and integer workers of a solution; `values`: of all columns of the program."""
        kinds, names = self.kinds, self.joint_lp.network.names
        made = np.flatnonzero(values[self.joint_lp.chosen] > 0.5)
        shape = len(names), len(kinds.kinds)
        served, workers = np.zeros(shape), np.zeros(shape, np.int64)
        by_group: dict[tuple[int, int], dict[str, float]] = {}
        chosen = set(made.tolist())
        for (choice, kind, number), column in self.served.items():
            share = float(values[column])
            if choice in chosen and share > FEASIBILITY_TOLERANCE:
                operator = int(kinds.owner[choice])
                served[operator, kind] += share
                if kinds.exclusive[kind]:
                    workers[operator, kind] = round(values[self.groups[kind, number].count])
                elif number != ONE:
                    by_group.setdefault((kind, number), {})[names[operator]] = share
        known: dict[int, list[tuple[int, Mapping[str, float]]]] = {}
        for (kind, number), shares in by_group.items():
            known.setdefault(kind, []).append((round(values[self.groups[kind, number].count]), shares))
        return Staff(
            self.joint_lp,
            made[np.argsort(kinds.owner[made])],
            values,
            served,
            workers,
            known={kind: tuple(own) for kind, own in known.items()},
        )

    # -- columns and rows

    def _add_class(self, kind: int, choices: Sequence[int]) -> None:
        """Add the groups of a class with their columns n, and the columns y of the choices that they may serve."""
        operators = sorted({int(self.kinds.owner[choice]) for choice in choices})
        if self.kinds.exclusive[kind]:
            for operator in operators:
                self._add_group(kind, operator, [c for c in choices if self.kinds.owner[c] == operator])
        elif not self.packed or self._fit_together(kind, choices):
            self._add_group(kind, ONE, choices)
        elif self.kinds.kinds[kind].count < len(operators):
            counts = []
            for number in range(self.kinds.kinds[kind].count):
                group = self._add_group(kind, number, choices, most=1.0)
                self._hold(group, choices, operators)
                counts.append(group.count)
            rows = self.program.add_rows(-math.inf, 0.0, len(counts) - 1)  # equal workers: used ones first
            self.program.fill(rows, counts[1:], 1.0)
            self.program.fill(rows, counts[:-1], -1.0)
        else:
            for operator in operators:
                self._hold(self._add_group(kind, operator, choices, leader=operator), choices, operators)

    def _fit_together(self, kind: int, choices: Sequence[int]) -> bool:
        largest: dict[int, Memory] = {}
        for choice in choices:
            operator = int(self.kinds.owner[choice])
            pairs = zip(largest.get(operator, NONE), self.kinds.memory(choice, kind), strict=True)
            largest[operator] = Memory(*(max(pair) for pair in pairs))
        return together(largest.values()).fits(self.kinds.kinds[kind].limits)

    def _add_group(
        self, kind: int, number: int, choices: Sequence[int], *, most: float = math.inf, leader: int | None = None
    ) -> _Group:
        """Add a group: its workers suffice for what it serves, are at least one if it serves anything, and are paid.

        `most`: limit on its workers.
        """
        kinds, program = self.kinds, self.program
        count = program.column(0.0, min(most, float(kinds.counts[kind])), integer=True)
        load = program.row(-math.inf, 0.0)
        group = self.groups[kind, number] = _Group(kind, number, count, load, leader)
        program.fill([load, int(self.joint_lp.held[kind])], [count, count], [-1.0, 1.0])
        present: dict[int, int] = {}  # operator -> row
        for choice in choices:
            column = self._add_served(choice, kind, number)
            program.fill([load], [column], float(kinds.workers[choice, kind]))
            operator = int(kinds.owner[choice])
            if operator not in present:
                present[operator] = program.row(-math.inf, 0.0, [count], -1.0)
            program.fill([present[operator]], [column], 1.0)
        return group

    def _add_served(self, choice: int, kind: int, number: int) -> int:
        column = self.program.column(0.0, 1.0)
        self.served[choice, kind, number] = column
        rows, values = self.joint_lp.entries(choice, kind)
        self.program.fill(rows, [column] * len(rows), values)
        return column

    def _hold(self, group: _Group, choices: Sequence[int], operators: Sequence[int]) -> None:
        """Add columns h of a group: the models that it holds fit into a worker's memory; it serves no others."""
        kinds, program, kind = self.kinds, self.program, group.kind
        limits = [math.inf if limit is None else max(limit, LEAST_BYTES) for limit in kinds.kinds[kind].limits]
        held = dict(
            zip(operators, program.add_columns(np.zeros(len(operators)), 1.0, integer=True).tolist(), strict=True)
        )
        active = group.count if group.leader is None else held[group.leader]
        full, filled = (program.add_rows(-math.inf, 0.0, len(limits)).tolist() for _ in range(2))  # one per memory
        for rows, column in ((full, active), (filled, group.count)):
            program.fill(rows, [column] * len(limits), -1.0)
        sums = dict(zip(operators, program.add_rows(0.0, 0.0, len(operators)).tolist(), strict=True))
        for operator, column in held.items():
            program.fill([sums[operator]], [column], -1.0)
            ends = {active, group.count} - {column}
            for end in ends:  # h <= n: no models without workers
                program.row(-math.inf, 0.0, [column, end], [1.0, -1.0])
        for choice in choices:
            needed = [size / limit for size, limit in zip(kinds.memory(choice, kind), limits, strict=True)]
            model = program.column(0.0, 1.0)
            served = self.served[choice, kind, group.number]
            program.fill([sums[int(kinds.owner[choice])], *full], [model] * (1 + len(full)), [1.0, *needed])
            # Valid cut, which tightens the relaxation: each worker that an operator keeps busy holds its whole model.
            busy = max(1.0, float(kinds.workers[choice, kind]))
            program.fill(filled, [served] * len(filled), [share * busy for share in needed])
            below, made = (int(row) for row in program.add_rows(-math.inf, 0.0, 2))
            program.fill([below, below], [served, model], [1.0, -1.0])
            program.fill([made, made], [model, int(self.joint_lp.chosen[choice])], [1.0, -1.0])
