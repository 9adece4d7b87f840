"""Stages of a model whose branches run at the same time, from the device of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jellybean.documents.training import AUTO, TrainingDocument
from jellybean.documents.training.plan import BRANCHES
from jellybean.pipeline.torch_graph import GraphFacts
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.pipeline.torch_trace import TracedModule
from jellybean.training.choice.costs import Prices, schedule_costs
from jellybean.training.choice.cuts import stages_of_nodes
from jellybean.training.choice.memory import check_memory, device_memory_bytes
from jellybean.training.choice.schedule_choice import ScheduleChoice
from jellybean.training.errors import TrainingError
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean.training.stages.cut import cut_module
from jellybean.training.stages.precision import PRECISIONS
from jellybean_solver.pipeline import (
    LayerGraph,
    Schedule,
    StageGraph,
    branch_schedule,
    bubble_fraction,
    simulate,
)


@dataclass(frozen=True)
class BranchChoice(ScheduleChoice):
    """A schedule for stages that form a graph."""

    graph: StageGraph | None = None

    def schedule(self, devices: int, microbatches: int) -> Schedule:
        """Generate the schedule for iterations of `microbatches` micro-batches."""
        if self.graph is None:
            raise AssertionError("a choice of branches has their graph")
        return branch_schedule(self.graph, microbatches)


def branch_stages(graph: LayerGraph, devices: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """(layers of each stage, its device) for the device of each layer.

    A stage ends after a layer that another device needs, which so gets it at once, and a layer that needs another
    device begins one, so that those before it need not wait. Tensors go from a stage to one with a higher number.
    """
    stages: list[list[int]] = []
    places: list[int] = []
    latest: dict[int, int] = {}  # device -> its stage that is not yet ended
    crossing = [(up, down) for up, down in graph.edges if devices[up] != devices[down]]
    sends, receives = {up for up, _ in crossing}, {down for _, down in crossing}
    for layer, device in enumerate(devices):
        if device not in latest or layer in receives:
            latest[device] = len(stages)
            stages.append([])
            places.append(device)
        stages[latest[device]].append(layer)
        if layer in sends:
            del latest[device]
    return tuple(map(tuple, stages)), tuple(places)


def choose_for_branches(
    devices: Sequence[int],
    profile: TorchProfile,
    model: tuple[TracedModule, GraphFacts],
    document: TrainingDocument,
    states_per_weight: float,
    link: LinkSpeed,
) -> BranchChoice:
    """The schedule for the device of each layer. `model`: what `profile` is of. TrainingError if it does not fit."""
    if document.schedule != AUTO:
        raise TrainingError(f"branches have a schedule of their own: remove `schedule: {document.schedule}`")
    PRECISIONS[document.precision].check_schedule(BRANCHES, flushes=True)
    layers, places = branch_stages(profile.graph, devices)
    stage_of = stages_of_nodes(profile, layers)
    cut = cut_module(*model, stage_of, direct=True)
    received = [stage.inputs.links for stage in cut.stages]
    pairs = {(source, number) for number, links in enumerate(received) if links is not None for source in links.sources}
    edges = tuple(sorted(pairs))
    graph = StageGraph(places, edges, *_compute_s(profile.graph, layers, recompute=document.recompute))
    schedule = branch_schedule(graph, document.microbatches)
    sent_s = tuple(link.seconds(_sent_bytes(profile.graph, layers, *edge)) for edge in edges)
    chain_costs = schedule_costs(profile, layers, schedule, document, Prices(link))
    costs = replace(chain_costs, transfer_s=sent_s or 0.0)
    needed = device_memory_bytes(profile, layers, schedule, states_per_weight, document)
    check_memory(BRANCHES, needed, document)
    timeline = simulate(schedule, costs)
    return BranchChoice(
        name=BRANCHES,
        chunks=None,
        period=None,
        layers=layers,
        tracer=profile.tracer,
        stage_of=stage_of,
        costs=costs,
        microbatch_s=timeline.makespan_s / document.microbatches,
        bubble=bubble_fraction(timeline),
        memory_bytes=needed,
        graph=graph,
    )


def _compute_s(
    graph: LayerGraph, layers: Sequence[Sequence[int]], *, recompute: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Forward and backward seconds of each stage."""
    forward = tuple(sum(graph.layers[layer].forward_s for layer in stage) for stage in layers)
    backward = tuple(sum(graph.layers[layer].backward_s for layer in stage) for stage in layers)
    return forward, tuple(map(sum, zip(forward, backward, strict=True))) if recompute else backward


def _sent_bytes(graph: LayerGraph, layers: Sequence[Sequence[int]], sender: int, receiver: int) -> float:
    """Bytes of the outputs of a stage's layers that another stage reads, each sent once."""
    ups = {up for up, down in graph.edges if up in layers[sender] and down in layers[receiver]}
    return sum(graph.layers[layer].activation_bytes for layer in ups)
