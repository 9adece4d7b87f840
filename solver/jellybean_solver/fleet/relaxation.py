"""The linear relaxation of the joint LP in a box (limits on choices and counts), warm-started from the last solve.

HiGHS works to tolerances. The bound does not depend on them: it is computed from the duals, and any duals of the
right signs give one (Neumaier and Shcherbina, Mathematical Programming 99, 2004).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jellybean_solver.fleet.ancestor_closure import AncestorClosure
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.joint_lp import RelaxedLp
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.milp.warm_lp import Linear, Optimum
from jellybean_solver.outcome import Clock

# Tightening of counts by reduced costs: least divisor (USD per hour), and slack before a count is rounded down.
LEAST_REDUCED, SPARE = 1e-12, 1e-6


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

    def __init__(self, joint_lp: RelaxedLp, clock: Clock = Clock()) -> None:
        """`clock`: time limit for all solves together."""
        self.joint_lp, self.kinds = joint_lp, joint_lp.kinds
        self._closed = AncestorClosure(joint_lp)
        self.solved = 0
        self._linear = Linear(joint_lp.program, clock)
        self._matrix = joint_lp.program.matrix()

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
        optimum = self._linear.solve()
        return None if optimum is None else self._point(optimum, box)

    def links_within(self, share: float) -> None:
        """From now on, limit the traffic of every link to this share of its bandwidth."""
        self._matrix.high[self.joint_lp.link_rows] = share
        self._linear.limit_rows(self.joint_lp.link_rows, share)

    def answer_within(self, left_s: float, clock: Clock) -> None:
        """Set a new deadline (`left_s`: delay_linearisation.py) and a new time limit for all further solves."""
        self._linear.clock = clock
        at_hand = self.joint_lp.at_hand
        self._matrix.most[at_hand] = self.joint_lp.share * left_s
        self._linear.limit(at_hand, self.joint_lp.share * left_s)

    def _bound(self, duals: Floats, box: Box) -> tuple[float, Floats, Floats]:
        """The lower bound that duals prove, the same per choice if it is made, and the reduced costs of the counts.

        Every column takes the cheaper end of its range; each operator has one choice and one y.
        """
        joint_lp, weights = self.joint_lp, self._matrix.signed(duals)
        left, least, most = self._matrix.left(weights), np.zeros(len(self._matrix.most)), self._matrix.most.copy()
        counts = joint_lp.integer_counts.columns
        least[counts], most[counts] = box.least, box.most
        served = np.where(joint_lp.open & box.allowed[:, None], left[joint_lp.served], math.inf).min(axis=1)
        made = left[joint_lp.chosen] + served  # inf if not allowed
        best = np.full(len(joint_lp.network.names), math.inf)
        np.minimum.at(best, self.kinds.owner, made)
        reduced = left[counts]
        left[joint_lp.chosen] = 0.0
        left[joint_lp.served[joint_lp.open]] = 0.0
        ends = np.where(left < 0.0, most, least)
        bound = self._matrix.sides(weights) + float(left[left != 0.0] @ ends[left != 0.0]) + float(best.sum())
        return bound, bound + made - best[self.kinds.owner], reduced

    def _point(self, optimum: Optimum, box: Box) -> Point:
        joint_lp, values = self.joint_lp, optimum.values
        integer_counts, chosen = joint_lp.integer_counts, values[joint_lp.chosen]
        served = np.where(joint_lp.open, np.maximum(values[joint_lp.served], 0.0), 0.0)
        paid = values[integer_counts.columns[: integer_counts.pools]]
        counted = np.clip(integer_counts.needed(paid, chosen, served), box.least, box.most)
        bound, forced, reduced = self._bound(optimum.duals, box)
        scarcity = -optimum.duals[joint_lp.held]
        return Point(box, bound, chosen, counted, values, served, scarcity, forced, reduced)
