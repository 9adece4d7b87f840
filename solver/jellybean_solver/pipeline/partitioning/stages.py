"""The result of a partitioner: stages of a model on the workers of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean_solver.outcome import Termination
from jellybean_solver.pipeline.sharding.plan import ShardingPlan


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """A level of a cluster: `count` groups of the next lower level (or workers), bytes per second between them."""

    count: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class PartitionStage:
    """A stage: indices of its layers in the graph, and its replicas.

    A replica is a group of the next lower topology level, which is itself split into the stages `inside`; empty at the
    lowest level. `time_s`: seconds per micro-batch by the objective's cost model. `submesh`: (hosts, devices per host),
    for Alpa, where `replicas` counts all devices of the submesh. `device`: position in a line of unequal devices, or
    device number for device placement. `devices`: of the replicas, where the objective places them (DAPPLE); empty:
    the next ones in order. `sharding`: how each layer is split over the submesh, with Alpa's both passes.
    """

    layers: tuple[int, ...]
    replicas: int
    time_s: float
    inside: tuple[PartitionStage, ...] = ()
    submesh: tuple[int, int] | None = None
    device: int | None = None
    devices: tuple[int, ...] = ()
    sharding: ShardingPlan | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """The best partition found, with its objective in seconds (of a micro-batch or an iteration).

    `bound_s`: lower bound of the objective over all partitions; below `objective_s` only if not all cuts (or
    placements) were evaluated. `cuts`: number of cuts (or placements) evaluated. `alternatives`: name -> objective of
    restricted searches, for comparison; infinite if there is no such partition. `out_of_time`: the time limit of the
    work ended the search.
    """

    objective_s: float
    bound_s: float
    stages: tuple[PartitionStage, ...]
    cuts: int
    objective: str = "slowest-stage"
    alternatives: Mapping[str, float] = field(default_factory=dict)
    out_of_time: bool = False

    @property
    def gap(self) -> float:
        """Relative optimality gap, (objective - lower bound) / objective."""
        return (self.objective_s - self.bound_s) / self.objective_s if self.objective_s > 0 else 0.0

    @property
    def termination(self) -> Termination:
        """Why the search ended."""
        if self.gap == 0.0:
            return Termination.OPTIMAL
        return Termination.TIME_LIMIT if self.out_of_time else Termination.GAP
