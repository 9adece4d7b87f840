"""A device mesh: one or two axes of devices with their own links, and the time of collectives along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.collectives.closed_forms import RING


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """`devices` along an axis, in a ring. `bandwidth`: bytes per second of a link. `latency_s`: of a round."""

    devices: int
    bandwidth: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.devices < 1 or not 0 < self.bandwidth < math.inf or self.latency_s < 0:
            raise SolverError(
                f"a mesh axis of {self.devices} devices, {self.bandwidth:g} bytes per second and {self.latency_s:g} s: "
                "there must be at least one device, a bandwidth above 0 and a latency of at least 0"
            )

    def all_reduce_s(self, size_bytes: float) -> float:
        """Seconds to sum `size_bytes` on each device."""
        return RING.seconds(size_bytes, self.devices, self.bandwidth, self.latency_s)

    def all_gather_s(self, size_bytes: float) -> float:
        """Seconds until every device has all of `size_bytes`, of which each had a part: the last half of a sum."""
        return self.all_reduce_s(size_bytes) / 2

    def all_to_all_s(self, size_bytes: float) -> float:
        """Seconds to exchange the `size_bytes` of each device, of which it keeps one part: rounds as to gather them."""
        return self.all_gather_s(size_bytes)


Mesh = tuple[MeshAxis, ...]
