"""The partition of least sum of stages plus (B - 1) times the slowest: what B micro-batches take one after the other.

The inter-operator pass of Alpa (Zheng et al., OSDI 2022, section 5): every stage gets a submesh of the cluster, which
is a power of two of one host's devices or several whole hosts, and all devices are used. Alpa enumerates the slowest
stage's time upwards; here the sums are minimised under ever tighter limits on it, downwards, each just below the
slowest stage of the last answer, so that only answers that are better in one of the two are met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.device_memory import DeviceLimit
from jellybean_solver.pipeline.partitioning.slowest_stage import Places, StageCost, summed_cost
from jellybean_solver.pipeline.partitioning.spans import Floats, Spans
from jellybean_solver.pipeline.partitioning.stages import Level, Stage

Choice = tuple[int, int]  # the stage's end, its submesh


@dataclass(frozen=True, slots=True)
class Submesh:
    """`hosts` x `devices` of each, and bytes per second of the slowest link between them."""

    hosts: int
    devices: int
    bandwidth: float

    @property
    def size(self) -> int:
        return self.hosts * self.devices


def submeshes(levels: Sequence[Level]) -> tuple[Submesh, ...]:
    """The shapes that a stage may have. SolverError where hosts have no power of two of devices."""
    devices, hosts = levels[0].count, levels[1].count if len(levels) > 1 else 1
    if len(levels) > 2:
        raise SolverError("submeshes have two levels: devices of a host, and hosts")
    if devices & (devices - 1):
        raise SolverError(f"{devices} devices per host: submeshes need a power of two")
    within = [Submesh(1, 1 << power, levels[0].bandwidth) for power in range(devices.bit_length())]
    return (*within, *(Submesh(count, devices, levels[1].bandwidth) for count in range(2, hosts + 1)))


class Submeshes:
    """The program for one graph, cluster and number of micro-batches."""

    def __init__(
        self,
        spans: Spans,
        levels: Sequence[Level],
        microbatches: int,
        limit: DeviceLimit | None = None,
        stage_cost: StageCost = summed_cost,
    ) -> None:
        self.spans, self.microbatches, self.limit = spans, microbatches, limit
        self.meshes = submeshes(levels)
        self.devices = math.prod(level.count for level in levels)
        self.most_stages = min(self.devices, spans.size - 1) if limit is not None else 1
        times = [stage_cost(spans.both_s, spans.parameters, mesh.size, mesh.bandwidth) for mesh in self.meshes]
        self.times = [np.where(spans.outside, np.inf, one) for one in times]

    def solve(self, known_s: float = math.inf) -> tuple[float, tuple[Stage, ...]]:
        """Seconds of an iteration, infinite where nothing fits into memory or none is as fast as one that is known, and
        the stages. The least sum under a limit is no more than that under a tighter one, so a better answer's slowest
        stage takes less than what is left of the best answer's time for all micro-batches but one."""
        best, stages = math.inf, tuple[Stage, ...]()
        total = least_s = float(self.spans.both_s[0, -1]) / self.devices
        most_s, slowest_s = known_s * (1 + 1e-9), math.inf
        while True:
            if self.microbatches > 1:
                slowest_s = min(slowest_s, (most_s - total) / (self.microbatches - 1) * (1 + 1e-12))
            found = self._least_sum(slowest_s)
            if not found:
                return best, stages
            total, slowest_s = sum(stage.time_s for stage in found), max(stage.time_s for stage in found)
            if (cost := total + (self.microbatches - 1) * slowest_s) < best:
                best, stages = cost, found
            most_s = min(most_s, best)
            if total + (self.microbatches - 1) * least_s >= best:
                return best, stages

    def _fits(self, mesh: int, behind: int) -> Floats | None:
        """Spans that do not fit on a submesh with so many stages behind; None: all do."""
        if self.limit is None:
            return None
        share, flying = self.spans.activations / self.meshes[mesh].size, self.limit.in_pipeline(behind)
        taken = self.limit.taken(self.spans.parameters, share, flying)
        return np.where(taken > self.limit.limit_bytes * (1 + 1e-12), np.inf, 0.0)

    def _least_sum(self, below_s: float) -> tuple[Stage, ...]:
        """The stages of least sum, each faster than that; none where there are none.

        `sums[s][d]`: cut -> least sum from there on d devices, in s stages where their number matters.
        """
        size, counted = self.spans.size, self.limit is not None
        allowed = [np.where(times < below_s, times, np.inf) for times in self.times]
        sums = np.full((self.most_stages + 1, self.devices + 1, size), np.inf)
        sums[0, 0, -1] = 0.0
        if not counted:
            sums[1, 0, -1] = 0.0
        how: dict[tuple[int, int, int], Choice] = {}
        cuts = self._cuts(below_s)
        for stages in range(1, self.most_stages + 1):
            behind = sums[stages - 1] if counted else sums[stages]
            costs = [
                times if (unfit := self._fits(mesh, stages - 1)) is None else times + unfit
                for mesh, times in enumerate(allowed)
            ]
            for devices in range(1, self.devices + 1):
                for mesh, cost in enumerate(costs):
                    left, rows = devices - self.meshes[mesh].size, cuts[devices]
                    if left < 0 or not len(rows):
                        continue
                    stops = cuts[left][np.isfinite(behind[left][cuts[left]])]
                    if not len(stops):
                        continue
                    whole = cost[np.ix_(rows, stops)] + behind[left][None, stops]
                    place = whole.argmin(axis=1)
                    seconds = whole[np.arange(len(rows)), place]
                    better = seconds < sums[stages, devices, rows]
                    sums[stages, devices, rows[better]] = seconds[better]
                    for cut, stop in zip(rows[better].tolist(), stops[place[better]].tolist(), strict=True):
                        how[stages, devices, cut] = (stop, mesh)
        return self._traced(sums, how)

    def _cuts(self, below_s: float) -> list[Places]:
        """By devices behind them, the cuts before and behind which the work can be done in stages of that time."""
        done = self.spans.both_s[0]
        if math.isinf(below_s):
            return [np.arange(len(done))] * (self.devices + 1)
        devices = np.arange(self.devices + 1)[:, None] * (below_s * (1 + 1e-9))
        fits = (done[-1] - done <= devices) & (done <= devices[::-1])
        return [np.flatnonzero(row) for row in fits]

    def _traced(self, sums: Floats, how: dict[tuple[int, int, int], Choice]) -> tuple[Stage, ...]:
        stages = int(sums[:, self.devices, 0].argmin())
        if not math.isfinite(sums[stages, self.devices, 0]):
            return ()
        found, cut, devices = [], 0, self.devices
        while cut != self.spans.size - 1:
            end, mesh = how[stages, devices, cut]
            shape = self.meshes[mesh]
            seconds = float(self.times[mesh][cut, end])
            found.append(Stage(self.spans.layers(cut, end), shape.size, seconds, (), (shape.hosts, shape.devices)))
            cut, devices = end, devices - shape.size
            stages -= self.limit is not None
        return tuple(found)
