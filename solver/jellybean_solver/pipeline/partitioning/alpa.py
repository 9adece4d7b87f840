"""Alpa's inter-operator pass: minimises the sum of stage times plus (B - 1) times the slowest, for B micro-batches.

The time of a stage on a submesh is an argument (`StageTimes`): of replicas, or of Alpa's intra-operator pass.

Zheng et al., OSDI 2022, section 5. Every stage gets a submesh of the cluster: a power of two of one host's devices, or
several whole hosts; all devices are used. Alpa enumerates the slowest stage's time in ascending order. Here the sum is
minimised under descending limits on the slowest stage's time, each just below that of the previous solution, so only
solutions that improve one of the two terms are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, Floats
from jellybean_solver.pipeline.partitioning.cut_short import CutShortError, Found, check_time
from jellybean_solver.pipeline.partitioning.device_memory import MemoryLimit
from jellybean_solver.pipeline.partitioning.stage_costs import Indices, StageCost, sequential_cost
from jellybean_solver.pipeline.partitioning.stages import PartitionStage, TopologyLevel
from jellybean_solver.pipeline.sharding.mesh import Mesh, MeshAxis
from jellybean_solver.pipeline.sharding.plan import ShardingPlan

StageChoice = tuple[int, int]  # index of the stage's end cut, index of its submesh


@dataclass(frozen=True, slots=True)
class Submesh:
    """A submesh of `hosts` x `devices` per host, with the bandwidth of its slowest link in bytes per second.

    `inner_bandwidth`: between the devices of a host.
    """

    hosts: int
    devices: int
    bandwidth: float
    inner_bandwidth: float

    @property
    def size(self) -> int:
        return self.hosts * self.devices

    @property
    def axes(self) -> Mesh:
        """The submesh as a mesh of hosts, where it has several, and of devices of a host."""
        hosts = (MeshAxis(self.hosts, self.bandwidth),) if self.hosts > 1 else ()
        return (*hosts, MeshAxis(self.devices, self.inner_bandwidth))


def submeshes(levels: Sequence[TopologyLevel]) -> tuple[Submesh, ...]:
    """The submeshes that a stage may get. SolverError unless devices per host are a power of two."""
    devices, hosts = levels[0].count, levels[1].count if len(levels) > 1 else 1
    if len(levels) > 2:
        raise SolverError("submeshes have two levels: devices of a host, and hosts")
    if devices & (devices - 1):
        raise SolverError(f"{devices} devices per host: submeshes need a power of two")
    inner = levels[0].bandwidth
    within = [Submesh(1, 1 << power, inner, inner) for power in range(devices.bit_length())]
    return (*within, *(Submesh(count, devices, levels[1].bandwidth, inner) for count in range(2, hosts + 1)))


class StageTimes(Protocol):
    """Times of all candidate stages on all submeshes."""

    @property
    def meshes(self) -> Sequence[Submesh]:
        """The submeshes that a stage may get."""

    @property
    def counted(self) -> bool:
        """True if memory is limited, so that times depend on the number of later stages."""

    def seconds(self, mesh: int, stages_behind: int) -> Floats:
        """Seconds per micro-batch of each candidate stage on a submesh; infinite where it does not fit."""

    def sharding(self, mesh: int, stages_behind: int, start: int, end: int) -> ShardingPlan | None:
        """How a candidate stage is split over a submesh; None if each device is a replica."""


class ReplicatedStages:
    """Stages whose devices are replicas that share each micro-batch."""

    def __init__(
        self,
        candidates: CandidateStages,
        meshes: Sequence[Submesh],
        limit: MemoryLimit | None = None,
        stage_cost: StageCost = sequential_cost,
    ) -> None:
        self.meshes, self.counted = meshes, limit is not None
        self._candidates, self._limit, self._times = candidates, limit, []
        for mesh in meshes:
            times = stage_cost(candidates.compute_s, candidates.parameters, mesh.size, mesh.bandwidth)
            self._times.append(np.where(candidates.invalid, np.inf, times))

    def seconds(self, mesh: int, stages_behind: int) -> Floats:
        """Computation and the sum of gradients."""
        times = self._times[mesh]
        if self._limit is None:
            return times
        activations = self._candidates.activations / self.meshes[mesh].size
        in_flight = self._limit.in_flight_sharded(stages_behind)
        fits = self._limit.fits(self._limit.needed_bytes(self._candidates.parameters, activations, in_flight))
        return np.where(fits, times, np.inf)

    def sharding(self, mesh: int, stages_behind: int, start: int, end: int) -> ShardingPlan | None:
        """None: nothing is split but the samples."""


class AlpaPartitioner:
    """The dynamic program for one graph, cluster and number of micro-batches."""

    def __init__(self, candidates: CandidateStages, times: StageTimes, devices: int, microbatches: int) -> None:
        self.candidates, self.times, self.microbatches = candidates, times, microbatches
        self.devices = devices
        # The number of later stages matters only to memory: without a limit, one table serves every number of stages.
        self.max_stages = min(self.devices, candidates.size - 1) if times.counted else 1

    def solve(self, bound_s: float = math.inf) -> tuple[float, tuple[PartitionStage, ...]]:
        """Seconds of an iteration and the stages; infinite and empty if nothing fits or none is within `bound_s`.

        CutShortError at the time limit of the work, with the best so far, or else all layers on all devices.

        The least sum grows as the limit on the slowest stage shrinks, so in any better solution the slowest stage takes
        less than (best - current sum) / (B - 1).
        """
        best, stages = math.inf, tuple[PartitionStage, ...]()
        total = balanced_s = float(self.candidates.compute_s[0, -1]) / self.devices
        upper_s, slowest_s = bound_s * (1 + 1e-9), math.inf
        while True:
            if self.microbatches > 1:
                slowest_s = min(slowest_s, (upper_s - total) / (self.microbatches - 1) * (1 + 1e-12))
            try:
                found = self._least_sum(slowest_s)
            except CutShortError as error:
                raise CutShortError((best, stages) if stages else self._one_stage()) from error
            if not found:
                return best, stages
            total, slowest_s = sum(stage.time_s for stage in found), max(stage.time_s for stage in found)
            if (cost := total + (self.microbatches - 1) * slowest_s) < best:
                best, stages = cost, found
            upper_s = min(upper_s, best)
            if total + (self.microbatches - 1) * balanced_s >= best:
                return best, stages

    def _one_stage(self) -> Found | None:
        """All layers on all devices; None if no submesh has all or they do not fit, or without time to split them."""
        mesh, end = len(self.times.meshes) - 1, self.candidates.size - 1
        if self.times.meshes[mesh].size != self.devices:
            return None
        try:
            seconds = float(self.times.seconds(mesh, 0)[0, end])
            sharding = self.times.sharding(mesh, 0, 0, end)
        except CutShortError:
            return None
        if not math.isfinite(seconds):
            return None
        shape, layers = self.times.meshes[mesh], self.candidates.layers(0, end)
        place = (shape.hosts, shape.devices)
        stage = PartitionStage(layers, shape.size, seconds, submesh=place, sharding=sharding)
        return self.microbatches * seconds, (stage,)

    def _least_sum(self, below_s: float) -> tuple[PartitionStage, ...]:
        """The stages of least total time, each of them faster than `below_s`; empty if there are none.

        `sums[s][d]`: by cut, the least total of the stages behind it on d devices; with a memory limit, of s stages.
        """
        size, counted, meshes = self.candidates.size, self.times.counted, self.times.meshes
        sums = np.full((self.max_stages + 1, self.devices + 1, size), np.inf)
        sums[0, 0, -1] = 0.0
        if not counted:
            sums[1, 0, -1] = 0.0
        choices: dict[tuple[int, int, int], StageChoice] = {}
        cuts = self._relevant_cuts(below_s)
        for stages in range(1, self.max_stages + 1):
            behind = sums[stages - 1] if counted else sums[stages]
            every = [self.times.seconds(mesh, stages - 1) for mesh in range(len(meshes))]
            costs = [np.where(times < below_s, times, np.inf) for times in every]
            for devices in range(1, self.devices + 1):
                check_time()
                for mesh, cost in enumerate(costs):
                    left, rows = devices - meshes[mesh].size, cuts[devices]
                    if left < 0 or not len(rows):
                        continue
                    stops = cuts[left][np.isfinite(behind[left][cuts[left]])]
                    if not len(stops):
                        continue
                    totals = cost[np.ix_(rows, stops)] + behind[left][None, stops]
                    choice = totals.argmin(axis=1)
                    seconds = totals[np.arange(len(rows)), choice]
                    better = seconds < sums[stages, devices, rows]
                    sums[stages, devices, rows[better]] = seconds[better]
                    for cut, stop in zip(rows[better].tolist(), stops[choice[better]].tolist(), strict=True):
                        choices[stages, devices, cut] = (stop, mesh)
        return self._stages(sums, choices)

    def _relevant_cuts(self, below_s: float) -> list[Indices]:
        """By number d of devices behind a cut: the cuts that stages faster than `below_s` can use.

        The work behind such a cut fits on d devices, the work before it on the others.
        """
        done = self.candidates.compute_s[0]
        if math.isinf(below_s):
            return [np.arange(len(done))] * (self.devices + 1)
        capacity_s = np.arange(self.devices + 1)[:, None] * (below_s * (1 + 1e-9))
        fits = (done[-1] - done <= capacity_s) & (done <= capacity_s[::-1])
        return [np.flatnonzero(row) for row in fits]

    def _stages(self, sums: Floats, choices: dict[tuple[int, int, int], StageChoice]) -> tuple[PartitionStage, ...]:
        count = int(sums[:, self.devices, 0].argmin())
        if not math.isfinite(sums[count, self.devices, 0]):
            return ()
        stages, cut, devices = [], 0, self.devices
        while cut != self.candidates.size - 1:
            end, mesh = choices[count, devices, cut]
            shape, behind = self.times.meshes[mesh], count - 1
            seconds, sharding = (
                float(self.times.seconds(mesh, behind)[cut, end]),
                self.times.sharding(mesh, behind, cut, end),
            )
            layers, place = self.candidates.layers(cut, end), (shape.hosts, shape.devices)
            stages.append(PartitionStage(layers, shape.size, seconds, submesh=place, sharding=sharding))
            cut, devices = end, devices - shape.size
            count -= self.times.counted
        return tuple(stages)
