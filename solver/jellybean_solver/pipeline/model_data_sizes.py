"""WPipe's choice of M:N: how many of the workers form a pipeline, and how many pipelines train beside each other.

W = M x N workers, a batch of B samples per update. A pipeline runs M micro-batches between updates (Yang et al. 2022),
so a micro-batch has B / (M N) = B / W samples, whatever M is: a longer pipeline has less of the weights on each device
and sums fewer gradients, and sends more activations. With M = 1 it is data parallelism, without old weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.collectives.closed_forms import collective
from jellybean_solver.pipeline.partitioning.balanced import balanced_stages
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.schedule.memory import peak_activation_bytes, schedule_memory
from jellybean_solver.pipeline.schedule.schedule import Schedule
from jellybean_solver.pipeline.schedule.simulator import ScheduleCosts, simulate
from jellybean_solver.pipeline.schedules import ONE_DEVICE_SCHEDULE, STEADY_ROUNDS, make_schedule


@dataclass(frozen=True, slots=True)
class WpipeSize:
    """M = `devices` of a pipeline, N = `replicas`, for a batch of `microbatches` profiled micro-batches per update.

    `memory_bytes`: of the fullest device. `update_s`: seconds of an update in the steady state.
    """

    devices: int
    replicas: int
    microbatches: float
    memory_bytes: float
    update_s: float


def wpipe_sizes(
    graph: LayerGraph, workers: int, microbatches: float, bandwidth: float, states: float = 0.0
) -> list[WpipeSize]:
    """Memory and time of every M:N of `workers` for whose 2 M stages the model has enough layers.

    `graph`: a profile of one micro-batch. `microbatches`: so many of them are a batch. `bandwidth`: bytes per second
    between workers. `states`: optimizer state per byte of parameters. SolverError for sizes that are not positive.
    """
    if workers < 1 or microbatches <= 0 or bandwidth <= 0:
        raise SolverError("workers, micro-batches and bandwidth must be positive")
    sizes = [devices for devices in range(1, workers + 1) if workers % devices == 0]
    usable = [devices for devices in sizes if _stages(devices) <= len(graph.layers)]
    return [_size(graph, devices, workers // devices, microbatches, bandwidth, states) for devices in usable]


def fastest_size(sizes: Sequence[WpipeSize], memory_bytes: float | None = None) -> WpipeSize | None:
    """The one with the shortest update that fits into a device's memory; None if none fits."""
    fit = [one for one in sizes if memory_bytes is None or one.memory_bytes <= memory_bytes]
    return min(fit, key=lambda one: (one.update_s, one.memory_bytes), default=None)


def _stages(devices: int) -> int:
    return 2 * devices if devices > 1 else 1


def _size(
    graph: LayerGraph, devices: int, replicas: int, microbatches: float, bandwidth: float, states: float
) -> WpipeSize:
    name = "wpipe" if devices > 1 else ONE_DEVICE_SCHEDULE
    schedule = make_schedule(name, devices, STEADY_ROUNDS * devices if devices > 1 else 1)
    layers = balanced_stages(graph, schedule.stages)
    share = microbatches / (devices * replicas)  # of the profiled micro-batch
    parameters = [sum(graph.layers[layer].parameter_bytes for layer in own) for own in layers]
    activations = [share * sum(graph.layers[layer].activation_bytes for layer in own) for own in layers]
    costs = ScheduleCosts(
        tuple(share * sum(graph.layers[layer].forward_s for layer in own) for own in layers),
        tuple(share * sum(graph.layers[layer].backward_s for layer in own) for own in layers),
        transfer_s=tuple(share * size / bandwidth for size in graph.boundary_bytes(layers)) or 0.0,
        wait_s=tuple(collective("ring").seconds(size, replicas, bandwidth) for size in parameters),
    )
    updates = schedule.microbatches // schedule.period
    memory_bytes = _memory_bytes(schedule, parameters, activations, states)
    return WpipeSize(devices, replicas, microbatches, memory_bytes, simulate(schedule, costs).makespan_s / updates)


def _memory_bytes(
    schedule: Schedule, parameters: Sequence[float], activations: Sequence[float], states: float
) -> float:
    """Bytes of the fullest device: weight versions, gradients, optimizer states, activations in flight."""
    needed = []
    for device, memory in enumerate(schedule_memory(schedule)):
        fixed = sum(parameters[one.stage] * (one.weight_versions + 1 + states) for one in memory.stages)
        needed.append(fixed + peak_activation_bytes(schedule, device, activations))
    return max(needed)
