"""How many bytes a stage takes on its device: what a schedule makes it keep.

Under 1F1B and its kin a replica keeps as many micro-batches as are between its forward and its backward, itself
included: one for each worker that stands behind, per replica, and one (PipeDream's in-flight count, Narayanan et al.
2019, section 3.3; D - s for stages without replicas).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.spans import Floats

Counts = int | npt.NDArray[np.integer]
# Schedules that put one stage on a device -> weight versions when so many micro-batches are in flight.
_VERSIONS: dict[str, Callable[[Counts], Counts]] = {
    "naive": lambda flying: 1,
    "gpipe": lambda flying: 1,
    "1f1b": lambda flying: 1,
    "dapple": lambda flying: 1,
    "zb-h1": lambda flying: 1,
    "pipedream": lambda flying: flying,
    "pipedream-2bw": lambda flying: 2,
}
_FLUSHING = ("gpipe", "1f1b", "dapple", "zb-h1")  # no replica keeps more than its share of an iteration
LIMITED = tuple(_VERSIONS)


@dataclass(frozen=True, slots=True)
class DeviceLimit:
    """`limit_bytes` per device under a schedule.

    `microbatches` of an iteration; None: without end. `states`: bytes of optimizer state per byte of parameters
    (momentum 1, Adam 2); gradients take one more. Activations kept are the outputs of the stage's layers.
    """

    limit_bytes: float
    schedule: str = "1f1b"
    microbatches: int | None = None
    states: float = 0.0

    def __post_init__(self) -> None:
        if self.schedule not in _VERSIONS:
            known = ", ".join(_VERSIONS)
            raise SolverError(f"what a stage keeps under {self.schedule} is not known here; it is for {known}")
        if self.schedule == "gpipe" and self.microbatches is None:
            raise SolverError("gpipe keeps every micro-batch of an iteration: say how many there are")
        if (
            not self.limit_bytes > 0
            or not self.states >= 0
            or (self.microbatches is not None and self.microbatches < 1)
        ):
            raise SolverError("memory is above 0 bytes, optimizer states not below 0, micro-batches at least 1")

    def flying(self, behind: Counts, replicas: Counts) -> Counts:
        """Micro-batches that a replica keeps; `behind`: workers behind its stage, per replica, rounded up."""
        share = None if self.microbatches is None else -(-self.microbatches // replicas)
        if self.schedule == "naive":
            return 1
        if self.schedule == "gpipe":
            return 1 if share is None else share
        return np.minimum(behind + 1, share) if share is not None and self.schedule in _FLUSHING else behind + 1

    def in_pipeline(self, behind: int) -> Counts:
        """Micro-batches that a stage keeps whose devices share each of them, with so many stages behind it."""
        return self.flying(behind, 1)

    def taken(self, parameters: Floats, activations: Floats, flying: Counts) -> Floats:
        """Bytes per device."""
        weights = _VERSIONS[self.schedule](flying) + 1 + self.states
        found: Floats = weights * parameters + flying * activations
        return found
