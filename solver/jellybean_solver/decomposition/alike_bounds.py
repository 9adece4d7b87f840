"""Lower bounds on the cost of alike workflows at given prices, and selections that nearly reach them.

What couples the operators of one workflow is priced, too: `sigma` the loss of accuracy, `time` and `memory` its own
workers, `link` the bandwidth of its own links. At these multipliers every operator takes its cheapest variant and place
for each way of tiers, and the cheapest way is found by looking at all of them. The multipliers climb by subgradient
steps to a level a little above the best bound (Polyak 1969). Where that leaves a gap, a box of variants and worker
counts is cut in two, where the average of all steps (volume algorithm; Barahona and Anbil 2000) is most undecided.
All workflows do so at once, in arrays; b is the axis of boxes, the other axes are those of alike_parts.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from jellybean_solver.decomposition.alike_parts import AlikeParts
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.milp.highs_program import Floats, Indices

Mask = npt.NDArray[np.bool_]
_FIRST_STEP, _PATIENCE = 0.05, 6  # share of the bound by which the level is above it; steps until that is halved
_WINDOW = 10  # steps, of which the best selection is kept
_MEMORY = 0.9  # share of the past in the average of steps
_FULL = 1.0 + 1e-9  # loss of accuracy up to which a selection reaches its target
_LEVEL = 1e-4  # of the bound: least step
_MOST_OPEN = 0.8  # share of the boxes: if fewer are left, the others are taken out of the arrays


@dataclass(frozen=True)
class Boxes:
    """Restrictions of parts, with multipliers to begin from. `allowed`: b, o, v. `least`, `most` workers: b, i.

    `multipliers`: per box those of accuracy (1), of the time and the memory of own pools (i each), and of links (l).
    """

    part: Indices
    allowed: Mask
    least: Floats
    most: Floats
    multipliers: Floats

    def take(self, rows: Indices) -> Boxes:
        """Some of the boxes."""
        return Boxes(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def joined(boxes: list[Boxes]) -> Boxes:
    """All of these boxes."""
    return Boxes(*(np.concatenate([getattr(one, name) for one in boxes]) for name in Boxes.__dataclass_fields__))


@dataclass(frozen=True)
class Climbed:
    """The result per box. `boxes`: with the multipliers of the best bound. `variants`, `workers` (that are needed): the
    average of steps. `forced`: the bound if an operator has a variant (b, o, v).

    `selection`: some that reach the accuracy (b, s, o), the best of every few steps; `estimate`: about what they cost
    (b, s); inf if there is none.
    """

    boxes: Boxes
    bound: Floats
    forced: Floats
    variants: Floats
    workers: Floats
    selection: Indices
    estimate: Floats


class AlikeBounds:
    """Bounds of a group at one set of prices."""

    def __init__(self, parts: AlikeParts, prices: Prices) -> None:
        self.parts = parts
        self.rent = parts.rent(prices)
        self.surcharge = np.zeros((len(parts.numbers), len(parts.links)))  # k, l: price of a common link
        for link, k, index in parts.common_links:
            self.surcharge[k, link] = prices.links[index]
        runs = np.isfinite(parts.time)
        self.time = np.where(runs, parts.time, 0.0)
        self.blocked = np.where(runs, 0.0, math.inf)
        self.has_memory = bool(parts.memory.any())

    def whole(self) -> Boxes:
        """One box for each part, without restrictions."""
        parts = self.parts
        count, operators, variants = parts.loss.shape
        slots = len(parts.slot_tier)
        none = np.zeros((count, 1)), np.zeros((count, slots)), np.zeros((count, len(parts.links)))
        return Boxes(
            np.arange(count),
            np.ones((count, operators, variants), bool),
            np.zeros((count, slots)),
            parts.count.copy(),
            np.concatenate([none[0], parts.price, none[1], none[2]], axis=1),
        )

    @cached_property
    def tables(self) -> list[tuple[list[tuple[int, int]], Indices, Indices]]:
        """Per operator: its edges as (edge, place in the rows), the rows of tiers that occur, and each way's row."""
        found = []
        for operator in range(self.parts.loss.shape[1]):
            after = [(e, down) for e, (up, down) in enumerate(self.parts.edges) if up == operator]
            columns = [operator, *(down for _, down in after)]
            rows, each = np.unique(self.parts.ways[:, columns], axis=0, return_inverse=True)
            found.append(([(e, at + 1) for at, (e, _) in enumerate(after)], rows, each.reshape(-1)))
        return found

    def climb(self, boxes: Boxes, steps: int, cost: Floats | None = None, gap: float = 0.0) -> Climbed:
        """The best bound of each box after so many steps.

        `cost`: of the box's part, if a plan is known: a box is left when its bound is so near that it holds no better
        one, to the relative `gap`; a box that cannot be served gets there in few steps.
        """
        return _Climb(self, boxes, steps, cost, gap).run()


