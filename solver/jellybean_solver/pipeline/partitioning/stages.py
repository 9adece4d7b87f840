"""What a partitioner answers: stages of a model on the workers of a topology."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the topology: how many of the level below make one of this, and bytes per second between them."""

    count: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Stage:
    """`layers` by place in the graph. `replicas` of the next lower level's groups, each of which holds `inside`.

    `time_s`: per micro-batch, by the objective's own cost. `inside` is empty at the lowest level. `submesh`: hosts and
    devices of each, where the objective gives a stage one; its replicas are then all of them. `device`: its place in a
    line of unlike devices, or its number where every layer has a device of its own choice.
    """

    layers: tuple[int, ...]
    replicas: int
    time_s: float
    inside: tuple[Stage, ...] = ()
    submesh: tuple[int, int] | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """The best partition by an objective, in its seconds: of a micro-batch or of a whole iteration.

    `bound_s`: none is faster; below `objective_s` only where not all cuts (placements) were looked at.
    """

    objective_s: float
    bound_s: float
    stages: tuple[Stage, ...]
    cuts: int
    objective: str = "slowest-stage"

    @property
    def gap(self) -> float:
        return (self.objective_s - self.bound_s) / self.objective_s if self.objective_s > 0 else 0.0
