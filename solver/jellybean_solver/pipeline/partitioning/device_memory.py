"""Memory of a stage on its device, under a schedule.

Under 1F1B and schedules derived from it, a stage replica holds the activations of each micro-batch from its forward to
its backward. These in-flight micro-batches number 1 + (workers of later stages) / (replicas of this stage), rounded up
(PipeDream, Narayanan et al. 2019, section 3.3); without replicas, stage s of D devices holds D - s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.candidate_stages import Floats

Counts = int | npt.NDArray[np.integer]
# Schedule with one stage per device -> number of weight versions, as a function of the in-flight micro-batches.
_WEIGHT_VERSIONS: dict[str, Callable[[Counts], Counts]] = {
    "naive": lambda in_flight: 1,
    "gpipe": lambda in_flight: 1,
    "1f1b": lambda in_flight: 1,
    "dapple": lambda in_flight: 1,
    "zb-h1": lambda in_flight: 1,
    "pipedream": lambda in_flight: in_flight,
    "pipedream-2bw": lambda in_flight: 2,
}
# Schedules that drain after an iteration: a replica holds at most its share of the iteration's micro-batches.
_SYNCHRONOUS = ("gpipe", "1f1b", "dapple", "zb-h1")
MEMORY_SCHEDULES = tuple(_WEIGHT_VERSIONS)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit of `limit_bytes` of memory per device, under a schedule.

    `microbatches`: per iteration; None for an unlimited stream. `states`: bytes of optimizer state per byte of
    parameters (momentum 1, Adam 2), gradients not included. The activations of a stage are its layers' outputs.
    """

    limit_bytes: float
    schedule: str = "1f1b"
    microbatches: int | None = None
    states: float = 0.0

    def __post_init__(self) -> None:
        if self.schedule not in _WEIGHT_VERSIONS:
            known = ", ".join(_WEIGHT_VERSIONS)
            raise SolverError(f"the memory of schedule {self.schedule} is not known here; it is for {known}")
        if self.schedule == "gpipe" and self.microbatches is None:
            raise SolverError("gpipe keeps every micro-batch of an iteration: say how many there are")
        if (
            not self.limit_bytes > 0
            or not self.states >= 0
            or (self.microbatches is not None and self.microbatches < 1)
        ):
            raise SolverError("memory must be above 0 bytes, optimizer states not below 0, micro-batches at least 1")

    def in_flight(self, behind: Counts, replicas: Counts) -> Counts:
        """In-flight micro-batches of a replica. `behind`: workers of later stages per replica, rounded up."""
        share = None if self.microbatches is None else -(-self.microbatches // replicas)
        if self.schedule == "naive":
            return 1
        if self.schedule == "gpipe":
            return 1 if share is None else share
        return np.minimum(behind + 1, share) if share is not None and self.schedule in _SYNCHRONOUS else behind + 1

    def in_flight_sharded(self, stages_behind: int) -> Counts:
        """In-flight micro-batches of a stage whose devices split each micro-batch. `stages_behind`: later stages."""
        return self.in_flight(stages_behind, 1)

    def weight_copies(self, in_flight: Counts) -> Floats:
        """Bytes per byte of parameters: weight versions, the gradient and optimizer states."""
        copies: Floats = np.asarray(_WEIGHT_VERSIONS[self.schedule](in_flight) + 1 + self.states, float)
        return copies

    def needed_bytes(self, parameters: Floats, activations: Floats, in_flight: Counts) -> Floats:
        """Bytes per device for weight versions, gradient, optimizer state and activations.

        `parameters`: bytes on the device. `activations`: bytes of one micro-batch.
        """
        needed: Floats = self.weight_copies(in_flight) * parameters + in_flight * activations
        return needed

    def fits(self, needed_bytes: Floats) -> npt.NDArray[np.bool_]:
        """Elementwise True where the bytes are within the limit, up to rounding errors."""
        within: npt.NDArray[np.bool_] = needed_bytes <= self.limit_bytes * (1 + 1e-12)
        return within
