"""Pipeline parallelism as data: a partitioner, schedule generators, one validator, one simulator.

Other packages import from here, never from a room.
"""

from jellybean_solver.pipeline.partitioning.collectives import (
    COLLECTIVES,
)
from jellybean_solver.pipeline.partitioning.device_memory import (
    LIMITED,
    DeviceLimit,
)
from jellybean_solver.pipeline.partitioning.layer_graph import (
    MOST_CUTS,
    Layer,
    LayerGraph,
    cuts,
    layer_graph,
)
from jellybean_solver.pipeline.partitioning.partition import (
    ITERATIONS,
    OBJECTIVES,
    Level,
    NothingFitsError,
    Partition,
    Stage,
    partition,
    partition_line,
)
from jellybean_solver.pipeline.schedule.actions import (
    Action,
    Kind,
)
from jellybean_solver.pipeline.schedule.memory import (
    memory,
)
from jellybean_solver.pipeline.schedule.schedule import (
    Schedule,
)
from jellybean_solver.pipeline.schedule.simulator import (
    Costs,
    Seconds,
    Timeline,
    at,
    bubble_fraction,
    simulate,
)
from jellybean_solver.pipeline.schedule.validate import (
    faults,
)
from jellybean_solver.pipeline.schedules import (
    SCHEDULES,
    make_schedule,
)

__all__ = [
    "COLLECTIVES",
    "ITERATIONS",
    "LIMITED",
    "MOST_CUTS",
    "OBJECTIVES",
    "SCHEDULES",
    "Action",
    "Costs",
    "DeviceLimit",
    "Kind",
    "Layer",
    "LayerGraph",
    "Level",
    "NothingFitsError",
    "Partition",
    "Schedule",
    "Seconds",
    "Stage",
    "Timeline",
    "at",
    "bubble_fraction",
    "cuts",
    "faults",
    "layer_graph",
    "make_schedule",
    "memory",
    "partition",
    "partition_line",
    "simulate",
]
