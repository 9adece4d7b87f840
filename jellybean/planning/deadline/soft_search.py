"""The plan of least cost and penalties, where p99 latencies above soft targets count.

Branch and bound over the p99 latencies of the workflows with soft targets. A box is a range of each of them; it is
divided by the cheapest plan found for a hard target at its upper corner. Bounds on cost often leave queues out and
then stay far below what plans in time cost, so boxes are chosen by the estimate that no plan for a target costs less
than the one found for it. The certificate is of the bounds alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from jellybean.quantities import DURATION, format_quantity, parse_quantity

TOLERANCE = 0.005  # relative: boxes that save no more are left; less asks for more plans in time
PRECISION = 0.05  # relative: narrower ranges are not divided, as p99s of one plan with other seeds differ that much
# Each target asks for a plan in time, which takes seconds; after so many the certificate states the gap.
MOST_TARGETS, MOST_PER_FURTHER_WORKFLOW = 10, 4
DIGITS = 4  # of targets that are tried

PlannedT = TypeVar("PlannedT")
Targets = Mapping[str, float]  # workflow -> a p99 latency in seconds
Vector = tuple[float, ...]  # the same in the order of the search's workflows; inf: any


@dataclass(frozen=True, slots=True)
class Candidate(Generic[PlannedT]):
    """A plan and its p99 latencies by workflow; those that it leaves out have none.

    `cost_usd_per_h`: all that it counts but for its p99 latencies. `bound_usd_per_h`: a lower bound on that of all
    plans for the targets that it was sought for.
    """

    cost_usd_per_h: float
    bound_usd_per_h: float
    p99_s: Targets
    planned: PlannedT


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No plan for a target. `bound_usd_per_h`: on the cost of those that may exist; `out_of_time`: time ended."""

    bound_usd_per_h: float = 0.0
    out_of_time: bool = False


PlanInTime = Callable[[Targets], "Candidate[PlannedT] | NoPlan"]  # the cheapest plan for hard p99 targets


@dataclass(frozen=True, slots=True)
class SoftTarget:
    """A p99 latency, and what each second above it counts."""

    p99_s: float
    usd_per_h_per_s: float

    def penalty(self, p99_s: float) -> float:
        """USD per hour for a p99 latency."""
        return self.usd_per_h_per_s * max(0.0, p99_s - self.p99_s)


@dataclass(frozen=True, slots=True)
class _Box:
    """Plans whose p99 latencies are above `low_s` and at most `high_s`. `is_open`: a target inside it may be tried.

    `cost_bound`: proven; `estimate`: the cost of the plan found for the least targets tried that the box is within,
    and `p99_s` that plan's latencies. `is_above_refused`: no plan was found just below it.
    """

    low_s: Vector
    high_s: Vector
    cost_bound: float
    estimate: float
    p99_s: Vector
    is_open: bool = True
    is_above_refused: bool = False

    def is_within(self, corner_s: Vector) -> bool:
        """True if all its plans meet the targets."""
        return _is_below(self.high_s, corner_s)

    def cut_at(self, number: int, border_s: float) -> tuple[_Box, _Box]:
        """The parts below and above a latency of one workflow."""
        low, high = list(self.low_s), list(self.high_s)
        low[number] = high[number] = border_s
        return replace(self, high_s=tuple(high)), replace(self, low_s=tuple(low))


@dataclass(frozen=True, slots=True)
class SoftOutcome(Generic[PlannedT]):
    """The best candidate, with a lower bound on cost and penalties of every plan, and the targets that were tried.

    `refused`: the last ones that no plan was found for.
    """

    best: Candidate[PlannedT]
    bound_usd_per_h: float
    tried: tuple[Targets, ...]
    refused: Targets | None
    out_of_time: bool


