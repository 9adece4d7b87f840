"""DAPPLE's planner: partition and placement of least latency of one synchronous iteration.

Fan et al. 2021, section 4. With M micro-batches and pivot stage Q, an iteration takes the forwards up to Q (warm-up),
(M - 1) (F_Q + B_Q) (steady phase), and the slowest of the remaining backwards and gradient all-reduces (end). Here the
pivot is the stage that maximises this, so no iteration can be shorter. The transfer over a cut counts as a stage.
Replicas share each micro-batch.

The dynamic program runs from the last stage to the first. For each cut and each state of the machines it keeps the
partial partitions that are Pareto-optimal in three quantities (`TailLatency`); it is exact for the paper's three
placement policies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.collectives.closed_forms import RING
from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, Floats
from jellybean_solver.pipeline.partitioning.cut_pruning import CutCosts, spread_cuts
from jellybean_solver.pipeline.partitioning.cut_short import CutShortError, Found, check_time
from jellybean_solver.pipeline.partitioning.device_memory import MemoryLimit
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.settings import PartitionSettings
from jellybean_solver.pipeline.partitioning.stages import PartitionStage, TopologyLevel

# Upper bounds on the iteration time that are tried first: growth factor, largest multiple of a bubble-free iteration.
BOUND_GROWTH = 1.2
MAX_BOUND = 100.0

FloatOrArray = TypeVar("FloatOrArray", float, Floats)


class StateLimitError(Exception):
    """The dynamic program has expanded more partial partitions than allowed."""


@dataclass(frozen=True, slots=True)
class TailLatency:
    """Latency terms of a tail, the stages from a cut on. A tail smaller in all terms is better in any partition.

    `steady_s`: largest sum, over the pivots in the tail, of warm-up within the tail, steady phase and backwards.
    `whole_s`: the same with all-reduces, so the iteration if the tail were the whole pipeline. `late_s`: time from the
    end of the tail's last backward to the end of its last all-reduce. `stages`: counted only under a memory limit.
    """

    steady_s: float = -math.inf
    whole_s: float = -math.inf
    late_s: float = -math.inf
    stages: int = 0

    def prepend(
        self, forward_s: float, backward_s: float, all_reduce_s: float, microbatches: int, counted: int = 0
    ) -> TailLatency:
        """The tail with one more stage before it; `counted`: 1 if it counts as a stage, else 0.

        A transfer is a stage without an all-reduce (-inf).
        """
        compute_s = forward_s + backward_s
        steady_s = max(microbatches * compute_s, compute_s + self.steady_s)
        as_pivot_s = forward_s + (microbatches - 1) * compute_s + self.late_s
        whole_s = max(forward_s + self.whole_s, steady_s + all_reduce_s, as_pivot_s)
        return TailLatency(steady_s, whole_s, max(all_reduce_s, self.late_s - backward_s), self.stages + counted)

    def dominates(self, other: TailLatency) -> bool:
        """True if no term is larger than the other tail's."""
        return (
            self.steady_s <= other.steady_s
            and self.whole_s <= other.whole_s
            and self.late_s <= other.late_s
            and self.stages <= other.stages
        )


@dataclass(frozen=True, slots=True)
class _Machines:
    """`free`: per machine, free devices and True if the following stage uses it. `replicas`: of the following stage.

    Sorted in descending order, since machines are interchangeable.
    """

    free: tuple[tuple[int, bool], ...]
    replicas: int = 0

    def allocate(self, counts: Sequence[int]) -> _Machines:
        """The state after a stage takes `counts[i]` devices of machine i."""
        left = [(free - count, count > 0) for (free, _), count in zip(self.free, counts, strict=True)]
        return _Machines(tuple(sorted(left, reverse=True)), sum(counts))

    def on_one_machine(self, counts: Sequence[int]) -> bool:
        """True if a stage with these counts and the following stage are on the same single machine."""
        return sum(count > 0 or follows for (_, follows), count in zip(self.free, counts, strict=True)) == 1


