"""A device mesh: one or two axes of devices with their own links, and the time of collectives along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jellybean_solver.errors import SolverError


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """`devices` along an axis; a collective takes `latency_s`, and its bytes at `bandwidth` bytes per second."""

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
        """Seconds to sum `size_bytes` on each device, by a ring: 2 (n - 1) / n of them pass each link."""
        return self._seconds(2.0 * size_bytes)

    def all_gather_s(self, size_bytes: float) -> float:
        """Seconds until every device has all of `size_bytes`, of which each had a part."""
        return self._seconds(size_bytes)

    def all_to_all_s(self, size_bytes: float) -> float:
        """Seconds to exchange the `size_bytes` of each device, of which it keeps one part."""
        return self._seconds(size_bytes)

    def _seconds(self, size_bytes: float) -> float:
        if self.devices == 1:
            return 0.0
        return self.latency_s + (self.devices - 1) / self.devices * size_bytes / self.bandwidth


Mesh = tuple[MeshAxis, ...]
