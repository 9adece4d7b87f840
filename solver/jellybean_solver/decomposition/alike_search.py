"""The cheapest plans of alike workflows at given prices: bounds and good selections of all at once.

Each workflow's boxes are cut until its bound is near the cost of its best plan. Plans come from the exact program of a
selection (alike_program.py), of which a few are tried: those that the bounds' multipliers rate best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.alike_bounds import AlikeBounds, Boxes, Climbed, joined
from jellybean_solver.decomposition.alike_parts import AlikeParts
from jellybean_solver.decomposition.alike_program import AlikeProgram
from jellybean_solver.decomposition.local_plan import LocalPlan
from jellybean_solver.decomposition.local_program import Answer, LocalProgram
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.outcome import Clock

FIRST_STEPS, AGAIN_STEPS = 200, 100  # of the multipliers of a whole part: at the first prices, at later ones
STEPS = 50  # of those of smaller boxes
MOST_CUTS = 20  # times that a part's cheapest box is cut in two
UNDECIDED = 0.02  # of the average: numbers of workers that are nearer to a whole one are not cut
LEAST_SPREAD = 1e-3  # of an operator that has one variant in the average, but may have others
FIRST_NEW, NEW = 3, 1  # most selections of a part that are tried: at the first bounds, after each cut


@dataclass
class _State:
    """What is known of each part of the group: its best plan, what that costs, and the selections tried."""

    plan: list[LocalPlan | None]
    cost: Floats  # k; inf without a plan
    tried: list[set[bytes]]


class AlikeSearch:
    """Answers for a group of parts. `gap`: relative, of each part; `local_gap`: of exact programs.

    `clock`: once it ends, no box is cut any more, and each part has the bound of its boxes.
    """

    def __init__(self, split: Split, parts: AlikeParts, gap: float, local_gap: float, clock: Clock = Clock()) -> None:
        self.split, self.parts, self._gap, self._local_gap, self._clock = split, parts, gap, local_gap, clock
        self._program = AlikeProgram(split, parts, local_gap)
        self._first: Boxes | None = None  # the last prices' multipliers
        self._best: list[Indices | None] = [None] * len(parts.numbers)  # the last prices' selections

    @property
    def numbers(self) -> tuple[int, ...]:
        """The parts."""
        return self.parts.numbers

    def solve(self, prices: Prices) -> list[Answer]:
        """An answer for each part of the group, in its order."""
        bounds = AlikeBounds(self.parts, prices)
        count = len(self.parts.numbers)
        state = _State([None] * count, np.full(count, math.inf), [set() for _ in range(count)])
        self._price([(k, best) for k, best in enumerate(self._best) if best is not None], prices, state)
        first, steps = (bounds.whole(), FIRST_STEPS) if self._first is None else (self._first, AGAIN_STEPS)
        found = bounds.climb(first, steps)
        self._first = found.boxes
        self._try(found, prices, state, FIRST_NEW if self._clock.left() != 0.0 else NEW)
        open_, bound = _rows(found, np.arange(count)), found.bound  # the first boxes stay whole for the next prices
        done = np.full(count, math.inf)  # per part the least bound of what is not looked at any more
        for _ in range(MOST_CUTS):
            if self._clock.left() == 0.0:
                break
            goal = state.cost * (1.0 - self._gap)
            near = np.minimum(done, _least(open_, bound, count)) >= goal
            own = open_.boxes.part
            worth = ~near[own] & (bound < goal[own])
            np.minimum.at(done, own[~worth], bound[~worth])
            rows = np.flatnonzero(worth)
            cut, kept = self._cheapest(open_, bound, rows)
            np.minimum.at(done, own, _close(open_, goal))
            halves = _halves(open_, cut)
            if halves is None:
                np.minimum.at(done, own[rows], bound[rows])
                open_, bound = _rows(open_, np.zeros(0, np.int64)), bound[:0]
                break
            boxes, above, uncut = halves
            np.minimum.at(done, own[uncut], bound[uncut])
            climbed = bounds.climb(boxes, STEPS, state.cost[boxes.part], self._gap)
            self._try(climbed, prices, state, NEW)
            new = np.maximum(climbed.bound, bound[above])
            open_, bound = _both(_rows(open_, kept), climbed), np.concatenate([bound[kept], new])
        return self._answers(state, np.minimum(done, _least(open_, bound, count)), prices)

    def _answers(self, state: _State, least: Floats, prices: Prices) -> list[Answer]:
        """Each part's best plan with its bound; the answer of the whole program where no plan is known."""
        answers = []
        for number, plan, bound, cost in zip(
            self.parts.numbers, state.plan, least.tolist(), state.cost.tolist(), strict=True
        ):
            if plan is None:
                answers.append(LocalProgram(self.split, number, self._local_gap).solve(prices))
            else:
                answers.append(Answer(plan, min(bound, cost)))
        return answers

    def _try(self, found: Climbed, prices: Prices, state: _State, new: int) -> None:
        """Find the plans of at most `new` of each part's selections: those that are estimated to be the cheapest."""
        part = found.boxes.part
        most = state.cost * (1.0 - self._gap / 4.0)
        taken = np.zeros(len(most), np.int64)
        rows, windows = np.nonzero(found.estimate < most[part][:, None])
        asked = []
        for at in np.argsort(found.estimate[rows, windows], kind="stable").tolist():
            row, k = rows[at], int(part[rows[at]])
            selection = found.selection[row, windows[at]]
            if taken[k] < new and selection.tobytes() not in state.tried[k]:
                taken[k] += 1
                state.tried[k].add(selection.tobytes())
                asked.append((k, selection))
        self._price(asked, prices, state)

    def _price(self, asked: Sequence[tuple[int, Indices]], prices: Prices, state: _State) -> None:
        """Find the cheapest plans with these selections, and keep those that are the best of their part."""
        for k, selection in asked:
            if self.parts.roomy[k]:
                plan = self._program.plan(k, selection, prices, float(state.cost[k]))
            else:
                variants = tuple(own[v] for own, v in zip(self.parts.variants, selection.tolist(), strict=True))
                program = LocalProgram(self.split, self.parts.numbers[k], self._local_gap, variants)
                plan = program.solve(prices).plan
            if plan is not None and plan.cost_at(prices) < state.cost[k]:
                state.cost[k], state.plan[k], self._best[k] = plan.cost_at(prices), plan, selection

    def _cheapest(self, open_: Climbed, bound: Floats, rows: Indices) -> tuple[Indices, Indices]:
        """Of these boxes: the one with the least bound of each part, and the others."""
        order = rows[np.argsort(bound[rows], kind="stable")]
        _, first = np.unique(open_.boxes.part[order], return_index=True)
        cut = order[np.sort(first)]
        return cut, np.setdiff1d(rows, cut)