@dataclass(frozen=True, slots=True)
class _PartialPartition:
    """A partition of the layers from a cut on: its first stage has `replicas` and ends at cut `end`, `rest` follows.

    `counts`: its replicas by machine, in the order that the machines have in `rest`.
    """

    tail: TailLatency
    machines: _Machines
    end: int
    replicas: int
    rest: _PartialPartition | None
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Allocation:
    """A stage's end cut and its number of devices, on one machine or several; `left` remain for earlier stages."""

    end: int
    replicas: int
    one_machine: bool
    left: int


def allocations(free: Sequence[int], capacity: int, replicas: int) -> Iterator[tuple[int, ...]]:
    """Devices taken of each machine under the three placement policies (section 4.2), without duplicates.

    The policies: fresh machines first, partly used machines first, scattered evenly. A machine is fresh if all its
    `capacity` devices are free; `free` has the free devices of each.
    """
    if sum(free) < replicas:
        return
    machines = range(len(free))
    fresh = [m for m in machines if free[m] == capacity]
    used = [m for m in machines if 0 < free[m] < capacity]
    policies = {_in_order(free, [*fresh, *used], replicas), _in_order(free, [*used, *fresh], replicas)}
    policies.add(_scattered(free, [used, fresh] if used else [fresh], replicas))
    yield from sorted(policies)


def _in_order(free: Sequence[int], order: Sequence[int], replicas: int) -> tuple[int, ...]:
    counts = [0] * len(free)
    for machine in order:
        counts[machine] = min(free[machine], replicas)
        replicas -= counts[machine]
    return tuple(counts)


def _scattered(free: Sequence[int], groups: Sequence[Sequence[int]], replicas: int) -> tuple[int, ...]:
    counts = [0] * len(free)
    for group in groups:
        while replicas and any(counts[m] < free[m] for m in group):
            for machine in group:
                if replicas and counts[machine] < free[machine]:
                    counts[machine] += 1
                    replicas -= 1
    return tuple(counts)


