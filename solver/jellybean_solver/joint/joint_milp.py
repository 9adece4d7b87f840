"""Selection and assignment in one mixed-integer program, for problems with too many selections to walk through.

Columns:
    z[o, v]      operator o is played by variant v; binary, one per operator
    y[o, v, p]   fraction of requests whose operator o runs variant v in pool p
    f[b, a]      fraction of requests whose operators of bag b sit in tiers a (tree_decomposition.py)
    g[e, v, t]   fraction of requests whose edge e carries v's messages between the tiers t
    n[p]         workers of a shared pool; n[o, p] of an exclusive one; integer
Rows:
    sum_v z[o, v] = 1; sum_p y[o, v, p] = z[o, v]; sum_t g[e, v, t] = z[o, v];
    sum_{v, p in t} y[o, v, p] = sum_{a: a[o] = t} f[b, a] = ...; sum_v g[e, v, t] = sum_{a on t} f[b, a];
    sum_{o, v} workers[o, v, p] y[o, v, p] <= n[p]; y <= n where one worker could do all of the operator's work;
    traffic within bandwidth; accuracy (accuracy_rows.py).
Which models fit together on a worker is left out, so its bound holds for the problem and its point is a proposal: the
selection and the (operator, pool) pairs that it uses are then assigned exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.demand.demand import EdgeKey, Network, Tiers
from jellybean_solver.joint.accuracy_rows import add_accuracy
from jellybean_solver.joint.deadline_rows import Mode, Timed, add_deadline, modes, visits_per_request
from jellybean_solver.joint.flow_rows import add_flows
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import Floats, Indices, Program, ProgramSolution
from jellybean_solver.model.problem import Sharing

USED = 1e-7  # a smaller fraction is rounding


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the joint program says. `bound`: USD per hour that no plan falls below (inf: there is none).

    `selection` is None when no point was found in time; `pairs` are the (operator, pool) pairs that the point uses.
    """

    bound: float
    value: float = math.inf
    selection: Mapping[str, str] | None = None
    pairs: frozenset[tuple[str, str]] = frozenset()
    flows: frozenset[tuple[EdgeKey, Tiers]] = frozenset()  # which edges' data go between which tiers


def propose(
    network: Network,
    target: float | None,
    *,
    fixed: Mapping[str, str] | None = None,
    excluded: Sequence[Mapping[str, str]] = (),
    budget: float = math.inf,
    deadline_s: float | None = None,
    gap: float = 0.0,
    time_limit_s: float | None = None,
    running: RunningPlan | None = None,
) -> Proposal:
    """Solve the joint program to a relative gap; `fixed`: operators whose variant is given; `excluded`: selections.

    `deadline_s`: for a request on which nothing waits.
    `budget` is on the running cost; with `running` the objective is that and at least what going on from there costs.
    """
    model = _Joint(network, target, fixed or {}, deadline_s)
    if not model.possible:
        return Proposal(math.inf)
    for selection in excluded:
        model.exclude(selection)
    if math.isfinite(budget):
        model.program.limit_cost(budget)
    if running is not None:
        model.move(running)
    answer = model.program.solve(gap=gap, time_limit_s=time_limit_s)
    return model.proposal(answer)


@dataclass(frozen=True, slots=True)
class _Place:
    """Column block of one operator's variant: one column per pool."""

    modes: tuple[Mode, ...]
    columns: Indices


