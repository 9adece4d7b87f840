"""The linear relaxation of the joint LP in a box (limits on choices and counts), warm-started from the last solve.

Columns y (choice, worker class) are generated: after each solve those that are missing are priced, and added where
their reduced cost is negative. Where the relaxation looks infeasible, columns that break the Farkas proof are added
first. Rows y[c, k] <= workers of a shared class k are added when a point violates them.

HiGHS works to tolerances. The bound does not depend on them: it is computed from the duals, and any duals of the
right signs give one (Neumaier and Shcherbina, Mathematical Programming 99, 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.fleet.ancestor_closure import AncestorClosure
from jellybean_solver.fleet.integer_counts import FEW, Box
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.worker_classes import Mask
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.milp.warm_lp import Block, Linear, Optimum
from jellybean_solver.outcome import Clock

PAYS = 1e-7  # USD per hour: a column is added only if its reduced cost is below minus this
MENDS = 1e-9  # least gain of a column against a proof of infeasibility, whose largest weight is 1
BROKEN = 1e-6  # a row violated by more (fraction of requests, or workers) is added
# Tightening of counts by reduced costs: least divisor (USD per hour), and slack before a count is rounded down.
LEAST_REDUCED, SPARE = 1e-12, 1e-6
FIRST = 3  # cheapest worker classes per choice and tier, whose columns are in the program from the start


@dataclass(frozen=True, slots=True)
class Point:
    """The optimum of the relaxation in a box.

    `box`: the box, tightened by ancestor_closure.py.
    `bound`: USD per hour, a lower bound on the cost of every plan in the box.
    `chosen`, `counted`, `values`: values of the columns z, of `IntegerCounts.columns`, of all columns of the joint LP.
    `served`: values of y, per choice and worker class.
    `scarcity`: per class the dual of its worker count: USD per hour saved by one more worker.
    `forced`: per choice a lower bound on the cost of plans that make it, USD per hour.
    `reduced`: reduced cost of each integer count, USD per hour for one more.
    """

    box: Box
    bound: float
    chosen: Floats
    counted: Floats
    values: Floats
    served: Floats
    scarcity: Floats
    forced: Floats
    reduced: Floats

    def left_below(self, most_usd_per_h: float) -> Box:
        """The box without choices and counts that make a plan cost `most_usd_per_h` or more.

        `bound` must be below `most_usd_per_h`.
        """
        room, box = most_usd_per_h - self.bound, self.box
        steps = np.floor(room / np.maximum(np.abs(self.reduced), LEAST_REDUCED) + SPARE)
        most = np.where(self.reduced > 0.0, np.minimum(box.most, box.least + steps), box.most)
        least = np.where(self.reduced < 0.0, np.maximum(box.least, box.most - steps), box.least)
        return Box(box.allowed & (self.forced < most_usd_per_h), least, most)


class Relaxation:
    """Solves the joint LP's relaxation for any box."""

    def __init__(self, joint_lp: JointLp, clock: Clock = Clock()) -> None:
        """`clock`: time limit for all solves together."""
        self.joint_lp, self.kinds = joint_lp, joint_lp.kinds
        self._closed = AncestorClosure(joint_lp)
        self.solved = 0
        self._linear = Linear(joint_lp.program, clock)
        self._matrix = joint_lp.program.matrix()
        self._width = joint_lp.program.columns
        shape = self.kinds.workers.shape
        self._column = np.full(shape, -1, np.int64)  # index of column y; -1: not generated
        self._needed = np.where(self.kinds.runs, self.kinds.needed, 0.0)
        self._presence: dict[tuple[int, int], int] = {}  # (operator, class) -> row
        self._owned = [np.flatnonzero(self.kinds.owner == index) for index in range(len(joint_lp.network.names))]
        self._shares()
        self._add(_cheapest(joint_lp, self._needed))

    def everything(self) -> Box:
        """The box that rules out nothing."""
        most = self.joint_lp.integer_counts.most
        return Box(np.ones(len(self.kinds.choices), bool), np.zeros(len(most)), most)

    def solve(self, box: Box) -> Point | None:
        """The optimum in the box; None if the box is infeasible. OutOfTimeError if time ends first."""
        box = self._closed.tightened(box)
        self._linear.limit(self.joint_lp.chosen, box.allowed.astype(float))
        self._linear.limit(self.joint_lp.integer_counts.columns, box.most, box.least)
        self.solved += 1
        return self._solve(box)

    @property
    def most(self) -> Floats:
        """Upper limit of each column m: the workers that may be paid in each pool."""
        most: Floats = self._matrix.most[self.joint_lp.paid]
        return most

    def less_room(self, point: Point, share: float) -> Floats:
        """Upper limits of the columns m with fewer workers in each class of many: `share` workers less per operator.

        Counts the operators that run on the class in the point; the total per class is rounded up, and the dearest
        pools lose workers first.
        """
        users = np.zeros((len(self._owned), len(self.kinds.kinds)))
        np.maximum.at(users, self.kinds.owner, (point.served > BROKEN).astype(float))
        most = self.most
        dearer = np.concatenate([np.cumsum(part[::-1])[::-1] - part for part in self._by_kind(most)])
        wanted = np.where(self.kinds.counts > FEW, np.ceil(share * users.sum(axis=0)), 0.0)
        left: Floats = most - np.clip(wanted[self.joint_lp.pools_kind] - dearer, 0.0, most)
        return left

    def solve_within(self, box: Box, most: Floats) -> Point | None:
        """The optimum in the box with `most` as upper limits of the columns m; None if infeasible."""
        self._linear.limit(self.joint_lp.paid, most)
        try:
            return self.solve(box)
        finally:
            self._linear.limit(self.joint_lp.paid, self.most)

    def links_within(self, share: float) -> None:
        """From now on, limit the traffic of every link to this share of its bandwidth."""
        self.joint_lp.links = share
        self._matrix.high[self.joint_lp.link_rows] = share
        self._linear.limit_rows(self.joint_lp.link_rows, share)

    def answer_within(self, left_s: float, clock: Clock) -> None:
        """Set a new deadline (`left_s`: delay_linearisation.py) and a new time limit for all further solves."""
        self._linear.clock, self.joint_lp.left_s = clock, left_s
        at_hand = self.joint_lp.at_hand
        self._matrix.most[at_hand] = self.joint_lp.share * left_s
        self._linear.limit(at_hand, self.joint_lp.share * left_s)

    def _by_kind(self, figures: Floats) -> list[Floats]:
        """One value per column m, split into an array per class."""
        return np.split(figures, np.flatnonzero(np.diff(self.joint_lp.pools_kind)) + 1)

    def _solve(self, box: Box) -> Point | None:
        while True:
            optimum = self._linear.solve()
            if optimum is None:
                if not self._mend(box.allowed):
                    return None
            elif not self._price(optimum.duals, box.allowed) and not self._hold(optimum.values):
                return self._point(optimum, box)

    # -- columns

    def _shares(self) -> None:
        """Build the sparse matrix, (choice, tier) by row, of the coefficients of y that are equal in a whole tier."""
        tiers = len(self.joint_lp.tiers)
        rows: list[int] = []
        pairs: list[int] = []
        signs: list[float] = []
        for choice in range(len(self.kinds.choices)):
            for tier in np.unique(self.kinds.tier[self.joint_lp.open[choice]]).tolist():
                own, values = self.joint_lp.entries(choice, tier)
                rows += own
                signs += values
                pairs += [choice * tiers + tier] * len(own)
        self._rows, self._pairs, self._signs = np.array(rows, np.int64), np.array(pairs, np.int64), np.array(signs)

    def _add(self, wanted: Mask) -> None:
        block = Block.empty()
        pairs = np.argwhere(wanted)
        for choice, kind in pairs.tolist():
            rows, values = self.joint_lp.entries(choice, int(self.kinds.tier[kind]))
            rows.append(int(self.joint_lp.held[kind]))
            values.append(float(self._needed[choice, kind]))
            if self.joint_lp.full[kind] >= 0:
                rows.append(int(self.joint_lp.full[kind]))
                values.append(float(self.kinds.stored[choice, kind]))
            more, weights = self.joint_lp.integer_counts.entries(choice, kind)
            rows += more
            values += weights
            operator = int(self.kinds.owner[choice])
            if (operator, kind) in self._presence:
                rows.append(self._presence[operator, kind])
                values.append(1.0)
            if self.joint_lp.seconds is not None:
                rows += self.joint_lp.timed[operator].tolist()
                values += [float(self.joint_lp.seconds[choice, kind])] * len(self.joint_lp.timed[operator])
            block.add(rows, values)
        self._column[pairs[:, 0], pairs[:, 1]] = self._linear.add_columns(block)

    def _gains(self, weights: Floats) -> Floats:
        """Per column y the sum of its coefficients times the rows' `weights`; with duals, minus its reduced cost."""
        shape = len(self.kinds.choices), len(self.joint_lp.tiers)
        shares = np.bincount(self._pairs, self._signs * weights[self._rows], math.prod(shape)).reshape(shape)
        gains: Floats = shares[:, self.kinds.tier] + self._needed * weights[self.joint_lp.held]
        full = np.flatnonzero(self.joint_lp.full >= 0)
        gains[:, full] += self.kinds.stored[:, full] * weights[self.joint_lp.full[full]]
        gains += self.joint_lp.integer_counts.gains(weights)
        for (operator, kind), row in self._presence.items():
            gains[self._owned[operator], kind] += weights[row]
        if self.joint_lp.seconds is not None:
            spent = np.array([weights[rows].sum() for rows in self.joint_lp.timed])[self.kinds.owner]
            gains += np.where(self.kinds.runs, self.joint_lp.seconds, 0.0) * spent[:, None]
        return gains

    def _price(self, duals: Floats, allowed: Mask) -> bool:
        missing = self.joint_lp.open & (self._column < 0) & allowed[:, None]
        wanted = _best(self._gains(duals), missing, self._owned, PAYS)
        if wanted.any():
            self._add(wanted)
        return bool(wanted.any())

    def _mend(self, allowed: Mask) -> bool:
        """Add missing columns that break the proof of infeasibility. False if none does: the box is infeasible."""
        missing = self.joint_lp.open & (self._column < 0) & allowed[:, None]
        if not missing.any():
            return False
        ray = self._linear.ray()
        if ray is not None and np.abs(ray).max() > 0:
            gains = self._gains(ray / np.abs(ray).max())
            present = (self._column >= 0) & allowed[:, None]
            if gains[present].max(initial=0.0) <= PAYS:  # valid for the columns present
                missing = _best(gains, missing, self._owned, MENDS)
        if missing.any():
            self._add(missing)
        return bool(missing.any())

    # -- rows

    def _hold(self, values: Floats) -> bool:
        """Add violated rows y <= workers paid, for operators that may need less than one worker of a shared class.

        Returns whether any row was added.
        """
        small = self.joint_lp.open & (self._needed < 1.0) & ~self.kinds.exclusive
        if not small.any():
            return False
        count = len(self.kinds.kinds)
        paid = np.bincount(self.joint_lp.pools_kind, values[self.joint_lp.paid], count)
        served = self._served(values)
        block = Block.empty()
        broken: list[tuple[int, int]] = []
        for operator, own in enumerate(self._owned):
            over = (served[own].sum(axis=0) > paid + BROKEN) & small[own].any(axis=0)
            for kind in np.flatnonzero(over).tolist():
                if (operator, kind) not in self._presence:
                    columns = self._column[own, kind]
                    there = columns[columns >= 0]
                    pools = self.joint_lp.paid[self.joint_lp.pools_kind == kind]
                    block.add([*there.tolist(), *pools.tolist()], [1.0] * len(there) + [-1.0] * len(pools))
                    broken.append((operator, kind))
        if broken:
            rows = self._linear.add_rows(-math.inf, 0.0, block)
            self._presence |= dict(zip(broken, rows.tolist(), strict=True))
        return bool(broken)

    # -- points

    def _served(self, values: Floats) -> Floats:
        there = self._column >= 0
        served = np.zeros(self._column.shape)
        served[there] = np.maximum(values[self._column[there]], 0.0)
        return served

    def _bound(self, duals: Floats, box: Box) -> tuple[float, Floats, Floats]:
        """The lower bound that duals prove, the same per choice if it is made, and the reduced costs of the counts.

        Every column takes the cheaper end of its range; each operator has one choice and one y.
        """
        count = len(self._matrix.low)
        weights = np.concatenate([self._matrix.signed(duals[:count]), np.minimum(duals[count:], 0.0)])
        left = self._matrix.left(weights[:count])
        for (_, kind), row in self._presence.items():
            left[self.joint_lp.paid[self.joint_lp.pools_kind == kind]] += weights[row]
        least, most = np.zeros(self._width), self._matrix.most.copy()
        least[self.joint_lp.integer_counts.columns], most[self.joint_lp.integer_counts.columns] = box.least, box.most
        gains = np.where(self.joint_lp.open & box.allowed[:, None], self._gains(weights), -math.inf).max(axis=1)
        made = left[self.joint_lp.chosen] - gains  # inf if not allowed
        best = np.full(len(self._owned), math.inf)
        np.minimum.at(best, self.kinds.owner, made)
        counts = left[self.joint_lp.integer_counts.columns]
        left[self.joint_lp.chosen] = 0.0
        sides = self._matrix.sides(weights[:count])
        bound = sides + float(np.minimum(left, 0.0) @ most + np.maximum(left, 0.0) @ least) + float(best.sum())
        return bound, bound + made - best[self.kinds.owner], counts

    def _point(self, optimum: Optimum, box: Box) -> Point:
        integer_counts, served = self.joint_lp.integer_counts, self._served(optimum.values)
        paid, chosen = (
            optimum.values[integer_counts.columns[: integer_counts.pools]],
            optimum.values[self.joint_lp.chosen],
        )
        bound, forced, reduced = self._bound(optimum.duals, box)
        return Point(
            box,
            bound,
            chosen,
            np.clip(integer_counts.needed(paid, chosen, served), box.least, box.most),
            optimum.values[: self._width],
            served,
            -optimum.duals[self.joint_lp.held],
            forced,
            reduced,
        )


def _cheapest(joint_lp: JointLp, needed: Floats) -> Mask:
    """Mask of the first columns y: per choice and tier the `FIRST` cheapest classes; `needed`: workers per y."""
    kinds = joint_lp.kinds
    cost = np.where(joint_lp.open, needed * kinds.price, math.inf)
    found = np.zeros(cost.shape, bool)
    for tier in range(len(joint_lp.tiers)):
        at = np.flatnonzero(kinds.tier == tier)
        order = at[np.argsort(cost[:, at], axis=1, kind="stable")[:, :FIRST]]
        np.put_along_axis(found, order, True, axis=1)
    return found & joint_lp.open


def _best(gains: Floats, missing: Mask, owned: Sequence[Indices], least: float) -> Mask:
    """Mask of the columns to add: per operator the missing one with the largest gain, if above `least`.

    One column per operator keeps the program small. `owned`: choices of each operator.
    """
    gains = np.where(missing, gains, -math.inf)
    found = np.zeros(gains.shape, bool)
    for own in owned:
        row, column = divmod(int(np.argmax(gains[own])), gains.shape[1])
        found[own[row], column] = gains[own[row], column] > least
    return found