class DapplePartitioner:
    """The dynamic program for one graph, cluster and number of micro-batches."""

    def __init__(
        self,
        candidates: CandidateStages,
        levels: Sequence[TopologyLevel],
        microbatches: int,
        max_states: float = math.inf,
        limit: MemoryLimit | None = None,
    ) -> None:
        if len(levels) > 2:
            raise SolverError("dapple has two levels: devices of a machine, and machines")
        self.candidates, self.microbatches, self.limit = candidates, microbatches, limit
        self.states, self.max_states = 0, max_states
        self.devices, self.machines = levels[0].count, levels[1].count if len(levels) > 1 else 1
        self.inner, self.outer = levels[0].bandwidth, levels[-1].bandwidth
        self.compute_s = candidates.compute_s
        # As nested lists: scalar access in the inner loop is several times faster than in arrays.
        self.forward_s, self.backward_s = candidates.forward_s.tolist(), candidates.backward_s.tolist()
        self.parameters, self.crossing = candidates.parameters.tolist(), candidates.crossing.tolist()
        starts = range(candidates.size)
        self.starts = [[k for k in starts if not candidates.invalid[k, end]] for end in range(candidates.size)]

    def solve(self, bound_s: float = math.inf) -> tuple[float, tuple[PartitionStage, ...]]:
        """Seconds of an iteration and the stages; infinite and empty if there is none within `bound_s`.

        CutShortError at the time limit of the work, with all layers as one stage on all devices if they fit.
        """
        try:
            return self._solved(bound_s)
        except CutShortError as error:
            raise CutShortError(self._one_stage()) from error

    def _one_stage(self) -> Found | None:
        """All layers as one stage that is replicated on all devices; None if they do not fit."""
        last, devices = self.candidates.size - 1, self.devices * self.machines
        allocation = _Allocation(last, devices, self.machines == 1, 0)
        if not self._fitting([0], allocation, 0):
            return None
        tail = self._with_stage(TailLatency(), 0, allocation)
        seconds, layers = float(self.compute_s[0, -1]) / devices, self.candidates.layers(0, last)
        return tail.whole_s, (PartitionStage(layers, devices, seconds, devices=tuple(range(devices))),)

    def _solved(self, bound_s: float) -> tuple[float, tuple[PartitionStage, ...]]:
        bubble_free_s = self.microbatches * float(self.compute_s[0, -1]) / (self.devices * self.machines)
        tried_s = bound_s if math.isfinite(bound_s) else bubble_free_s * BOUND_GROWTH
        while (best := self._within(tried_s)) is None and math.isinf(bound_s) and tried_s < math.inf:
            tried_s = tried_s * BOUND_GROWTH if 0 < tried_s < MAX_BOUND * bubble_free_s else math.inf
        return (best.tail.whole_s, self._stages(best)) if best is not None else (math.inf, ())

    def _within(self, bound_s: float) -> _PartialPartition | None:
        """The best partition within the bound, if there is one."""
        fresh = _Machines(((self.devices, False),) * self.machines)
        last = self.candidates.size - 1
        fronts: list[dict[_Machines, list[_PartialPartition]]] = [{} for _ in range(self.candidates.size)]
        fronts[last][fresh] = [_PartialPartition(TailLatency(), fresh, last, 0, None)]
        for end in range(last, 0, -1):
            for front in fronts[end].values():
                for partial in front:
                    self.states += 1
                    self._extend(partial, end, bound_s, fronts)
            if self.states > self.max_states:
                raise StateLimitError
        complete = [partial for front in fronts[0].values() for partial in front]
        return min(complete, key=lambda partial: partial.tail.whole_s, default=None)

    def _extend(
        self,
        partial: _PartialPartition,
        end: int,
        bound_s: float,
        fronts: list[dict[_Machines, list[_PartialPartition]]],
    ) -> None:
        """Add to `fronts`: `partial`, which starts at cut `end`, with every stage before it that may end there."""
        free = [count for count, _ in partial.machines.free]
        for replicas in range(1, sum(free) + 1):
            check_time()
            for counts in allocations(free, self.devices, replicas):
                machines = partial.machines.allocate(counts)
                tail = self._with_transfer(partial, end, counts)
                one_machine = sum(count > 0 for count in counts) == 1
                allocation = _Allocation(end, replicas, one_machine, sum(free) - replicas)
                for start in self._fitting(self._promising(tail, allocation, bound_s), allocation, tail.stages):
                    longer = self._with_stage(tail, start, allocation)
                    if start or longer.whole_s <= bound_s * (1 + 1e-9):
                        front = fronts[start].setdefault(machines, [])
                        _add_to_front(front, _PartialPartition(longer, machines, end, replicas, partial, counts))

    def _promising(self, tail: TailLatency, allocation: _Allocation, bound_s: float) -> list[int]:
        """Start cuts whose lower bound is within `bound_s`: earlier stages take at least their work over the devices
        left."""
        end, replicas, rounds = allocation.end, allocation.replicas, self.microbatches
        starts = self.starts[end] if allocation.left else self.starts[end][:1]
        forward_s = self.candidates.forward_s[starts, end] / replicas
        compute_s = self.compute_s[starts, end] / replicas
        share = max(allocation.left, 1)
        before_s = self.compute_s[0, starts] / share
        steady_s = np.maximum(rounds * compute_s, compute_s + tail.steady_s)
        all_reduce_s = self._all_reduce_s(self.candidates.parameters[starts, end], allocation)
        whole_s = np.maximum(forward_s + tail.whole_s, steady_s + all_reduce_s)
        whole_s += self.candidates.forward_s[0, starts] / share
        lower_s = np.maximum(np.maximum(whole_s, steady_s + before_s), rounds * before_s)
        return [starts[i] for i in np.flatnonzero(lower_s <= bound_s * (1 + 1e-9))]

    def _fitting(self, starts: list[int], allocation: _Allocation, stages_behind: int) -> list[int]:
        """Start cuts of stages that fit into memory, each device holding its share of a micro-batch."""
        if self.limit is None or not starts:
            return starts
        end, in_flight = allocation.end, self.limit.in_flight_sharded(stages_behind)
        activations = self.candidates.activations[starts, end] / allocation.replicas
        needed = self.limit.needed_bytes(self.candidates.parameters[starts, end], activations, in_flight)
        return [starts[i] for i in np.flatnonzero(self.limit.fits(needed))]

    def _with_transfer(self, partial: _PartialPartition, cut: int, counts: Sequence[int]) -> TailLatency:
        """The tail with the transfer over its first cut, from a stage with these device counts."""
        if partial.rest is None:
            return partial.tail
        bandwidth = self.inner if partial.machines.on_one_machine(counts) else self.outer
        transfer_s = self.crossing[cut] / (bandwidth * partial.replicas)
        return partial.tail.prepend(transfer_s, transfer_s, -math.inf, self.microbatches)

    def _with_stage(self, tail: TailLatency, start: int, allocation: _Allocation) -> TailLatency:
        """The tail with the stage that starts at cut `start` before it."""
        end, replicas = allocation.end, allocation.replicas
        all_reduce_s = self._all_reduce_s(self.parameters[start][end], allocation)
        forward_s, backward_s = self.forward_s[start][end] / replicas, self.backward_s[start][end] / replicas
        return tail.prepend(forward_s, backward_s, all_reduce_s, self.microbatches, int(self.limit is not None))

    def _all_reduce_s(self, parameter_bytes: FloatOrArray, allocation: _Allocation) -> FloatOrArray:
        """Seconds of a ring all-reduce of the gradients over a stage's replicas."""
        bandwidth, replicas = self.inner if allocation.one_machine else self.outer, allocation.replicas
        return RING.seconds(1.0, replicas, bandwidth) * parameter_bytes

    def _stages(self, partial: _PartialPartition) -> tuple[PartitionStage, ...]:
        stages, start = [], 0
        devices = self._placement(partial)
        while partial.rest is not None:
            seconds = float(self.compute_s[start, partial.end]) / partial.replicas
            layers, own = self.candidates.layers(start, partial.end), devices.pop()
            stages.append(PartitionStage(layers, partial.replicas, seconds, devices=own))
            start, partial = partial.end, partial.rest
        return tuple(stages)

    def _placement(self, partial: _PartialPartition) -> list[tuple[int, ...]]:
        """The devices of each stage's replicas, last stage first; devices of a machine are taken in order."""
        chain = [partial]
        while chain[-1].rest is not None:
            chain.append(chain[-1].rest)
        order, taken = list(range(self.machines)), [0] * self.machines
        found = []
        for rest, stage in zip(chain[:0:-1], chain[-2::-1], strict=True):
            own: list[int] = []
            for machine, count in zip(order, stage.counts, strict=True):
                first = machine * self.devices + taken[machine]
                own += range(first, first + count)
                taken[machine] += count
            found.append(tuple(own))
            pairs = zip(rest.machines.free, stage.counts, order, strict=True)
            left = [((free - count, count > 0), machine) for (free, _), count, machine in pairs]
            order = [machine for _, machine in sorted(left, key=lambda one: one[0], reverse=True)]
        return found


