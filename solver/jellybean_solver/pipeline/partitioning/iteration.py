"""The partition and placement of least latency of one whole iteration: warm-up, steady phase and end (DAPPLE).

Fan et al. 2021, section 4. With M micro-batches the stage that decides, the pivot Q, makes an iteration take
the forwards up to Q, (M - 1) (F_Q + B_Q), and an end: the slowest of the stages' last backwards and gradient sums. Here
the pivot is the stage that makes it longest, so no iteration of the schedule can be shorter. What crosses a cut is a
stage of its own. Replicas share a micro-batch.

The program goes from the last stage to the first and keeps, for each cut and each state of the machines, what no other
partition of the rest beats in all of three figures; it is exact for the three placement policies of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.cut_narrowing import Outlines, spread
from jellybean_solver.pipeline.partitioning.device_memory import DeviceLimit
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.spans import Floats, Spans
from jellybean_solver.pipeline.partitioning.stages import Level, Stage

WIDER = 1.2  # what is looked at first: iterations up to so many times as long as without any bubble; then more
MOST_WIDER = 100.0  # then of any length
MOST_STATES = 6_000  # partitions of a rest that are gone on from; then the best of fewer cuts is the answer
FEWER_CUTS = (8, 15, 30, 60)  # looked at first


Bytes = TypeVar("Bytes", float, Floats)


class TooManyError(Exception):
    """More partial partitions than are gone on from."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Of the stages from some cut on; of all figures less is better, whatever comes before.

    `steady_s`: the longest of the backwards and forwards up to a pivot and its steady phase. `whole_s`: the longest
    iteration. `late_s`: how long after the first of these backwards' end the last gradient sum ends. `stages`: their
    number, where it matters to memory.
    """

    steady_s: float = -math.inf
    whole_s: float = -math.inf
    late_s: float = -math.inf
    stages: int = 0

    def behind(self, forward_s: float, backward_s: float, sum_s: float, microbatches: int, counted: int = 0) -> Tail:
        """With one stage more before them; `counted`: 1 where their number matters."""
        both = forward_s + backward_s
        steady = max(microbatches * both, both + self.steady_s)
        own_pivot = forward_s + (microbatches - 1) * both + self.late_s
        whole = max(forward_s + self.whole_s, steady + sum_s, own_pivot)
        return Tail(steady, whole, max(sum_s, self.late_s - backward_s), self.stages + counted)

    def beats(self, other: Tail) -> bool:
        """Whether it is as good in all figures."""
        return (
            self.steady_s <= other.steady_s
            and self.whole_s <= other.whole_s
            and self.late_s <= other.late_s
            and self.stages <= other.stages
        )


@dataclass(frozen=True, slots=True)
class _Machines:
    """Free devices of each machine and whether the stage after the next one has some there, in descending order."""

    free: tuple[tuple[int, bool], ...]
    replicas: int = 0  # of that stage

    def taken(self, counts: Sequence[int]) -> _Machines:
        left = [(free - count, count > 0) for (free, _), count in zip(self.free, counts, strict=True)]
        return _Machines(tuple(sorted(left, reverse=True)), sum(counts))

    def together(self, counts: Sequence[int]) -> bool:
        """Whether a stage placed so and the one behind it stand in one machine."""
        return sum(count > 0 or beside for (_, beside), count in zip(self.free, counts, strict=True)) == 1


@dataclass(frozen=True, slots=True)
class _Rest:
    """A partition of the layers from a cut on; `then` is what follows its first stage, which ends at `end`."""

    tail: Tail
    machines: _Machines
    end: int
    replicas: int
    then: _Rest | None


def places(free: Sequence[int], most: int, replicas: int) -> Iterator[tuple[int, ...]]:
    """Devices taken of each machine by the three policies, each way once; machines have `most` when fresh."""
    if sum(free) < replicas:
        return
    machines = range(len(free))
    fresh = [m for m in machines if free[m] == most]
    used = [m for m in machines if 0 < free[m] < most]
    found = {_in_order(free, [*fresh, *used], replicas), _in_order(free, [*used, *fresh], replicas)}
    found.add(_evenly(free, [used, fresh] if used else [fresh], replicas))
    yield from sorted(found)


def _in_order(free: Sequence[int], order: Sequence[int], replicas: int) -> tuple[int, ...]:
    counts = [0] * len(free)
    for machine in order:
        counts[machine] = min(free[machine], replicas)
        replicas -= counts[machine]
    return tuple(counts)


def _evenly(free: Sequence[int], groups: Sequence[Sequence[int]], replicas: int) -> tuple[int, ...]:
    counts = [0] * len(free)
    for group in groups:
        while replicas and any(counts[m] < free[m] for m in group):
            for machine in group:
                if replicas and counts[machine] < free[machine]:
                    counts[machine] += 1
                    replicas -= 1
    return tuple(counts)


class Iteration:
    """The program for one graph, cluster and number of micro-batches."""

    def __init__(
        self,
        spans: Spans,
        levels: Sequence[Level],
        microbatches: int,
        most_states: float = MOST_STATES,
        limit: DeviceLimit | None = None,
    ) -> None:
        if len(levels) > 2:
            raise SolverError("dapple has two levels: devices of a machine, and machines")
        self.spans, self.microbatches, self.limit = spans, microbatches, limit
        self.states, self.most_states = 0, most_states
        self.devices, self.machines = levels[0].count, levels[1].count if len(levels) > 1 else 1
        self.inner, self.outer = levels[0].bandwidth, levels[-1].bandwidth
        self.workers = self.devices * self.machines
        self.forward_s, self.backward_s = spans.forward_s.tolist(), spans.backward_s.tolist()
        self.parameters, self.crossing = spans.parameters.tolist(), spans.crossing.tolist()
        self.forwards = spans.forward_s
        self.boths, self.sums = spans.both_s, spans.parameters
        self.begins = [[k for k in range(spans.size) if not spans.outside[k, end]] for end in range(spans.size)]

    def solve(self, known_s: float = math.inf) -> tuple[float, tuple[Stage, ...]]:
        """Seconds of an iteration, and the stages; infinite where none is as fast as one that is known."""
        least = self.microbatches * (self.forward_s[0][-1] + self.backward_s[0][-1]) / self.workers
        allowed = known_s if math.isfinite(known_s) else least * WIDER
        while (best := self._within(allowed)) is None and math.isinf(known_s) and allowed < math.inf:
            allowed = allowed * WIDER if 0 < allowed < MOST_WIDER * least else math.inf
        return (best.tail.whole_s, self._stages(best)) if best is not None else (math.inf, ())

    def _within(self, allowed_s: float) -> _Rest | None:
        """The best of the partitions that take no longer than that, if there are any."""
        fresh = _Machines(((self.devices, False),) * self.machines)
        last = self.spans.size - 1
        rests: list[dict[_Machines, list[_Rest]]] = [{} for _ in range(self.spans.size)]
        rests[last][fresh] = [_Rest(Tail(), fresh, last, 0, None)]
        for end in range(last, 0, -1):
            for fronts in rests[end].values():
                for rest in fronts:
                    self.states += 1
                    self._grow(rest, end, allowed_s, rests)
            if self.states > self.most_states:
                raise TooManyError
        found = [rest for fronts in rests[0].values() for rest in fronts]
        return min(found, key=lambda rest: rest.tail.whole_s, default=None)

    def _grow(self, rest: _Rest, end: int, allowed_s: float, rests: list[dict[_Machines, list[_Rest]]]) -> None:
        """All stages that may end at a cut, before what follows there."""
        free = [count for count, _ in rest.machines.free]
        for replicas in range(1, sum(free) + 1):
            for counts in places(free, self.devices, replicas):
                machines = rest.machines.taken(counts)
                after = self._across(rest, end, counts)
                one_machine = sum(count > 0 for count in counts) == 1
                left = sum(free) - replicas
                for start in self._fitting(
                    self._hopeful(after, end, replicas, one_machine, left, allowed_s), end, replicas, after.stages
                ):
                    tail = self._before(after, start, end, replicas, one_machine)
                    if start or tail.whole_s <= allowed_s * (1 + 1e-9):
                        _keep(rests[start].setdefault(machines, []), _Rest(tail, machines, end, replicas, rest))

    def _hopeful(
        self, after: Tail, end: int, replicas: int, one_machine: bool, left: int, allowed_s: float
    ) -> list[int]:
        """Where a stage may begin so that those before it, which take at least their work over all workers left, and
        it can keep within the time."""
        starts = self.begins[end] if left else self.begins[end][:1]
        forward_s, both_s = self.forwards[starts, end] / replicas, self.boths[starts, end] / replicas
        share = max(left, 1)
        before_s, rounds = self.boths[0, starts] / share, self.microbatches
        steady_s = np.maximum(rounds * both_s, both_s + after.steady_s)
        sum_s = self._sum_s(self.sums[starts, end], replicas, one_machine)
        whole_s = np.maximum(forward_s + after.whole_s, steady_s + sum_s) + self.forwards[0, starts] / share
        whole_s = np.maximum(whole_s, steady_s + before_s)
        longest_s = np.maximum(whole_s, rounds * before_s)
        return [starts[i] for i in np.flatnonzero(longest_s <= allowed_s * (1 + 1e-9))]

    def _fitting(self, starts: list[int], end: int, replicas: int, behind: int) -> list[int]:
        """Those with which a stage fits into its devices' memory; each has its share of a micro-batch."""
        if self.limit is None or not starts:
            return starts
        flying, share = self.limit.in_pipeline(behind), self.spans.activations[starts, end] / replicas
        taken = self.limit.taken(self.sums[starts, end], share, flying)
        return [starts[i] for i in np.flatnonzero(taken <= self.limit.limit_bytes * (1 + 1e-12))]

    def _across(self, rest: _Rest, cut: int, counts: Sequence[int]) -> Tail:
        """What follows a cut, with what is sent over it before."""
        if not rest.replicas:
            return rest.tail
        bandwidth = self.inner if rest.machines.together(counts) else self.outer
        sent_s = self.crossing[cut] / (bandwidth * rest.replicas)
        return rest.tail.behind(sent_s, sent_s, -math.inf, self.microbatches)

    def _before(self, after: Tail, start: int, end: int, replicas: int, one_machine: bool) -> Tail:
        sum_s = self._sum_s(self.parameters[start][end], replicas, one_machine)
        forward_s, backward_s = self.forward_s[start][end] / replicas, self.backward_s[start][end] / replicas
        return after.behind(forward_s, backward_s, sum_s, self.microbatches, int(self.limit is not None))

    def _sum_s(self, parameters: Bytes, replicas: int, one_machine: bool) -> Bytes:
        """Of the gradients of a stage's replicas."""
        return 2.0 * (replicas - 1) * parameters / ((self.inner if one_machine else self.outer) * replicas)

    def _stages(self, rest: _Rest) -> tuple[Stage, ...]:
        found, start, at = [], 0, rest
        while at.then is not None:
            both = self.forward_s[start][at.end] + self.backward_s[start][at.end]
            found.append(Stage(self.spans.layers(start, at.end), at.replicas, both / at.replicas))
            start, at = at.end, at.then
        return tuple(found)


def least_iteration(
    graph: LayerGraph,
    cuts: Sequence[int],
    levels: Sequence[Level],
    microbatches: int,
    limit: DeviceLimit | None = None,
) -> tuple[float, tuple[Stage, ...], int]:
    """Seconds (infinite where nothing fits into memory), stages and how many cuts were looked at.

    Few cuts come first, then more, while not too many partitions may be faster than the best so far.
    """
    spans = Spans(graph, cuts)
    best_s, looked = math.inf, 0
    stages: tuple[Stage, ...] = ()
    for most in (*(few for few in FEWER_CUTS if few < spans.size), spans.size):
        own = spans if most == spans.size else Spans(graph, spread(Outlines(graph, cuts), most))
        program = Iteration(own, levels, microbatches, MOST_STATES if looked else math.inf, limit)
        try:
            found_s, found = program.solve(best_s)
        except TooManyError:
            break
        looked = own.size
        if found_s < best_s:
            best_s, stages = found_s, found
    return best_s, stages, looked


def _keep(front: list[_Rest], new: _Rest) -> None:
    """Into a front of partitions of which none beats another."""
    if any(one.tail.beats(new.tail) for one in front):
        return
    front[:] = [one for one in front if not new.tail.beats(one.tail)]
    front.append(new)
