"""Chooses the schedule and the cuts of a run: profiles the model, partitions it, simulates every schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from jellybean.display import formats
from jellybean.documents.training import AUTO, TrainingDocument
from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.pipeline.torch_profile import ProfileTarget, TorchProfile, profile_traced
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.choice.compression import compressions
from jellybean.training.choice.costs import Prices, schedule_costs
from jellybean.training.choice.cuts import check_tied_layers, cut_layers, stages_of_nodes
from jellybean.training.choice.memory import check_memory, device_memory_bytes
from jellybean.training.errors import TrainingError
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean.training.stages.precision import PRECISIONS
from jellybean.training.tensor_parallel.profile import LayerParts, sample_rows
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    SCHEDULES,
    STEADY_ROUNDS,
    Schedule,
    ScheduleCosts,
    StageSeconds,
    bubble_fraction,
    make_schedule,
    simulate,
)


@dataclass(frozen=True)
class ScheduleChoice:
    """A schedule and the cuts of the model for it, with predicted time and memory.

    `period`: micro-batches per update of a schedule without a flush, else None. `layers[stage]`: indices of layers in
    the profile. `tracer`: what traced the model. `stage_of`: stage by graph node name. `microbatch_s`: predicted
    seconds per micro-batch. `memory_bytes`: peak memory of the fullest device. `backward_ratio`: of a backward's time
    to a forward's, by which Chimera's order was made. `compress`: type of the messages
    between each stage and the next. `rejected`: other schedules -> reason.
    """

    name: str
    chunks: int | None
    period: int | None
    layers: tuple[tuple[int, ...], ...]
    tracer: str
    stage_of: dict[str, int]
    costs: ScheduleCosts
    microbatch_s: float
    bubble: float
    memory_bytes: float
    backward_ratio: float = 2.0
    compress: tuple[str, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)

    def schedule(self, devices: int, microbatches: int) -> Schedule:
        """Generate the schedule for iterations of `microbatches` micro-batches."""
        return make_schedule(self.name, devices, microbatches, self.chunks, backward_ratio=self.backward_ratio)

    def tried(self, costs: ScheduleCosts, microbatch_s: float, idle: float) -> ScheduleChoice:
        """The same with what a trial measured in place of what was predicted."""
        return replace(self, costs=costs, microbatch_s=microbatch_s, bubble=idle)


Choice = TypeVar("Choice", bound=ScheduleChoice)


def choose_schedule(
    traced: TracedModule,
    facts: GraphFacts,
    tensors: tuple[torch.Tensor, ...],
    document: TrainingDocument,
    states_per_weight: float,
    device: torch.device,
    link: LinkSpeed,
) -> ScheduleChoice:
    """Profile the model on one micro-batch; take the document's schedule, or the fastest that fits into memory.

    `states_per_weight`: size of the optimizer's state. `device`: where layers are timed. `link`: between two devices.
    SolverError or TrainingError if there is no such schedule.
    """
    profile = profiled(traced, facts, tensors, document, device)
    return choose_from_profile(profile, document, states_per_weight, link)


def profiled(
    traced: TracedModule,
    facts: GraphFacts,
    tensors: tuple[torch.Tensor, ...],
    document: TrainingDocument,
    device: torch.device,
) -> TorchProfile:
    """The profile of what one process computes of a micro-batch: its parts of split layers, all of the others.

    TrainingError if layers cannot be split as the document names them.
    """
    target = ProfileTarget(device, PRECISIONS[document.precision].computation)
    profile = profile_traced(traced, facts, tensors, runs=3, target=target)
    rows = sample_rows(value.shape for value in tensors)
    return LayerParts(traced, facts, document).profile(profile, document.tensor.ways, rows)


def choose_from_profile(
    profile: TorchProfile, document: TrainingDocument, states_per_weight: float, link: LinkSpeed
) -> ScheduleChoice:
    """As `choose_schedule`, from an existing profile; equal profiles give equal choices."""
    prices = Prices(link)
    if document.schedule != AUTO:
        return predict(document.schedule, profile, document, states_per_weight, prices)
    best, rejected = fastest_of(SCHEDULES, lambda name: predict(name, profile, document, states_per_weight, prices))
    if best is None:
        reasons = "\n".join(
            f"  - {why if why.startswith(name) else f'{name}: {why}'}" for name, why in rejected.items()
        )
        raise TrainingError(f"no schedule can be used on {document.devices} devices\n{reasons}")
    return best


def fastest_of(names: Iterable[str], choose: Callable[[str], Choice]) -> tuple[Choice | None, dict[str, str]]:
    """(the fastest choice, of equal ones that with the least memory; reasons against the others, which it has, too).

    `choose(name)`: SolverError or TrainingError if a schedule cannot be used. None if none can.
    """
    usable: list[Choice] = []
    rejected: dict[str, str] = {}
    for name in names:
        try:
            usable.append(choose(name))
        except (SolverError, TrainingError) as error:
            rejected[name] = str(error)
    if not usable:
        return None, rejected
    best = min(usable, key=lambda one: (one.microbatch_s, one.memory_bytes))
    for one in usable:
        if one is not best:
            times = formats.duration(one.microbatch_s), formats.duration(best.microbatch_s)
            rejected[one.name] = f"{times[0]} a micro-batch in place of {times[1]}"
    return replace(best, rejected=rejected), rejected


def predict(
    name: str, profile: TorchProfile, document: TrainingDocument, states_per_weight: float, prices: Prices
) -> ScheduleChoice:
    """Cut the model for a schedule and simulate it on the document's devices.

    SolverError or TrainingError if it is not defined, does not fit, or is not allowed.
    """
    asked, devices = name == document.schedule, document.devices
    chunks = document.chunks if name == "interleaved" else None
    sample = make_schedule(name, devices, devices, chunks)
    count = document.microbatches if sample.flushes else STEADY_ROUNDS * devices
    if not sample.flushes and not asked and not document.staleness:
        raise TrainingError("its gradients are of older weights; `staleness: true` allows it")
    if not sample.flushes:
        count = max(count - count % sample.period, sample.period)
    PRECISIONS[document.precision].check_schedule(name, flushes=sample.flushes)
    layers = cut_layers(profile.graph, sample.stages)
    check_tied_layers(name, sample, profile, layers)
    costs = schedule_costs(profile, layers, sample, document, prices)
    ratio = _mean(costs.backward_s) / max(_mean(costs.forward_s), 1e-9)
    schedule = make_schedule(name, devices, count, chunks, backward_ratio=ratio)
    needed = device_memory_bytes(profile, layers, schedule, states_per_weight, document)
    check_memory(name, needed, document)
    timeline = simulate(schedule, costs)
    return ScheduleChoice(
        name,
        chunks,
        None if schedule.flushes else schedule.period,
        layers,
        profile.tracer,
        stages_of_nodes(profile, layers),
        costs,
        timeline.makespan_s / count,
        bubble_fraction(timeline),
        needed,
        ratio,
        compressions(profile.graph, layers, document, prices.link),
    )


def _mean(seconds: StageSeconds) -> float:
    return sum(seconds) / len(seconds) if isinstance(seconds, tuple) else seconds