def least_iteration(
    graph: LayerGraph,
    cuts: Sequence[int],
    levels: Sequence[TopologyLevel],
    microbatches: int,
    limit: MemoryLimit | None,
    settings: PartitionSettings,
) -> tuple[float, tuple[PartitionStage, ...], int]:
    """Seconds (infinite if nothing fits into memory), stages and the number of cuts evaluated.

    Solves over few cuts first, then over more with the best so far as a bound, until the state limit is exceeded.
    CutShortError at the time limit of the work, with the best so far.
    """
    candidates = CandidateStages(graph, cuts)
    best_s, evaluated = math.inf, 0
    stages: tuple[PartitionStage, ...] = ()
    coarse = [count for count in settings.dapple_coarse_cuts if count < candidates.size]
    for count in (*coarse, candidates.size):
        subset = candidates
        if count != candidates.size:
            subset = CandidateStages(graph, spread_cuts(CutCosts(graph, cuts), count))
        max_states = settings.dapple_max_states if evaluated else math.inf
        try:
            found_s, found = DapplePartitioner(subset, levels, microbatches, max_states, limit).solve(best_s)
        except StateLimitError:
            break
        except CutShortError as error:
            best = (best_s, stages) if stages else error.found
            raise CutShortError(best) from error
        evaluated = subset.size
        if found_s < best_s:
            best_s, stages = found_s, found
    return best_s, stages, evaluated


def _add_to_front(front: list[_PartialPartition], new: _PartialPartition) -> None:
    """Add to a Pareto front, unless dominated; drop what the new one dominates."""
    if any(other.tail.dominates(new.tail) for other in front):
        return
    front[:] = [other for other in front if not new.tail.dominates(other.tail)]
    front.append(new)
