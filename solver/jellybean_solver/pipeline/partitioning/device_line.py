"""Partitions a model over a line of unequal devices, in their order: at most one stage per device.

For data that flows one way over unequal devices, for example from a camera to the cloud. A dynamic program over all
down-sets, exact for the slowest stage or link (throughput of training: forward and backward) and for the sum of all
stages and links (latency of one request: forward only).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, Floats
from jellybean_solver.pipeline.partitioning.cut_short import check_time
from jellybean_solver.pipeline.partitioning.stages import PartitionStage


class DeviceLine:
    """The dynamic program for one model and line of devices.

    `speeds`: per device, relative to the profiled device. `bandwidths`: bytes per second to the next device.
    `latency`: minimise the sum of stages and links, otherwise the slowest of them. `transfers=False` ignores the time
    of sending activations.
    """

    def __init__(
        self,
        candidates: CandidateStages,
        speeds: Sequence[float],
        bandwidths: Sequence[float],
        *,
        latency: bool,
        transfers: bool = True,
    ) -> None:
        if len(bandwidths) != len(speeds) - 1:
            raise SolverError(f"{len(speeds)} devices have {len(speeds) - 1} links; {len(bandwidths)} bandwidths given")
        if min(speeds, default=0.0) <= 0:
            raise SolverError("a device's speed must be above 0")
        self.candidates, self.speeds, self.bandwidths, self.latency = candidates, speeds, bandwidths, latency
        seconds = candidates.forward_s if latency else candidates.compute_s
        self.seconds = np.where(candidates.invalid, np.inf, seconds)
        np.fill_diagonal(self.seconds, 0.0)  # a device without layers forwards its input
        self.sent_bytes = candidates.crossing * (0.0 if not transfers else 1.0 if latency else 2.0)

    def solve(self) -> tuple[float, tuple[PartitionStage, ...]]:
        """Objective in seconds, and the stages of the devices that have layers.

        CutShortError at the time limit of the work.
        """
        best = np.full(self.candidates.size, np.inf)  # by cut: objective so far, layers before it done
        best[0] = 0.0
        starts = []
        for device, speed in enumerate(self.speeds):
            check_time(self.candidates.size)
            totals = self._combined(best[:, None], self.seconds / speed)
            starts.append(totals.argmin(axis=0))
            best = totals.min(axis=0)
            if device < len(self.bandwidths):
                best = self._combined(best, self.sent_bytes / self.bandwidths[device])
        return float(best[-1]), self._stages(starts)

    def _combined(self, before: Floats, step: Floats) -> Floats:
        """Elementwise sum if latency is minimised, maximum if the slowest stage or link is."""
        total: Floats = before + step if self.latency else np.maximum(before, step)
        return total

    def _stages(self, starts: Sequence[Floats]) -> tuple[PartitionStage, ...]:
        """The optimal stages in device order. `starts`: per device, the best start cut for each end cut."""
        stages, cut = [], self.candidates.size - 1
        for device in reversed(range(len(self.speeds))):
            start = int(starts[device][cut])
            if start != cut:
                seconds = float(self.seconds[start, cut]) / self.speeds[device]
                stages.append(PartitionStage(self.candidates.layers(start, cut), 1, seconds, device=device))
            cut = start
        return tuple(reversed(stages))
