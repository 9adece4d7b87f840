"""Pipeline parallelism: partitioner, schedule generators, schedule validator and simulator.

Public surface of this package; other packages import from here only. Rooms: `schedule` (a schedule as data),
`schedules` (one generator per published schedule), `partitioning` (layer graph to stages). Symbols in the docstrings:
D devices, M micro-batches, s a stage (from 0), v stages per device, F and B forward and backward times.
"""

from jellybean_solver.pipeline.partitioning.collectives import COLLECTIVES
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
    "Action",
    "ActionKind",
    "Layer",
    "LayerGraph",
    "MemoryLimit",
    "NothingFitsError",
    "Partition",
    "PartitionSettings",
    "PartitionStage",
    "Schedule",
    "ScheduleCosts",
    "StageSeconds",
    "Timeline",
    "TopologyLevel",
    "bubble_fraction",
    "enumerate_cuts",
    "layer_graph",
    "make_schedule",
    "partition",
    "partition_line",
    "schedule_memory",
    "schedule_violations",
    "simulate",
    "stage_seconds",
]