class SoftSearch(Generic[PlannedT]):
    """The search from the cheapest plan of all on. `least_s`: proven to be below every plan's p99 latency.

    A plan that is faster refutes `least_s`: then nothing is known of plans below it.
    """

    def __init__(
        self,
        targets: Mapping[str, SoftTarget],
        cheapest: Candidate[PlannedT],
        plan_in_time: PlanInTime[PlannedT],
        least_s: Targets | None = None,
        tolerance: float = TOLERANCE,
        most: int | None = None,
        precision: float = PRECISION,
    ) -> None:
        self._targets, self._plan, self._tolerance, self._precision = targets, plan_in_time, tolerance, precision
        further = MOST_PER_FURTHER_WORKFLOW * (len(targets) - 1)
        self.most = MOST_TARGETS + further if most is None else most
        self._soft = tuple(targets.values())
        self.best = cheapest
        self._known: list[Candidate[PlannedT]] = []
        self._tried: list[Targets] = []
        self._refused: Targets | None = None
        self._out_of_time = False
        self._least_s = tuple((least_s or {}).get(name, 0.0) for name in targets)
        anything = (math.inf,) * len(targets)
        known = cheapest.bound_usd_per_h, cheapest.cost_usd_per_h, self._vector(cheapest)
        self._boxes = [_Box(self._least_s, anything, *known)]
        self._accept(anything, cheapest)

    def value(self, candidate: Candidate[PlannedT]) -> float:
        """Cost and penalties of a candidate in USD per hour."""
        return candidate.cost_usd_per_h + self._penalty(self._vector(candidate))

    def offer(self, candidate: Candidate[PlannedT]) -> None:
        """Record a plan that was seen while another one was sought."""
        self._known.append(candidate)
        self.best = min(self.best, candidate, key=self.value)

    @property
    def ranked(self) -> Sequence[Candidate[PlannedT]]:
        """All plans that were seen, the best first."""
        return sorted(self._known, key=self.value)

    @property
    def tried(self) -> int:
        """How many targets were tried."""
        return len(self._tried)

    def run(self) -> SoftOutcome[PlannedT]:
        """Divide the most promising box until none can save more than the tolerance, or targets or time end."""
        while len(self._tried) < self.most and not self._out_of_time:
            chosen = self._most_promising()
            if chosen is None:
                break
            self._divide(chosen)
        bound = min(self.value(self.best), *map(self._bound, self._boxes))
        return SoftOutcome(self.best, bound, tuple(self._tried), self._refused, self._out_of_time)

    def _vector(self, candidate: Candidate[PlannedT]) -> Vector:
        return tuple(candidate.p99_s.get(name, 0.0) for name in self._targets)

    def _penalty(self, p99_s: Vector) -> float:
        return sum(soft.penalty(seconds) for soft, seconds in zip(self._soft, p99_s, strict=True))

    def _bound(self, box: _Box) -> float:
        return box.cost_bound + self._penalty(box.low_s)

    def _estimate(self, box: _Box) -> float:
        return box.estimate + self._penalty(box.low_s)

    @property
    def _worth_trying(self) -> float:
        """The value below which a plan saves more than the tolerance."""
        return self.value(self.best) * (1.0 - self._tolerance)

    def _most_promising(self) -> _Box | None:
        """The open box of the least estimate of cost and penalties; None if that saves too little."""
        boxes = [box for box in self._boxes if box.is_open and self._estimate(box) < self._worth_trying]
        return min(boxes, key=lambda box: (self._estimate(box), box.low_s), default=None)

    def _divide(self, chosen: _Box) -> None:
        """Try targets inside the box, and replace it by what is known of plans that meet them and of the others."""
        corner_s = self._corner_inside(chosen)
        if corner_s is None:
            self._boxes = [replace(box, is_open=False) if box is chosen else box for box in self._boxes]
            return
        asked = {name: one for name, one in zip(self._targets, corner_s, strict=True) if one < math.inf}
        self._tried.append(asked)
        result = self._plan(asked)
        if isinstance(result, NoPlan) and result.out_of_time:
            self._out_of_time = True
            return
        self._boxes = [part for box in self._boxes for part in self._parts(box, corner_s, box is chosen)]
        if isinstance(result, NoPlan):
            self._refuse(corner_s, result)
        else:
            self._accept(corner_s, result)

    def _parts(self, box: _Box, corner_s: Vector, is_chosen: bool) -> Sequence[_Box]:
        """A box divided by the corner that is tried inside it; others stay as they are."""
        parts: list[_Box] = []
        for number, border_s in enumerate(corner_s if is_chosen else ()):
            if box.low_s[number] < border_s < box.high_s[number]:
                box, above = box.cut_at(number, border_s)
                parts.append(above)
        return [*parts, box]

    def _corner_inside(self, box: _Box) -> Vector | None:
        """The soft targets for what may meet them; then the latency of the best plan known, or the middle of the box.

        Where nothing was found up to its lower end, all that may save anything. Of several workflows that whose
        penalty may fall the most; None if none does.
        """
        numbers = range(len(self._soft))
        late = [number for number in numbers if box.p99_s[number] > self._soft[number].p99_s]
        crossed = [number for number in late if box.low_s[number] < self._soft[number].p99_s < box.high_s[number]]
        if crossed:
            return self._with(box.high_s, {number: self._soft[number].p99_s for number in crossed})
        if any(box.p99_s[number] > box.high_s[number] for number in numbers):
            return box.high_s
        number = max(numbers, key=lambda number: self._saving(box, number))
        low_s, high_s = box.low_s[number], min(box.high_s[number], box.p99_s[number])
        if self._saving(box, number) <= 0.0 or high_s - low_s <= self._precision * high_s:
            return None
        known_s = self._vector(self.best)[number]
        if low_s < known_s < high_s and _is_below(self._vector(self.best), box.high_s):
            return self._with(box.high_s, {number: known_s})
        if box.is_above_refused and low_s < (last_s := self._last_s(box, number)) < high_s:
            return self._with(box.high_s, {number: last_s})
        middle_s = parse_quantity(DURATION, format_quantity(DURATION, 0.5 * (low_s + high_s), DIGITS))
        return self._with(box.high_s, {number: middle_s}) if low_s < middle_s < high_s else None

    def _saving(self, box: _Box, number: int) -> float:
        """The penalty of one workflow that plans of the box may save over the one that is known."""
        soft, high_s = self._soft[number], min(box.high_s[number], box.p99_s[number])
        return soft.penalty(high_s) - soft.penalty(box.low_s[number])

    def _last_s(self, box: _Box, number: int) -> float:
        """The latency of one workflow above which no plan of the box saves more than the tolerance, by its estimate."""
        soft, spare = self._soft[number], self._worth_trying - self._estimate(box)
        return max(box.low_s[number], soft.p99_s) + spare / soft.usd_per_h_per_s

    @staticmethod
    def _with(corner_s: Vector, changed: Mapping[int, float]) -> Vector:
        return tuple(changed.get(number, seconds) for number, seconds in enumerate(corner_s))

    def _refuse(self, corner_s: Vector, refusal: NoPlan) -> None:
        """Close the boxes in which no plan was found. Only a bound says that there is none."""
        self._refused = dict(zip(self._targets, corner_s, strict=True))
        borders = [number for number, soft in enumerate(self._soft) if soft.p99_s < corner_s[number] < math.inf]
        self._boxes = [
            replace(_raised(box, refusal.bound_usd_per_h), is_open=False)
            if box.is_within(corner_s)
            else replace(
                box,
                is_above_refused=box.is_above_refused
                or any(box.low_s[number] == corner_s[number] for number in borders),
            )
            for box in self._boxes
        ]

    def _accept(self, corner_s: Vector, candidate: Candidate[PlannedT]) -> None:
        """Raise bounds and estimates within the targets, and close what the best plan known for them answers."""
        self.offer(candidate)
        in_time = [one for one in self._known if _is_below(self._vector(one), corner_s)]
        answer = min((*in_time, candidate), key=lambda one: (one.cost_usd_per_h, self.value(one)))
        p99_s = tuple(map(min, self._vector(answer), corner_s))
        if not _is_below(self._least_s, p99_s):
            self._boxes = [replace(box, low_s=self._refuted(box.low_s, p99_s)) for box in self._boxes]
        boxes: list[_Box] = []
        for box in self._boxes:
            if not box.is_within(corner_s):
                boxes.append(box)
                continue
            raised = _raised(box, candidate.bound_usd_per_h)
            if answer.cost_usd_per_h >= box.estimate:
                raised = replace(raised, estimate=answer.cost_usd_per_h, p99_s=p99_s, is_above_refused=False)
            boxes += self._answered(raised, p99_s)
        self._boxes = boxes

    def _refuted(self, low_s: Vector, p99_s: Vector) -> Vector:
        """Lower ends of a box, without those that a plan has shown to be none."""
        known = zip(low_s, self._least_s, p99_s, strict=True)
        return tuple(0.0 if low == least and own < least else low for low, least, own in known)

    def _answered(self, box: _Box, p99_s: Vector) -> Sequence[_Box]:
        """The parts of a box below the p99 latencies of the plan found for it, and what that plan answers, closed."""
        late = [
            (number, own_s)
            for number, (own_s, soft) in enumerate(zip(p99_s, self._soft, strict=True))
            if own_s > max(soft.p99_s, box.low_s[number])
        ]
        if any(own_s >= box.high_s[number] for number, own_s in late):
            return [box]
        parts: list[_Box] = []
        for number, own_s in late:
            below, box = box.cut_at(number, own_s)
            parts.append(below)
        return [*parts, replace(box, is_open=False)]


def _raised(box: _Box, bound_usd_per_h: float) -> _Box:
    return replace(box, cost_bound=max(box.cost_bound, bound_usd_per_h))


def _is_below(vector: Vector, other: Vector) -> bool:
    """True if no latency is above the other's."""
    return all(own <= most for own, most in zip(vector, other, strict=True))