class _Joint:
    def __init__(
        self, network: Network, target: float | None, fixed: Mapping[str, str], deadline_s: float | None
    ) -> None:
        self.network, self.program, self.deadline_s = network, Program(), deadline_s
        self.visits = visits_per_request(network.problem)
        self.variants = {
            name: tuple(v for v in variants if fixed.get(name, v) == v) for name, variants in network.runnable.items()
        }
        self.least = network.demand({})
        self.demands = {
            (name, variant): network.demand({name: variant})
            for name in network.names
            for variant in self.variants[name]
        }
        self.chosen: dict[tuple[str, str], int] = {}
        self.places: dict[tuple[str, str], _Place] = {}
        self.messages: dict[tuple[EdgeKey, str], dict[Tiers, int]] = {}
        self.marginal: Mapping[tuple[str, str], Sequence[int]] = {}  # (operator, tier) -> columns f that sum to it
        self.possible = all(self.variants.values())
        if not self.possible:
            return
        self._operators()
        flows = add_flows(self.program, network, self.least)
        self.marginal = flows.marginal
        for key, between in flows.between.items():
            self._edge(key, between)
        self._meet()
        self._workers()
        self._links()
        if deadline_s is not None and not self._deadline(deadline_s):
            self.possible = False
            return
        self.possible = add_accuracy(self.program, network.problem.accuracy, self.chosen, target)

    def exclude(self, selection: Mapping[str, str]) -> None:
        """A row that this whole selection breaks, and no other."""
        columns = [self.chosen[choice] for choice in selection.items()]
        row = int(self.program.add_rows(-math.inf, len(columns) - 1.0, 1)[0])
        self.program.fill([row] * len(columns), columns, 1.0)

    def move(self, running: RunningPlan) -> None:
        """Columns for replicas beyond those which a pool holds: never more than its workers must load."""
        for (name, variant), place in self.places.items():
            for mode, column in zip(place.modes, place.columns.tolist(), strict=True):
                price = running.load_usd_per_h(name, variant, mode.pool)
                if price > 0:
                    loads = int(self.program.add_columns([price])[0])
                    held = float(running.holding(name, variant, mode.pool))
                    rows = self.program.add_rows(-math.inf, held, 2).tolist()
                    self.program.fill(rows, [column, column], [1.0, mode.workers])
                    self.program.fill(rows, [loads, loads], -1.0)

    def proposal(self, answer: ProgramSolution) -> Proposal:
        """The point in the problem's own words."""
        if answer.values is None:
            return Proposal(max(0.0, answer.bound))
        values = answer.values
        selection: dict[str, str] = {}
        for (name, variant), column in self.chosen.items():
            if values[column] > 0.5:
                selection[name] = variant
        pairs = frozenset(
            (name, mode.pool)
            for name, variant in selection.items()
            for mode, column in zip(self.places[name, variant].modes, self.places[name, variant].columns, strict=True)
            if values[column] > USED
        )
        return Proposal(max(0.0, answer.bound), answer.value, selection, pairs, self._used_flows(values))

    def _used_flows(self, values: Floats) -> frozenset[tuple[EdgeKey, Tiers]]:
        return frozenset(
            (key, tiers)
            for (key, _), flows in self.messages.items()
            for tiers, column in flows.items()
            if values[column] > USED
        )

    def _operators(self) -> None:
        for name in self.network.names:
            variants = self.variants[name]
            columns = self.program.add_columns(np.zeros(len(variants)), 1.0, integer=True)
            self.chosen |= {(name, variant): int(column) for variant, column in zip(variants, columns, strict=True)}
            one = self.program.add_rows(1.0, 1.0, 1)
            self.program.fill(np.repeat(one, len(columns)), columns, 1.0)
            for variant, column in zip(variants, columns, strict=True):
                ways = modes(self.network, name, variant, self.visits[name])
                served = self.program.add_columns(np.zeros(len(ways)), 1.0)
                self.places[name, variant] = _Place(ways, served)
                self._sum_is(served, int(column))

    def _deadline(self, deadline_s: float) -> bool:
        timed = [
            Timed(name, place.columns, [mode.job_s for mode in place.modes]) for (name, _), place in self.places.items()
        ]
        return add_deadline(self.program, self.network, deadline_s, timed, self.messages, self.marginal)

    def _sum_is(self, columns: Sequence[int] | Indices, total: int) -> None:
        row = int(self.program.add_rows(0.0, 0.0, 1)[0])
        self.program.fill([row] * len(columns), columns, 1.0)
        self.program.fill([row], [total], -1.0)

    def _edge(self, key: EdgeKey, flows: Mapping[Tiers, Sequence[int]]) -> None:
        """Columns g of an edge: by variant of its upstream, as sizes differ."""
        pairs = list(flows)
        for variant in self.variants[key[0]]:
            prices = self.demands[key[0], variant].traffic[key]
            columns = self.program.add_columns([prices[pair] for pair in pairs], 1.0)
            self._sum_is(columns, self.chosen[key[0], variant])
            self.messages[key, variant] = dict(zip(pairs, columns.tolist(), strict=True))
        for pair, sent in flows.items():
            row = int(self.program.add_rows(0.0, 0.0, 1)[0])
            own = [self.messages[key, variant][pair] for variant in self.variants[key[0]]]
            self.program.fill([row] * len(own), own, 1.0)
            self.program.fill([row] * len(sent), sent, -1.0)

    def _meet(self) -> None:
        """What runs in a tier's pools is what the routes bring there."""
        for name in self.network.names:
            rows: dict[str, int] = {}
            for variant in self.variants[name]:
                place = self.places[name, variant]
                for mode, column in zip(place.modes, place.columns, strict=True):
                    tier = self.network.tier_of[mode.pool]
                    if tier not in rows:
                        rows[tier] = int(self.program.add_rows(0.0, 0.0, 1)[0])
                        brought = self.marginal.get((name, tier), [])
                        self.program.fill([rows[tier]] * len(brought), brought, -1.0)
                    self.program.fill([rows[tier]], [column], 1.0)

    def _workers(self) -> None:
        users: dict[str, list[tuple[str, int, float]]] = {pool.name: [] for pool in self.network.pools}
        for (name, _), place in self.places.items():
            for mode, column in zip(place.modes, place.columns, strict=True):
                users[mode.pool].append((name, int(column), mode.workers))
        for pool in self.network.pools:
            if pool.sharing is Sharing.SHARED:
                groups = [users[pool.name]]
            else:
                by_name: dict[str, list[tuple[str, int, float]]] = {}
                for user in users[pool.name]:
                    by_name.setdefault(user[0], []).append(user)
                groups = list(by_name.values())
            counts = [self._counted(group, pool.count, self.network.usd_per_h[pool.name]) for group in groups if group]
            if len(counts) > 1:
                row = int(self.program.add_rows(-math.inf, pool.count, 1)[0])
                self.program.fill([row] * len(counts), counts, 1.0)

    def _counted(self, users: Sequence[tuple[str, int, float]], most: int, price: float) -> int:
        count = int(self.program.add_columns([price], float(most), integer=True)[0])
        row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
        self.program.fill([row] * len(users), [column for _, column, _ in users], [busy for *_, busy in users])
        self.program.fill([row], [count], -1.0)
        small: dict[str, list[int]] = {}
        for name, column, busy in users:
            if busy < 1.0:
                small.setdefault(name, []).append(column)
        for columns in small.values():
            row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
            self.program.fill([row] * len(columns), columns, 1.0)
            self.program.fill([row], [count], -1.0)
        return count

    def _links(self) -> None:
        for link, bandwidth in self.network.bandwidth.items():
            columns: list[int] = []
            values: list[float] = []
            for (key, variant), flows in self.messages.items():
                if link in flows:
                    columns.append(flows[link])
                    values.append(self.demands[key[0], variant].sent[key] / bandwidth)
            for name in self.network.names:
                for tier in self.network.problem.tiers:
                    sent = self.network.entry_bytes_per_s(name, tier).get(link, 0.0)
                    brought = self.marginal.get((name, tier), []) if sent > 0 else []
                    columns += brought
                    values += [sent / bandwidth] * len(brought)
            if columns:
                row = int(self.program.add_rows(-math.inf, 1.0, 1)[0])
                self.program.fill([row] * len(columns), columns, np.array(values))
