"""Cuts of a profiled model for a schedule: layers by stage."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.training.errors import TrainingError, first_names
from jellybean_solver import SolverError
from jellybean_solver.pipeline import LayerGraph, Schedule, balanced_stages


def cut_layers(graph: LayerGraph, stages: int) -> tuple[tuple[int, ...], ...]:
    """Layer indices per stage: contiguous, non-empty blocks that minimise the time of the slowest stage."""
    try:
        return balanced_stages(graph, stages)
    except SolverError as error:
        names = first_names([layer.name for layer in graph.layers])
        raise TrainingError(
            f"{error}: it can be cut between {names}; take fewer devices, or a schedule with fewer stages on each"
        ) from error


def stages_of_nodes(profile: TorchProfile, layers: Sequence[Sequence[int]]) -> dict[str, int]:
    """The stage of each operation of the traced model. `layers`: of each stage."""
    return {node: stage for stage, members in enumerate(layers) for layer in members for node in profile.members[layer]}


def check_tied_layers(
    name: str, schedule: Schedule, profile: TorchProfile, layers: tuple[tuple[int, ...], ...]
) -> None:
    """TrainingError if a schedule without a flush would update a tied weight in several stages."""
    home = {profile.graph.layers[layer].name: stage for stage, members in enumerate(layers) for layer in members}
    for weight, users in profile.tied.items():
        if not schedule.flushes and len({home[user] for user in users}) > 1:
            raise TrainingError(f"{weight} is shared by several stages, which {name} updates at different times")
