"""Pipeline parallelism: partitioner, schedule generators, schedule validator and simulator.

Public surface of this package; other packages import from here only. Rooms: `schedule` (a schedule as data),
`schedules` (one generator per published schedule), `partitioning` (layer graph to stages), `collectives` (all-reduces
as data). Symbols in the docstrings: D devices, M micro-batches, s a stage (from 0), v stages per device, F and B
forward and backward times.
"""

from jellybean_solver.pipeline.collectives.all_reduce import (
    AllReduce,
    ParticipantRound,
    Transfer,
    chunk_bounds,
    participant_rounds,
)
from jellybean_solver.pipeline.collectives.closed_forms import COLLECTIVES
from jellybean_solver.pipeline.collectives.traffic import Duplex, Link, Traffic, count_traffic
from jellybean_solver.pipeline.collectives.validate import all_reduce_violations
from jellybean_solver.pipeline.collectives.ways import WAYS, make_all_reduce
from jellybean_solver.pipeline.partitioning.device_memory import MEMORY_SCHEDULES, MemoryLimit
from jellybean_solver.pipeline.partitioning.layer_graph import Layer, LayerGraph, enumerate_cuts, layer_graph
from jellybean_solver.pipeline.partitioning.partition import (
    ITERATION_OBJECTIVES,
    OBJECTIVES,
    NothingFitsError,
    partition,
    partition_line,
)
from jellybean_solver.pipeline.partitioning.settings import PartitionSettings
from jellybean_solver.pipeline.partitioning.stages import Partition, PartitionStage, TopologyLevel
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.memory import schedule_memory
from jellybean_solver.pipeline.schedule.schedule import Schedule
from jellybean_solver.pipeline.schedule.simulator import (
    ScheduleCosts,
    StageSeconds,
    Timeline,
    bubble_fraction,
    simulate,
    stage_seconds,
)
from jellybean_solver.pipeline.schedule.validate import schedule_violations
from jellybean_solver.pipeline.schedules import SCHEDULES, make_schedule

__all__ = [
    "COLLECTIVES",
    "ITERATION_OBJECTIVES",
    "MEMORY_SCHEDULES",
    "OBJECTIVES",
    "SCHEDULES",
    "WAYS",
    "Action",
    "ActionKind",
    "AllReduce",
    "Duplex",
    "Layer",
    "LayerGraph",
    "Link",
    "MemoryLimit",
    "NothingFitsError",
    "ParticipantRound",
    "Partition",
    "PartitionSettings",
    "PartitionStage",
    "Schedule",
    "ScheduleCosts",
    "StageSeconds",
    "Timeline",
    "TopologyLevel",
    "Traffic",
    "Transfer",
    "all_reduce_violations",
    "bubble_fraction",
    "chunk_bounds",
    "count_traffic",
    "enumerate_cuts",
    "layer_graph",
    "make_all_reduce",
    "make_schedule",
    "participant_rounds",
    "partition",
    "partition_line",
    "schedule_memory",
    "schedule_violations",
    "simulate",
    "stage_seconds",
]
