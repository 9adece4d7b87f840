"""The program of one workflow of a group whose variants are chosen, as one sparse matrix whose entries alone differ.

Columns:
    z[w]      fraction of requests that go way w (tiers of all operators)
    y[o, i]   fraction of requests whose operator o runs in own pool i
    r[o, t]   likewise on the common pool of tier t that is cheapest at the prices
    n[i]      workers of own pool i, whole
Rows:
    sum_{w through tier t at o} z[w] = sum_{i of tier t} y[o, i] + r[o, t];   sum_w z[w] = 1;
    sum_o time[o, i] y[o, i] <= n[i];   sum_w share[w, l] z[w] <= 1 per limited link l.
Memory needs no rows, as it is used only where a worker holds the models of all operators (`AlikeParts.roomy`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import highspy
import numpy as np

from jellybean_solver.decomposition.alike_parts import AlikeParts
from jellybean_solver.decomposition.local_plan import LocalPlan, Use
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.demand.memory import NONE, is_device_scarcer, memory_of
from jellybean_solver.demand.tree_decomposition import Bag, tree_decomposition
from jellybean_solver.fleet.packing.bin_packing import LITTLE, Load
from jellybean_solver.joint.flow_rows import BagTiers
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Indices, Program
from jellybean_solver.model.problem import Problem
from jellybean_solver.small.assignment import SPARE, Group


class AlikeProgram:
    """The program of a group. `gap`: relative, of each solve."""

    def __init__(self, split: Split, parts: AlikeParts, gap: float) -> None:
        self.split, self.parts = split, parts
        self._rented_tiers = np.unique(parts.rented_tier)
        self._at_rented = np.searchsorted(self._rented_tiers, parts.rented_tier)  # p -> index among these tiers
        self._scarcer = {pool.name: is_device_scarcer(pool, split.problem.operators) for pool in split.shared}
        self._program, self._fixed = self._structure()
        self._gap = gap
        self._model = self._program.empty_model(relaxed=True)
        self._model.setOptionValue("presolve", "off")  # it takes longer than the solve

    def plan(self, k: int, selection: Indices, prices: Prices, cutoff: float = math.inf) -> LocalPlan | None:
        """The cheapest plan of part k with these variants at these prices; None without one of less than `cutoff`."""
        parts = self.parts
        operators = np.arange(len(selection))
        time = parts.time[k, operators, selection]
        pool, rent = self._cheapest(k, selection, prices)
        traffic, share = self._ways(k, selection)
        surcharge = np.zeros(len(parts.links))
        for link, part, index in parts.common_links:
            if part == k:
                surcharge[link] = prices.links[index]
        values = self._solved(k, time, rent, traffic + share @ surcharge, share, cutoff)
        if values is None:
            return None
        ways, slots, rented = len(parts.ways), len(parts.slot_tier), len(self._rented_tiers)
        cuts = np.cumsum([ways, len(selection) * slots, len(selection) * rented])
        z, y, r, _ = np.split(np.where(values > FEASIBILITY_TOLERANCE, values, 0.0), cuts)
        y, r = y.reshape(len(selection), slots), r.reshape(len(selection), rented)
        groups = self._own(k, np.where(np.isfinite(time), time, 0.0) * y, y)
        usd = sum(parts.price[k, i] * len(own) for i, own in groups.items()) + float(traffic[z > 0] @ z[z > 0])
        return self._local_plan(k, selection, usd, z, r, pool, groups, share.T @ z)

    def _cheapest(self, k: int, selection: Indices, prices: Prices) -> tuple[Indices, Floats]:
        """Per operator and rented tier: the common pool p that is cheapest, and its cost; inf if none can run it."""
        parts = self.parts
        operators = np.arange(len(selection))
        time, memory = parts.rented_time[k, operators, selection], parts.rented_memory[k, operators, selection]
        runs = np.isfinite(time)
        cost = np.where(
            runs,
            prices.time[parts.rented] * np.where(runs, time, 0.0) + prices.memory[parts.rented] * memory,
            math.inf,
        )
        pool = np.zeros((len(selection), len(self._rented_tiers)), np.int64)
        rent = np.full(pool.shape, math.inf)
        for at in range(len(self._rented_tiers)):
            here = np.flatnonzero(self._at_rented == at)
            best = cost[:, here].argmin(axis=1)
            pool[:, at], rent[:, at] = here[best], cost[operators, here[best]]
        return pool, rent

    def _ways(self, k: int, selection: Indices) -> tuple[Floats, Floats]:
        """Per way the traffic's USD per hour, and (way, link) the share of the link's bandwidth."""
        parts, ways = self.parts, self.parts.ways
        usd = parts.entry[k, np.arange(len(selection)), ways].sum(axis=1)
        share = np.zeros((len(ways), len(parts.links)))
        for edge, (up, down) in enumerate(parts.edges):
            usd = usd + parts.traffic[k, edge, selection[up], ways[:, up], ways[:, down]]
        for link, (below, above) in enumerate(parts.links):
            share[:, link] = (ways == above) @ parts.entry_share[k, link]
            for edge, (up, down) in enumerate(parts.edges):
                crosses = (ways[:, up] == below) & (ways[:, down] == above)
                share[:, link] += crosses * parts.share[k, link, edge, selection[up]]
        return usd, share

    # -- the program

    def _structure(self) -> tuple[Program, highspy.HighsLp]:
        """The program with every entry set, and its HiGHS form."""
        parts, program = self.parts, Program()
        ways, (operators, slots) = len(parts.ways), (parts.loss.shape[1], len(parts.slot_tier))
        rented = len(self._rented_tiers)
        z = program.add_columns(np.zeros(ways))
        y = program.add_columns(np.zeros(operators * slots)).reshape(operators, slots)
        r = program.add_columns(np.zeros(operators * rented)).reshape(operators, rented)
        n = program.add_columns(np.zeros(slots))
        for operator in range(operators):
            for tier in np.unique(parts.ways[:, operator]).tolist():
                row = program.add_rows(0.0, 0.0, 1)
                served = (*y[operator, parts.slot_tier == tier], *r[operator, self._rented_tiers == tier])
                through = z[parts.ways[:, operator] == tier]
                program.fill(np.repeat(row, len(through)), through, 1.0)
                program.fill(np.repeat(row, len(served)), np.array(served, np.int64), -1.0)
        one = program.add_rows(1.0, 1.0, 1)
        program.fill(np.repeat(one, ways), z, 1.0)
        busy = program.add_rows(-math.inf, 0.0, slots)
        program.fill(busy, n, -1.0)
        self._fixed_values = np.concatenate([values for *_, values in program.entries])
        for row, own in zip(busy.tolist(), y.T, strict=True):
            program.fill([row] * operators, own, 1.0)
        for row in program.add_rows(-math.inf, 1.0, len(parts.links)).tolist():
            program.fill([row] * ways, z, 1.0)
        return program, program.lp(relaxed=True)

    @cached_property
    def _order(self) -> Indices:
        """The places of the entries in the rowwise matrix."""
        rows, columns = (np.concatenate(part) for part in list(zip(*self._program.entries, strict=True))[:2])
        order: Indices = np.argsort(rows * self._program.columns + columns, kind="stable")
        return order

    def _solved(self, k: int, time: Floats, rent: Floats, way: Floats, share: Floats, cutoff: float) -> Floats | None:
        parts, lp = self.parts, self._fixed
        runs, pays = np.isfinite(time) & (parts.count[k] > 0), np.isfinite(rent)
        cost = np.concatenate([way, np.zeros(time.size), rent.ravel(), parts.price[k]])
        most = np.concatenate(
            [np.ones(len(way)), runs.ravel().astype(float), pays.ravel().astype(float), parts.count[k]]
        )
        entries = np.concatenate([self._fixed_values, np.where(runs, time, 0.0).T.ravel(), share.T.ravel()])
        lp.col_cost_, lp.col_upper_ = np.where(np.isfinite(cost), cost, 0.0), np.where(np.isfinite(cost), most, 0.0)
        lp.a_matrix_.value_ = entries[self._order]
        self._model.passModel(lp)
        return self._cheapest_whole(parts.count[k], parts.price[k], cutoff)

    def _cheapest_whole(self, most: Floats, price: Floats, cutoff: float) -> Floats | None:
        """The cheapest point with whole n, to the gap: branch and bound, deep first, as n has few and small columns.

        With n rounded up, every point of the relaxed program is one of the program.
        """
        first = self._program.columns - len(most)
        best, values = cutoff, None
        boxes = [(np.zeros(len(most)), most)]
        while boxes:
            low, high = boxes.pop()
            for i, (least, greatest) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
                self._model.changeColBounds(first + i, least, greatest)
            self._model.run()  # not interruptible, as it takes less than a millisecond
            answer = self._program.answer(self._model, relaxed=True)
            if answer.values is None or answer.value >= best * (1.0 - self._gap):
                continue
            n = answer.values[first:]
            up = np.minimum(np.ceil(n - FEASIBILITY_TOLERANCE), high)
            rounded = answer.value + float(price @ (up - n))
            if rounded < best:
                best, values = rounded, np.concatenate([answer.values[:first], up])
            if rounded > answer.value * (1.0 + self._gap):
                i = int((price * (up - n)).argmax())
                down, above = high.copy(), low.copy()
                down[i], above[i] = up[i] - 1.0, up[i]
                boxes += [(low, down), (above, high)]
        return values

    # -- the plan

    def _own(self, k: int, busy: Floats, served: Floats) -> dict[int, list[Mapping[str, float]]]:
        """Own pool i -> its workers, each as operator -> fraction of its requests: filled one after the other."""
        names = self._names(k)
        found: dict[int, list[Mapping[str, float]]] = {}
        for i in np.flatnonzero(served.any(axis=0)).tolist():
            workers: list[dict[str, float]] = [{}]
            room = 1.0
            for o in np.flatnonzero(served[:, i]).tolist():
                time, share = float(busy[o, i]), float(served[o, i])
                left = time
                while left > room + SPARE:
                    if room > LITTLE:
                        workers[-1][names[o]] = share * room / time
                        left -= room
                    workers.append({})
                    room = 1.0
                workers[-1][names[o]] = share * left / time if time > 0 else share
                room = max(room - left, 0.0)
            found[i] = [worker for worker in workers if worker]
        return found

    def _names(self, k: int) -> tuple[str, ...]:
        return tuple(operator.name for operator in self._part(k).operators)

    def _part(self, k: int) -> Problem:
        return self.split.parts[self.parts.numbers[k]]

    @cached_property
    def _bags(self) -> tuple[tuple[tuple[int, ...], int | None, tuple[int, ...]], ...]:
        """The tree decomposition, its operators as positions."""
        part = self._part(0)
        inner = dict.fromkeys((edge.upstream, edge.downstream) for edge in part.edges if edge.upstream in part.position)
        bags = tree_decomposition(self._names(0), tuple(inner))
        at = part.position
        return tuple(
            (tuple(at[name] for name in bag.operators), bag.parent, tuple(at[name] for name in bag.separator))
            for bag in bags
        )

    def _local_plan(
        self,
        k: int,
        selection: Indices,
        usd: float,
        z: Floats,
        r: Floats,
        pool: Indices,
        workers: Mapping[int, list[Mapping[str, float]]],
        share: Floats,
    ) -> LocalPlan:
        parts, split, part, names = self.parts, self.split, self._part(k), self._names(k)
        own = self.parts.slots[k]
        groups = tuple(Group(own[i], shares, 1) for i, each in workers.items() for shares in each)
        busy = {
            (name, own[i]): float(parts.time[k, part.position[name], selection[part.position[name]], i])
            for i, each in workers.items()
            for shares in each
            for name in shares
        }
        loads: dict[str, list[Load]] = {}
        time, memory = np.zeros(len(split.shared)), np.zeros(len(split.shared))
        for o, tier in np.argwhere(r > 0).tolist():
            p, v = int(pool[o, tier]), int(selection[o])
            number, fraction = int(parts.rented[p]), float(r[o, tier])
            shared = split.shared[number]
            all_busy = float(parts.rented_time[k, o, v, p])
            kept = memory_of(part.operators[o].variants[v], shared, device_is_scarcer=self._scarcer[shared.name])
            loads.setdefault(shared.name, []).append(Load(names[o], fraction, fraction * all_busy, kept or NONE))
            busy[names[o], shared.name] = all_busy
            time[number] += fraction * all_busy
            memory[number] += fraction * float(parts.rented_memory[k, o, v, p])
        links = np.zeros(len(split.links))
        for link, owner, index in parts.common_links:
            if owner == k:
                links[index] = max(float(share[link]), 0.0)
        return LocalPlan(
            parts.numbers[k],
            {
                name: own_variants[v]
                for name, own_variants, v in zip(names, parts.variants, selection.tolist(), strict=True)
            },
            usd,
            Use.of(time),
            Use.of(memory),
            Use.of(np.zeros(len(split.exclusive))),
            Use.of(links),
            {name: tuple(each) for name, each in loads.items()},
            groups,
            self._named_bags(names),
            self._fractions(part, z),
            busy,
        )

    def _named_bags(self, names: tuple[str, ...]) -> tuple[Bag, ...]:
        return tuple(
            Bag(tuple(names[o] for o in bag), parent, tuple(names[o] for o in separator))
            for bag, parent, separator in self._bags
        )

    def _fractions(self, part: Problem, z: Floats) -> tuple[Mapping[BagTiers, float], ...]:
        """Per bag: tiers of its operators -> fraction of requests."""
        found: list[dict[BagTiers, float]] = [{} for _ in self._bags]
        for way in np.flatnonzero(z).tolist():
            for fractions, (bag, *_) in zip(found, self._bags, strict=True):
                tiers = tuple(part.tiers[int(self.parts.ways[way, o])] for o in bag)
                fractions[tiers] = fractions.get(tiers, 0.0) + float(z[way])
        return tuple(found)
