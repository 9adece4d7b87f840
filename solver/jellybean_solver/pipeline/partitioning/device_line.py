"""A model over a line of devices of different speeds and links, in their order: one stage each, or none.

For data that goes one way over unlike devices, as from a camera to the cloud: exact for every down-set, by the slowest
stage or link (throughput, of training: forward and backward) or by the sum of all (latency of one request: forward).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.spans import Floats, Spans
from jellybean_solver.pipeline.partitioning.stages import Stage


class Straight:
    """`speeds`: of each device, 1 being that of the profile. `bandwidths`: bytes per second to the next device.

    Not `sent`: what crosses cuts takes no time.
    """

    def __init__(
        self,
        spans: Spans,
        speeds: Sequence[float],
        bandwidths: Sequence[float],
        *,
        latency: bool,
        sent: bool = True,
    ) -> None:
        if len(bandwidths) != len(speeds) - 1:
            raise SolverError(f"{len(speeds)} devices have {len(speeds) - 1} links; {len(bandwidths)} bandwidths given")
        if min(speeds, default=0.0) <= 0:
            raise SolverError("a device's speed must be above 0")
        self.spans, self.speeds, self.bandwidths, self.latency = spans, speeds, bandwidths, latency
        seconds = spans.forward_s if latency else spans.both_s
        self.seconds = np.where(spans.outside, np.inf, seconds)
        np.fill_diagonal(self.seconds, 0.0)  # a device without layers hands on what it gets
        self.sent = spans.crossing * (0.0 if not sent else 1.0 if latency else 2.0)

    def solve(self) -> tuple[float, tuple[Stage, ...]]:
        """Seconds, and the stages of the devices that have any."""
        best = np.full(self.spans.size, np.inf)  # all layers before a cut are done, and its data is here
        best[0] = 0.0
        froms = []
        for device, speed in enumerate(self.speeds):
            whole = self._joined(best[:, None], self.seconds / speed)
            froms.append(whole.argmin(axis=0))
            best = whole.min(axis=0)
            if device < len(self.bandwidths):
                best = self._joined(best, self.sent / self.bandwidths[device])
        return float(best[-1]), self._traced(froms)

    def _joined(self, done: Floats, more: Floats) -> Floats:
        found: Floats = done + more if self.latency else np.maximum(done, more)
        return found

    def _traced(self, froms: Sequence[Floats]) -> tuple[Stage, ...]:
        stages, cut = [], self.spans.size - 1
        for device in reversed(range(len(self.speeds))):
            start = int(froms[device][cut])
            if start != cut:
                seconds = float(self.seconds[start, cut]) / self.speeds[device]
                stages.append(Stage(self.spans.layers(start, cut), 1, seconds, device=device))
            cut = start
        return tuple(reversed(stages))
