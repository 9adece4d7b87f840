"""The program that mixes selections: shares of requests by way, and whole workers by operator and variant.

A flow (flow_rows.py) says how the requests spread over ways and workers. There is one with everything there, and one
after each loss that is asked for, all on the same workers: column n[p, h], integer, workers of pool p that hold the
instances h. Rows of the program itself: sum_h n[p, h] <= count; where a block has a single selection z[s], binary: in
each flow the ways of s have the share z[s]; the cost within the budget. The cost is that of the workers and of the
first flow. A block's soft mean accuracy is a column for what all flows may lack of it, in percent points, with the
penalty as its cost; after losses they lack no more than with everything there. A block that may be left out has a
binary column for that, with its worth as its cost. With a running plan the models that workers must load are priced,
too (load_rows.py). What is no cost of workers or traffic is outside the budget.

Batch sizes and utilisations are given (modes.py). An exclusive worker holds one instance. A worker runs at most one
variant of an operator, so that the worker tells the variant. For shared workers `held` None leaves the sets h out: all
instances of a pool share one count, a relaxation that is smaller; with `held`, the sets that it lists. The largest sets
do, as holding more costs nothing, unless loads are priced: then all sets are needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Program, ProgramSolution, SolveLimits
from jellybean_solver.mixture.flow_rows import Count, FlowRows, Mean, Workers
from jellybean_solver.mixture.load_rows import LoadRows
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.mixture.seats import Goal, Held, HeldSets, Lost, Mixture, Seats
from jellybean_solver.mixture.ways import Instance, WayTable
from jellybean_solver.mixture.whole_streams import NO_ROOM, Room, Task
from jellybean_solver.model.problem import Pool, Sharing
from jellybean_solver.outcome import Clock

NODES_AGAIN = 500  # of the branch and bound that looks for a point where presolve says that there is none
HeldByPool = Mapping[str, HeldSets]  # shared pools only


class MixProgram:
    """The program of some ways for a goal, with a flow after each of `losses`."""

    def __init__(
        self,
        table: WayTable,
        goal: Goal,
        held: HeldByPool | None = None,
        modes: Modes = NO_LIMITS,
        losses: Sequence[Lost] = (),
        running: RunningPlan | None = None,
        clock: Clock = Clock(),
    ) -> None:
        """OutOfTimeError if the `clock` ends while the flows are written down."""
        self.network, self.table, self.goal, self.modes = table.network, table, goal, modes
        self.program = Program()
        self.batch: dict[tuple[Instance, str], int] = {}
        busy = {key: workers * self._factor(*key) for key, workers in table.busy.items()}
        counts: dict[Count, int] = {}
        stored: dict[tuple[Instance, str], float] = {}
        for pool in self.network.pools:
            instances = [instance for instance, own in busy if own == pool.name]
            sets = None if held is None else held.get(pool.name)
            counts |= self._counts(pool, instances, None if sets is None else sets.sets)
            limit = self.network.memory_limits[pool.name].scarcer
            if held is None and pool.sharing is Sharing.SHARED and limit:  # each busy worker holds the whole model
                stored |= {(one, pool.name): self._stored(one, pool.name) / limit for one in instances}
        is_relaxed = held is None
        rooms = self._rooms(counts, busy, relaxed=is_relaxed)
        self.workers = workers = Workers(counts, busy, stored, rooms, is_relaxed)
        self.means, self.left_out = means, left_out = self._means(), self._left_out()
        self.flow = FlowRows(self.program, table, workers, means, left_out, None)
        self.after = dict[Lost, FlowRows]()
        for lost in losses:
            if clock.left() == 0.0:
                raise OutOfTimeError("time ended while the program was written down; allow more time")
            self.after[lost] = FlowRows(self.program, table, workers, means, left_out, lost)
        soft = [mean for mean in means if mean.lacking >= 0]
        for mean in soft:
            if any(mean.block not in flow.partial for flow in self.after.values()):
                self._limit_shortfall_after_losses(mean)
        loads = () if running is None else self._loads(running, workers, held or {})
        self._goal([*loads, *(mean.lacking for mean in soft), *dict.fromkeys(left_out.values())], left_out)
        self.selected = [column for n, block in enumerate(table.blocks) if block.single for column in self._single(n)]

    @property
    def is_restricted(self) -> bool:
        """True if some plans are left out, so that its bound is none on all: streams are taken to be larger."""
        workers = self.flow.workers
        return not workers.relaxed and any(not one.allotments for one in workers.rooms.values())

    def solve(self, limits: SolveLimits) -> Mixture | None:
        """The best mixture found; None if none was found, or proven that there is none (`proven`)."""
        answer = self._answer(limits)
        self.proven = answer.values is None and answer.bound == math.inf
        self.bound, self.value = answer.bound, answer.value
        if answer.values is None:
            return None
        self.values = answer.values
        after = {lost: self._mixture(flow, answer.values) for lost, flow in self.after.items()}
        return replace(self._mixture(self.flow, answer.values), after=after)

    def with_most_served(self, mixture: Mixture, clock: Clock = Clock()) -> Mixture:
        """The solution with flows that serve as much as its workers can of what does not survive a loss.

        That costs nothing, so it is decided after the optimum, with its workers and selections. A reward in the
        objective would be part of every bound, and would have to be too small to buy a worker, but large enough to
        count. At the `clock` flows stay as they are.
        """
        partial = {lost: flow for lost, flow in self.after.items() if flow.partial}
        if not partial or clock.left() == 0.0:
            return mixture
        cost = np.zeros(self.program.columns)
        for flow in partial.values():
            cost[flow.taken] -= [float(way.block in flow.partial) for way in self.table.ways]
        low, high = np.concatenate(self.program.low), np.concatenate(self.program.high)
        whole = [*self.workers.counts.values(), *self.left_out.values(), *self.selected]
        low[whole] = high[whole] = np.round(self.values[whole])
        lacking = [mean.lacking for mean in self.means if mean.lacking >= 0]
        low[lacking] = high[lacking] = np.maximum(0.0, self.values[lacking])
        served = replace(self.program, cost=[cost], low=[low], high=[high])
        values = served.solve(SolveLimits(time_limit_s=clock.left())).values
        if values is None:
            return mixture
        more = {lost: self._mixture(flow, values) for lost, flow in partial.items()}
        return replace(mixture, after={**mixture.after, **more})

    def _answer(self, limits: SolveLimits) -> ProgramSolution:
        """The program's answer; that there is none is tried once more without presolve.

        HiGHS' presolve calls some feasible programs infeasible (ERGO-Code/HiGHS issues 2432, 3090).
        """
        answer = self.program.solve(limits)
        if answer.values is None and answer.bound == math.inf:
            again = self.program.solve(replace(limits, presolve=False, most_nodes=NODES_AGAIN))
            return answer if again.values is None else again
        return answer

    def _mixture(self, flow: FlowRows, values: Floats) -> Mixture:
        shares = flow.shares(values).tolist()
        ways = tuple(
            (way, share) for way, share in zip(flow.table.ways, shares, strict=True) if share > FEASIBILITY_TOLERANCE
        )
        by_group: dict[Count, dict[Task, float]] = {}
        for (task, pool, held), column in flow.served.items():
            if values[column] > FEASIBILITY_TOLERANCE:
                by_group.setdefault((pool, held), {})[task] = float(values[column])
        seats = tuple(self._seats(flow, values, of, shares) for of, shares in by_group.items())
        return Mixture(ways, seats, self.value, self.bound)

    def _seats(self, flow: FlowRows, values: Floats, of: Count, shares: Mapping[Task, float]) -> Seats:
        served: dict[Instance, float] = {}
        for (name, variant, rate), share in shares.items():
            served[name, variant] = served.get((name, variant), 0.0) + share * rate
        batches = {instance: self.batch[instance, of[0]] for instance in served}
        streams = {task: round(values[flow.streams[task, of]]) for task in shares if (task, of) in flow.streams}
        room, count = flow.workers.rooms.get(of, NO_ROOM), round(float(values[flow.workers.counts[of]]))
        allotted = [(one, round(float(values[column]))) for one, column in flow.allotted.get(of, ())]
        used = tuple((one, times) for one, times in allotted if times > 0)
        return Seats(*of, served, count, batches, streams, room, used)

    def _rooms(
        self, counts: Iterable[Count], busy: Mapping[tuple[Instance, str], float], *, relaxed: bool
    ) -> Mapping[Count, Room]:
        """The rooms for whole streams; in a relaxation without those of unlike rates."""
        table, found = self.table, dict[Count, Room]()
        for pool, held in counts:
            size = {
                (*one, rate): busy[one, pool] * rate / table.most[one[0]] / table.streams[one[0]]
                for one in held
                if one[0] in table.streams and (one, pool) in busy
                for rate in sorted(table.rates[one[0]])
                if not (relaxed and table.has_streams_of_unlike_rates(one[0]))
            }
            if size:
                found[pool, held] = Room.of(size, table.streams, listed=not relaxed)
        return found

    def _means(self) -> list[Mean]:
        """The mean accuracies that are targets, with a column for what each soft one may lack."""
        found = []
        for number, block in enumerate(self.table.blocks):
            least = block.slo.mean_accuracy
            if number in self.goal.most_accurate and (block.is_soft or not self.goal.keeps_mean):
                continue
            if least is not None:
                lacking = -1
                if block.is_soft:
                    lacking = self.program.column(block.slo.penalty_usd_per_h or 0.0, 100.0)
                found.append(Mean(number, least, lacking))
        return found

    def _left_out(self) -> dict[int, int]:
        """Block -> a binary column that leaves it out at its worth, of those that may be; an audit shares one."""
        blocks = self.table.blocks
        worths = {one.workflow: one.worth_usd_per_h for one in blocks if one.worth_usd_per_h is not None}
        columns = self.program.add_columns([*worths.values()], 1.0, integer=True)
        of_workflow = dict(zip(worths, columns.tolist(), strict=True))
        return {n: of_workflow[one.workflow] for n, one in enumerate(blocks) if one.workflow in of_workflow}

    def _factor(self, instance: Instance, pool: str) -> float:
        """Workers in the modes relative to those without limits."""
        name, variant = instance
        times = self.network.problem.times(name, self.network.problem.operator_by_name[name].variant(variant), pool)
        self.batch[instance, pool], factor = self.modes.of(name, times)
        return factor

    def _counts(self, pool: Pool, instances: Sequence[Instance], sets: Sequence[Held] | None) -> Mapping[Count, int]:
        """The columns of the workers of a pool, within their number."""
        if not instances:
            return {}
        if pool.sharing is Sharing.EXCLUSIVE:
            groups: Sequence[Held] = [(instance,) for instance in instances]
        else:
            groups = [tuple(instances)] if sets is None else sets
        price = self.network.usd_per_h[pool.name]
        counts = self.program.add_columns(np.full(len(groups), price), float(pool.count), integer=True)
        together = self.program.add_rows(-math.inf, float(pool.count), 1)
        self.program.fill(np.repeat(together, len(groups)), counts, 1.0)
        return {(pool.name, held): count for held, count in zip(groups, counts.tolist(), strict=True)}

    def _stored(self, instance: Instance, pool: str) -> float:
        name, variant = instance
        return self.network.demand({name: variant}).memory[name][pool].scarcer

    def _single(self, block: int) -> Sequence[int]:
        """Rows: in each flow all requests of a block take ways of one selection, with a binary column for each."""
        by_selection: dict[tuple[str, ...], list[int]] = {}
        for number, way in enumerate(self.table.ways):
            if way.block == block:
                by_selection.setdefault(way.variants, []).append(number)
        if len(by_selection) == 1:
            return ()
        made = self.program.add_columns(np.zeros(len(by_selection)), 1.0, integer=True)
        for flow in (self.flow, *self.after.values()):
            least = -math.inf if block in flow.partial else 0.0
            rows = self.program.add_rows(least, 0.0, len(by_selection)).tolist()
            self.program.fill(rows, made, -1.0)
            for row, numbers in zip(rows, by_selection.values(), strict=True):
                self.program.fill([row] * len(numbers), flow.taken[numbers], 1.0)
        columns: list[int] = made.tolist()
        return columns

    def _limit_shortfall_after_losses(self, mean: Mean) -> None:
        """Rows: if anything is lacking of the mean accuracy, the first flow lacks as much.

        Else a plan could pay the penalty for a loss only, whose requests would get less than its usual accuracy.
        """
        best = max((way.accuracy for way in self.table.ways if way.block == mean.block), default=0.0)
        most = max(0.0, best - mean.least)
        lacks = self.program.column(0.0, 1.0, integer=True)
        self.program.row(-math.inf, 0.0, [mean.lacking, lacks], [1.0, -100.0])
        as_much = self.program.row(-math.inf, mean.least + most, [mean.lacking, lacks], [1.0, most])
        self.flow.fill_accuracy(as_much, mean.block)

    def _loads(self, running: RunningPlan, workers: Workers, held: HeldByPool) -> Sequence[int]:
        """The columns of what loading models costs."""
        rows = LoadRows(self.program, running, workers)
        exclusive = [pool.name for pool in self.network.pools if pool.sharing is Sharing.EXCLUSIVE]
        rows.add(
            (self.flow, *self.after.values()), [*exclusive, *(name for name, sets in held.items() if sets.are_all)]
        )
        return rows.columns

    def _goal(self, unlimited: Sequence[int], left_out: Mapping[int, int]) -> None:
        """The objective and the budget. `unlimited`: columns of costs that the budget does not limit."""
        self.program.limit_cost(self.goal.budget, unlimited)
        for name, most in self.goal.most.items():
            problem = self.network.problem
            each = {one.name: one.uses.get(name, 0.0) * problem.sites_of(one.tier) for one in problem.pools}
            columns = [*self.workers.counts.values(), *self.flow.taken.tolist()]
            uses = [each[pool] for pool, _ in self.workers.counts]
            uses += [way.uses.get(name, 0.0) for way in self.table.ways]
            row = self.program.add_rows(-math.inf, most, 1)
            self.program.fill(np.repeat(row, len(columns)), columns, uses)
        maximised = self.goal.most_accurate
        if not maximised:
            return
        costs = self.goal.points_per_usd * np.concatenate(self.program.cost)
        lacks = [100.0 - way.accuracy if way.block in maximised else 0.0 for way in self.table.ways]
        costs[self.flow.taken] += np.array(lacks) / len(maximised)
        costs[[column for block, column in left_out.items() if block in maximised]] += 100.0 / len(maximised)
        self.program.cost = [costs]
