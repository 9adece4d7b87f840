"""Chooses the stages that were planned: from a plan's file, or by an objective with the measured times.

A plan gives the layers of each stage and the devices of its replicas; what is left is the schedule: 1F1B with a flush,
or PipeDream's weight stashing without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from jellybean.documents.training import AUTO, TrainingDocument
from jellybean.documents.training.plan import (
    BRANCHES,
    PLANNER_OBJECTIVES,
    StagePlan,
    few_microbatches,
    name_layers,
    read_stage_plan,
)
from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.choice.branches import choose_for_branches
from jellybean.training.choice.costs import Prices, schedule_costs
from jellybean.training.choice.cuts import check_tied_layers, stages_of_nodes
from jellybean.training.choice.memory import check_memory, device_memory_bytes
from jellybean.training.choice.schedule_choice import ScheduleChoice, fastest_of, profiled
from jellybean.training.errors import TrainingError
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean.training.stages.precision import PRECISIONS
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    ITERATION_OBJECTIVES,
    REPLICATED_SCHEDULES,
    STEADY_ROUNDS,
    LayerGraph,
    MemoryLimit,
    Schedule,
    StageDevices,
    TopologyLevel,
    bubble_fraction,
    partition,
    replicated_schedule,
    simulate,
    stage_devices,
)

_STASHING = "pipedream"


@dataclass(frozen=True)
class PlannedChoice(ScheduleChoice):
    """A schedule for planned stages. `placement[stage]`: the devices of its replicas."""

    placement: tuple[tuple[int, ...], ...] = ()

    def schedule(self, devices: int, microbatches: int) -> Schedule:
        """Generate the schedule for iterations of `microbatches` micro-batches."""
        return replicated_schedule(self.name, list(map(len, self.placement)), microbatches, self.placement)


@dataclass(frozen=True)
class PlannedStages:
    """Chooses a schedule for the document's plan, which lies in `directory`, or for its objective."""

    directory: Path

    def __call__(
        self,
        traced: TracedModule,
        facts: GraphFacts,
        tensors: tuple[torch.Tensor, ...],
        document: TrainingDocument,
        states_per_weight: float,
        device: torch.device,
        link: LinkSpeed,
    ) -> ScheduleChoice:
        """As `choose_schedule`. TrainingError, with what differs, if the plan does not fit the model or the run."""
        profile = profiled(traced, facts, tensors, document, device)
        if document.plan is not None:
            plan = read_stage_plan(self.directory / document.plan)
            objective, planned = plan.objective, plan.microbatches
            stages = stages_of_plan(plan, document.plan, profile.graph, document)
        else:
            objective, planned = document.objective or "", None
            stages = stages_by_objective(profile.graph, document, states_per_weight, link)
        if objective == BRANCHES:
            places = {layer: stage.devices[0] for stage in stages for layer in stage.layers}
            devices = [places[layer] for layer in range(len(places))]
            return choose_for_branches(devices, profile, (traced, facts), document, states_per_weight, link)
        return choose_for_stages(stages, profile, document, states_per_weight, link, planned)


def stages_of_plan(
    plan: StagePlan, name: str, graph: LayerGraph, document: TrainingDocument
) -> tuple[StageDevices, ...]:
    """The plan's stages with the indices of the model's layers. TrainingError if they do not fit, with what differs."""
    if plan.devices != document.devices:
        raise TrainingError(f"{name} is for {plan.devices} devices ({plan.counts}), and the run has {document.devices}")
    if plan.objective == BRANCHES and max(plan.replicas) > 1:
        raise TrainingError(f"{name} places branches, and a stage of them has {max(plan.replicas)} replicas")
    indices = {layer.name: index for index, layer in enumerate(graph.layers)}
    planned = [layer for stage in plan.placement for layer in stage.layers]
    unknown = [layer for layer in planned if layer not in indices]
    missing = [layer for layer in indices if layer not in set(planned)]
    if unknown or missing:
        differences = [f"the model has no {name_layers(unknown)}"] if unknown else []
        differences += [f"the plan has no {name_layers(missing)}"] if missing else []
        raise TrainingError(f"{name} is the plan of another model: {', and '.join(differences)}")
    stages = tuple(
        StageDevices(tuple(indices[layer] for layer in stage.layers), stage.devices) for stage in plan.placement
    )
    home = {layer: number for number, stage in enumerate(stages) for layer in stage.layers}
    for up, down in graph.edges if plan.objective != BRANCHES else ():
        if home[up] > home[down]:
            later, earlier = graph.layers[up].name, graph.layers[down].name
            raise TrainingError(
                f"{name}: {earlier} of stage {home[down]} needs {later} of stage {home[up]}; stages send forwards only"
            )
    return stages