def _close(open_: Climbed, goal: Floats) -> Floats:
    """Close the variants with which a box has no plan below the goal of its part; per box the least bound of these."""
    hopeless = open_.boxes.allowed & (open_.forced >= goal[open_.boxes.part][:, None, None])
    open_.boxes.allowed[hopeless] = False
    least: Floats = np.where(hopeless, open_.forced, math.inf).min(axis=(1, 2))
    return least


def _least(open_: Climbed, bound: Floats, count: int) -> Floats:
    least = np.full(count, math.inf)
    np.minimum.at(least, open_.boxes.part, bound)
    return least


def _rows(found: Climbed, rows: Indices) -> Climbed:
    return Climbed(
        found.boxes.take(rows),
        found.bound[rows],
        found.forced[rows],
        found.variants[rows],
        found.workers[rows],
        found.selection[rows],
        found.estimate[rows],
    )


def _both(one: Climbed, other: Climbed) -> Climbed:
    """The boxes of both; their selections were tried and are left out."""
    count = len(one.bound) + len(other.bound)
    return Climbed(
        joined([one.boxes, other.boxes]),
        np.concatenate([one.bound, other.bound]),
        np.concatenate([one.forced, other.forced]),
        np.concatenate([one.variants, other.variants]),
        np.concatenate([one.workers, other.workers]),
        np.zeros((count, 0, one.selection.shape[2]), np.int64),
        np.zeros((count, 0)),
    )


def _halves(open_: Climbed, cut: Indices) -> tuple[Boxes, Indices, Indices] | None:
    """The halves of these boxes, per half the box it comes from, and the boxes that nothing is left to cut in.

    A box is cut at the number of workers that is least decided, else between the variants of an operator. None if there
    is no half.
    """
    if not len(cut):
        return None
    boxes = open_.boxes.take(cut)
    workers, variants = open_.workers[cut], open_.variants[cut]
    room = boxes.most > boxes.least
    split_at = np.clip(np.floor(workers), boxes.least, np.maximum(boxes.most - 1.0, boxes.least))
    undecided = np.where(room, np.minimum(workers - boxes.least, boxes.most - workers), 0.0)
    rows = np.arange(len(cut))
    slots = undecided.shape[1]
    slot = undecided.argmax(axis=1) if slots else np.zeros(len(cut), np.int64)
    most_workers = undecided[rows, slot] if slots else np.zeros(len(cut))
    several = boxes.allowed.sum(axis=2) > 1
    within = np.where(boxes.allowed, variants, 0.0)
    spread = np.where(several, 1.0 - within.max(axis=2) / np.maximum(within.sum(axis=2), 1e-9) + LEAST_SPREAD, 0.0)
    operator = spread.argmax(axis=1)
    most_variants = spread[rows, operator]
    by_workers = most_workers > UNDECIDED
    by_variants = ~by_workers & (most_variants > 0.0)
    pieces: list[Boxes] = []
    origin: list[Indices] = []
    at = np.flatnonzero(by_workers)
    if len(at):
        low, high = boxes.take(at), boxes.take(at)
        where = slot[at]
        value = split_at[at, where]
        low.most[np.arange(len(at)), where] = value
        high.least[np.arange(len(at)), where] = value + 1.0
        pieces += [low, high]
        origin += [cut[at], cut[at]]
    at = np.flatnonzero(by_variants)
    if len(at):
        low, high = boxes.take(at), boxes.take(at)
        own = operator[at]
        chosen = np.where(low.allowed[np.arange(len(at)), own], within[at, own], -1.0).argmax(axis=1)
        here = np.arange(len(at))
        mask = np.zeros((len(at), variants.shape[2]), bool)
        mask[here, chosen] = True
        low.allowed[here, own] &= mask
        high.allowed[here, own] &= ~mask
        pieces += [low, high]
        origin += [cut[at], cut[at]]
    uncut = cut[np.flatnonzero(~by_workers & ~by_variants)]
    if not pieces:
        return None
    return joined(pieces), np.concatenate(origin), uncut
