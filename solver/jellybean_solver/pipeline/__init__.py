"""Pipeline parallelism: partitioner, schedule generators, schedule validator and simulator.

Public surface of this package; other packages import from here only. Rooms: `schedule` (a schedule as data),
`schedules` (one generator per published schedule), `partitioning` (layer graph to stages), `collectives` (all-reduces
as data), `estimates` (a transformer's training from its size), `layer_parallelism` (bytes that layers send under data
and tensor parallelism), `sharding` (which dimension of each operator a mesh splits), `model_data_sizes`.
Symbols in the docstrings: D devices, M micro-batches, s a stage (from 0), v stages per device,
F and B forward and backward times; in `estimates` those of the published formulas.
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
from jellybean_solver.pipeline.estimates.device_memory import (
    DeviceMemory,
    device_memory,
    layer_activation_bytes,
    model_state_memory,
)
from jellybean_solver.pipeline.estimates.fitting import (
    DEVICE_MEMORY_BYTES,
    devices_for_states,
    largest_parameters,
    smallest_setup,
)
from jellybean_solver.pipeline.estimates.flops import iteration_flops
from jellybean_solver.pipeline.estimates.training_setup import RECOMPUTATIONS, TRAINING_PRECISIONS, TrainingSetup
from jellybean_solver.pipeline.estimates.transformer import Transformer
from jellybean_solver.pipeline.layer_parallelism.linear_layer import (
    LinearLayer,
    LinearStrategy,
    data_from_batch,
    least_sending,
    sent_values,
)
from jellybean_solver.pipeline.layer_parallelism.network import LayerKind, LayerStrategy, NetworkLayer, sent_bytes
from jellybean_solver.pipeline.layer_parallelism.published_networks import PUBLISHED_NETWORKS
from jellybean_solver.pipeline.model_data_sizes import WpipeSize, fastest_size, wpipe_sizes
from jellybean_solver.pipeline.partitioning.balanced import balanced_stages
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
from jellybean_solver.pipeline.partitioning.stage_devices import StageDevices, stage_devices
from jellybean_solver.pipeline.partitioning.stages import Partition, PartitionStage, TopologyLevel
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.memory import peak_activation_bytes, schedule_memory
from jellybean_solver.pipeline.schedule.schedule import Schedule
from jellybean_solver.pipeline.schedule.simulator import (
    ScheduleCosts,
    StageSeconds,
    Timeline,
    bubble_fraction,
    bubble_over_ideal,
    simulate,
    stage_seconds,
)
from jellybean_solver.pipeline.schedule.validate import schedule_violations
from jellybean_solver.pipeline.schedules import (
    ONE_DEVICE_SCHEDULE,
    SCHEDULES,
    STEADY_ROUNDS,
    check_schedule_sizes,
    make_schedule,
)
from jellybean_solver.pipeline.schedules.branches import StageGraph, branch_schedule
from jellybean_solver.pipeline.schedules.replicated import (
    REPLICATED_SCHEDULES,
    replicated_schedule,
    warm_up_forwards,
)
from jellybean_solver.pipeline.sharding.plan import ShardingPlan
from jellybean_solver.pipeline.sharding.strategies import Strategy

__all__ = [
    "COLLECTIVES",
    "DEVICE_MEMORY_BYTES",
    "ITERATION_OBJECTIVES",
    "MEMORY_SCHEDULES",
    "OBJECTIVES",
    "ONE_DEVICE_SCHEDULE",
    "PUBLISHED_NETWORKS",
    "RECOMPUTATIONS",
    "REPLICATED_SCHEDULES",
    "SCHEDULES",
    "STEADY_ROUNDS",
    "TRAINING_PRECISIONS",
    "WAYS",
    "Action",
    "ActionKind",
    "AllReduce",
    "DeviceMemory",
    "Duplex",
    "Layer",
    "LayerGraph",
    "LayerKind",
    "LayerStrategy",
    "LinearLayer",
    "LinearStrategy",
    "Link",
    "MemoryLimit",
    "NetworkLayer",
    "NothingFitsError",
    "ParticipantRound",
    "Partition",
    "PartitionSettings",
    "PartitionStage",
    "Schedule",
    "ScheduleCosts",
    "ShardingPlan",
    "StageDevices",
    "StageGraph",
    "StageSeconds",
    "Strategy",
    "Timeline",
    "TopologyLevel",
    "Traffic",
    "TrainingSetup",
    "Transfer",
    "Transformer",
    "WpipeSize",
    "all_reduce_violations",
    "balanced_stages",
    "branch_schedule",
    "bubble_fraction",
    "bubble_over_ideal",
    "check_schedule_sizes",
    "chunk_bounds",
    "count_traffic",
    "data_from_batch",
    "device_memory",
    "devices_for_states",
    "enumerate_cuts",
    "fastest_size",
    "iteration_flops",
    "largest_parameters",
    "layer_activation_bytes",
    "layer_graph",
    "least_sending",
    "make_all_reduce",
    "make_schedule",
    "model_state_memory",
    "participant_rounds",
    "partition",
    "partition_line",
    "peak_activation_bytes",
    "replicated_schedule",
    "schedule_memory",
    "schedule_violations",
    "sent_bytes",
    "sent_values",
    "simulate",
    "smallest_setup",
    "stage_devices",
    "stage_seconds",
    "warm_up_forwards",
    "wpipe_sizes",
]