def stages_by_objective(
    graph: LayerGraph, document: TrainingDocument, states_per_weight: float, link: LinkSpeed
) -> tuple[StageDevices, ...]:
    """The stages of the document's objective on its devices, by measured times. TrainingError if none fits."""
    objective = PLANNER_OBJECTIVES[document.objective or _STASHING]
    limit = None
    if document.memory_bytes is not None and objective != BRANCHES:
        schedule = _STASHING if document.schedule == _STASHING else "1f1b"
        limit = MemoryLimit(document.memory_bytes, schedule, document.microbatches, states_per_weight)
    levels = [TopologyLevel(document.devices, link.bytes_per_s)]
    microbatches = document.microbatches if objective in ITERATION_OBJECTIVES else None
    try:
        plan = partition(graph, levels, objective=objective, limit=limit, microbatches=microbatches)
    except SolverError as error:
        raise TrainingError(f"objective: {document.objective}: {error}") from error
    stages = stage_devices(plan.stages)
    used = sum(len(stage.devices) for stage in stages)
    if used < document.devices:
        raise TrainingError(
            f"objective: {document.objective}: {used} of {document.devices} devices are the fastest, as messages and "
            f"sums of gradients cost more than the others save: --set devices={used}"
        )
    return stages


def choose_for_stages(
    stages: Sequence[StageDevices],
    profile: TorchProfile,
    document: TrainingDocument,
    states_per_weight: float,
    link: LinkSpeed,
    planned: int | None = None,
) -> PlannedChoice:
    """The document's schedule on these stages, or the fastest that is allowed. TrainingError if there is none.

    `planned`: micro-batches for which the stages were planned, for the message.
    """
    if document.schedule not in (AUTO, *REPLICATED_SCHEDULES):
        known = ", ".join(REPLICATED_SCHEDULES)
        raise TrainingError(f"a plan trains by {known}, not by {document.schedule}: its stages may have replicas")
    names = [document.schedule]
    if document.schedule == AUTO:
        names = ["1f1b", *([_STASHING] if document.staleness else [])]
    best, rejected = fastest_of(
        names, lambda name: _choice(name, stages, profile, document, states_per_weight, link, planned)
    )
    if best is None:
        raise TrainingError("\n".join(rejected.values()))
    return best


def _choice(
    name: str,
    stages: Sequence[StageDevices],
    profile: TorchProfile,
    document: TrainingDocument,
    states_per_weight: float,
    link: LinkSpeed,
    planned: int | None,
) -> PlannedChoice:
    layers = tuple(stage.layers for stage in stages)
    placement = tuple(stage.devices for stage in stages)
    counts = list(map(len, placement))
    flushes = name != _STASHING
    count = document.microbatches if flushes else STEADY_ROUNDS * math.lcm(*counts)
    if flushes and (few := few_microbatches(counts, count, planned)):
        raise TrainingError(few)
    PRECISIONS[document.precision].check_schedule(name, flushes=flushes)
    schedule = replicated_schedule(name, counts, count, placement)
    check_tied_layers(name, schedule, profile, layers)
    costs = schedule_costs(profile, layers, schedule, document, Prices(link))
    needed = device_memory_bytes(profile, layers, schedule, states_per_weight, document)
    check_memory(name, needed, document)
    timeline = simulate(schedule, costs)
    return PlannedChoice(
        name=name,
        chunks=None,
        period=None if flushes else schedule.period,
        layers=layers,
        tracer=profile.tracer,
        stage_of=stages_of_nodes(profile, layers),
        costs=costs,
        microbatch_s=timeline.makespan_s / count,
        bubble=bubble_fraction(timeline),
        memory_bytes=needed,
        placement=placement,
    )