class _Climb:
    """Steps of the multipliers. Boxes that are done leave: `rows` are the places of those that are left."""

    def __init__(self, of: AlikeBounds, boxes: Boxes, steps: int, cost: Floats | None, gap: float) -> None:
        self._of, self._all, self._steps = of, boxes, steps
        count = len(boxes.part)
        self._rows = np.arange(count)
        self._left, self._now = boxes, boxes.multipliers
        self._cost = np.full(count, math.inf) if cost is None else cost
        self._enough = self._cost * (1.0 - gap)
        self._step = np.where(np.isfinite(self._cost), 1.0, _FIRST_STEP)
        self._waited = np.zeros(count, np.int64)
        self._best, self._kept = np.full(count, -math.inf), boxes.multipliers.copy()
        self._variants: Floats = np.zeros(boxes.allowed.shape)
        self._workers: Floats = np.zeros(boxes.most.shape)
        windows = math.ceil(steps / _WINDOW)
        self._selection = np.zeros((count, windows, boxes.allowed.shape[1]), np.int64)
        self._estimate = np.full((count, windows), math.inf)

    def run(self) -> Climbed:
        """All steps."""
        for number in range(self._steps):
            point = _Point(self._of, self._left, self._now)
            last = number % _WINDOW == _WINDOW - 1
            self._record(point)
            self._propose(point, number // _WINDOW, repair=last)
            self._move(point)
            if last and not self._leave():
                break
        return self._result()

    def _record(self, point: _Point) -> None:
        """Keep the best bound, and add the point to the averages."""
        rows = self._rows
        better = point.value > self._best[rows]
        won = rows[better]
        self._best[won], self._kept[won] = point.value[better], self._now[better]
        self._waited = np.where(better, 0, self._waited + 1)
        tired = self._waited >= _PATIENCE
        self._step[tired] /= 2.0
        self._waited[tired] = 0
        chosen = np.arange(self._variants.shape[2]) == np.expand_dims(point.selection, 2)
        self._variants[rows] += (1.0 - _MEMORY) * (chosen - self._variants[rows])
        needed = np.clip(np.maximum(point.time, point.memory), self._left.least, self._left.most)
        self._workers[rows] += (1.0 - _MEMORY) * (needed - self._workers[rows])

    def _propose(self, point: _Point, window: int, *, repair: bool) -> None:
        """Keep the point's selection if it is the cheapest of these steps that reaches the accuracy."""
        chosen, cost = point.accurate(repair=repair)
        cheaper = cost < self._estimate[self._rows, window]
        at = self._rows[cheaper]
        self._estimate[at, window], self._selection[at, window] = cost[cheaper], chosen[cheaper]

    def _move(self, point: _Point) -> None:
        """A step to a level: that of the known cost, else a little above the best bound; half as far after failures."""
        over = np.where((self._now <= 0) & (point.over < 0), 0.0, point.over)
        size = (over**2).sum(axis=1)
        best, cost = self._best[self._rows], self._cost[self._rows]
        rise = np.maximum(np.abs(best), 1e-9)
        known = np.isfinite(cost)
        rise = np.where(known, np.maximum(np.where(known, cost, 0.0) - best, _FIRST_STEP * rise), rise)
        finite = np.isfinite(point.value) & np.isfinite(best)  # both are infinite in a box without a plan
        gain = np.where(finite, best + self._step * rise, 0.0) - np.where(finite, point.value, 0.0)
        length = np.where(size > 0, np.maximum(gain, 0.0) / np.maximum(size, 1e-30), 0.0)
        self._now = np.maximum(self._now + length[:, None] * over, 0.0)

    def _leave(self) -> bool:
        """Leave the boxes that are done; False if none is left."""
        open_ = (self._best[self._rows] < self._enough[self._rows]) & (self._step >= _LEVEL)
        if open_.mean() < _MOST_OPEN:
            self._rows, self._now = self._rows[open_], self._now[open_]
            self._step, self._waited = self._step[open_], self._waited[open_]
            self._left = self._all.take(self._rows)
        return len(self._rows) > 0

    def _result(self) -> Climbed:
        reached = replace(self._all, multipliers=self._kept)
        forced = _Point(self._of, reached, self._kept).forced()
        share = np.maximum(self._variants.sum(axis=2), 1e-9)[..., None]
        whole = share[:, 0]  # what the weights of the steps add up to
        return Climbed(
            reached, self._best, forced, self._variants / share, self._workers / whole, self._selection, self._estimate
        )


class _Point:
    """What every box does at some multipliers, and what that costs."""

    def __init__(self, of: AlikeBounds, boxes: Boxes, multipliers: Floats) -> None:
        parts, k = of.parts, boxes.part
        slots = len(parts.slot_tier)
        sigma = multipliers[:, 0]
        time, memory, link = np.split(multipliers[:, 1:], [slots, 2 * slots], axis=1)
        self._of, self._boxes, self._sigma = of, boxes, sigma
        tiers = parts.entry.shape[2]
        node = of.rent[k]
        place = np.full(node.shape, -1, np.int64)
        for slot, tier in enumerate(parts.slot_tier.tolist()):
            cost = time[:, slot, None, None] * of.time[k, :, :, slot] + of.blocked[k, :, :, slot]
            if of.has_memory:
                cost = cost + memory[:, slot, None, None] * parts.memory[k, :, :, slot]
            cost = np.where((boxes.most[:, slot] > 0)[:, None, None], cost, math.inf)
            closer = cost < node[..., tier]
            node[..., tier] = np.where(closer, cost, node[..., tier])
            place[..., tier] = np.where(closer, slot, place[..., tier])
        entry = parts.entry[k]
        charged = link + of.surcharge[k]
        for number, (_, above) in enumerate(parts.links):
            entry[:, :, above] += charged[:, number, None] * parts.entry_share[k, number]
        node = node + entry[:, :, None, :] + (sigma[:, None, None] * parts.loss[k])[..., None]
        node = np.where(boxes.allowed[..., None], node, math.inf)
        traffic = parts.traffic[k] if parts.edges else np.zeros((len(k), 0, node.shape[2], tiers, tiers))
        for number, (below, above) in enumerate(parts.links):
            traffic[:, :, :, below, above] += charged[:, number, None, None] * parts.share[k, number]
        total = np.zeros((len(k), len(parts.ways)))
        self._costs: list[Floats] = []  # per operator b, v, row of tiers
        tables = of.tables
        for operator, (edges, rows, each) in enumerate(tables):
            cost = node[:, operator][:, :, rows[:, 0]]
            for edge, at in edges:
                cost = cost + traffic[:, edge][:, :, rows[:, 0], rows[:, at]]
            self._costs.append(cost)
            total += cost.min(axis=1)[:, each]
        self._total = total
        self._way = total.argmin(axis=1)
        at_b = np.arange(len(k))
        self._row = np.stack([each[self._way] for _, _, each in tables], axis=1)
        self._mine = np.stack([cost[at_b, :, self._row[:, o]] for o, cost in enumerate(self._costs)], axis=1)  # b, o, v
        self.selection: Indices = self._mine.argmin(axis=2)
        spare = parts.price[k] - time - memory
        self.workers = np.where(spare > 0, boxes.least, boxes.most)
        limited = np.isfinite(parts.most_loss[k])
        self._rest = (spare * self.workers).sum(axis=1) - link.sum(axis=1) - np.where(limited, sigma, 0.0)
        self.value = total[at_b, self._way] + self._rest
        self.value = np.where(np.isnan(self.value), math.inf, self.value)
        self._use(place, k)
        over_memory = self.memory - self.workers if of.has_memory else np.zeros(self.memory.shape)
        over_loss = np.where(limited, self.loss - 1.0, 0.0)
        self.over = np.concatenate([over_loss[:, None], self.time - self.workers, over_memory, self.link - 1.0], axis=1)

    def forced(self) -> Floats:
        """Per box, operator and variant the bound if the operator has this variant."""
        found = []
        for cost, (_, _, each) in zip(self._costs, self._of.tables, strict=True):
            with np.errstate(invalid="ignore"):
                more = (cost - cost.min(axis=1)[:, None])[:, :, each]
            ways = self._total[:, None, :] + more
            found.append(np.where(np.isnan(ways), math.inf, ways).min(axis=2))
        forced: Floats = np.stack(found, axis=1) + self._rest[:, None, None]
        return forced

    def _use(self, place: Indices, k: Indices) -> None:
        parts = self._of.parts
        operators = np.arange(self.selection.shape[1])
        at_b = np.arange(len(k))
        tier = parts.ways[self._way]
        slot = place[at_b[:, None], operators, self.selection, tier]
        self.loss = parts.loss[k[:, None], operators, self.selection].sum(axis=1)
        self.time, self.memory = (np.zeros((len(k), len(parts.slot_tier))) for _ in range(2))
        for number in range(len(parts.slot_tier)):
            own = slot == number
            figures = k[:, None], operators, self.selection, number
            self.time[:, number] = np.where(own, self._of.time[figures], 0.0).sum(axis=1)
            if self._of.has_memory:
                self.memory[:, number] = np.where(own, parts.memory[figures], 0.0).sum(axis=1)
        self.link = np.zeros((len(k), len(parts.links)))
        for number, (below, above) in enumerate(parts.links):
            used = np.where(tier == above, parts.entry_share[k, number], 0.0).sum(axis=1)
            for edge, (up, down) in enumerate(parts.edges):
                crosses = (tier[:, up] == below) & (tier[:, down] == above)
                used += np.where(crosses, parts.share[k, number, edge, self.selection[:, up]], 0.0)
            self.link[:, number] = used

    def accurate(self, *, repair: bool) -> tuple[Indices, Floats]:
        """A selection per box that reaches the accuracy, and a lower bound on its cost; inf where none is at hand.

        `repair`: where the point's selection does not reach it, change variants, those first that lose least by it.
        """
        parts, k = self._of.parts, self._boxes.part
        limited = np.isfinite(parts.most_loss[k])
        chosen, loss = self.selection.copy(), self.loss.copy()
        operators = np.arange(chosen.shape[1])
        open_rows = np.flatnonzero(limited & (loss > _FULL)) if repair else np.zeros(0, np.int64)
        for _ in range(chosen.shape[1] * self._mine.shape[2]):
            if not len(open_rows):
                break
            rows = open_rows
            own, mine = parts.loss[k[rows]], self._mine[rows] - self._sigma[rows, None, None] * parts.loss[k[rows]]
            now = (
                np.take_along_axis(own, chosen[rows][..., None], 2),
                np.take_along_axis(mine, chosen[rows][..., None], 2),
            )
            with np.errstate(invalid="ignore", divide="ignore"):  # impossible variants cost inf
                less, more = now[0] - own, mine - now[1]
                ratio = np.where((less > 1e-12) & np.isfinite(more), np.maximum(more, 0.0) / less, math.inf)
            flat = ratio.reshape(len(rows), -1)
            pick = flat.argmin(axis=1)
            works = np.isfinite(flat[np.arange(len(rows)), pick])
            rows, pick = rows[works], pick[works]
            chosen[rows, pick // own.shape[2]] = pick % own.shape[2]
            loss[rows] = parts.loss[k[rows, None], operators, chosen[rows]].sum(axis=1)
            open_rows = rows[loss[rows] > _FULL]
        mine = np.take_along_axis(self._mine, chosen[..., None], 2)[..., 0].sum(axis=1)
        cost = mine + self._rest + np.where(limited, self._sigma * (1.0 - loss), 0.0)
        reaches = ~limited | (loss <= _FULL)
        return chosen, np.where(reaches & np.isfinite(cost), cost, math.inf)
