"""Cuts of a profiled model for a schedule: layers by stage."""

from __future__ import annotations

from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.training.errors import TrainingError
from jellybean_solver.pipeline import LayerGraph, Schedule, TopologyLevel, partition


def cut_layers(graph: LayerGraph, stages: int) -> tuple[tuple[int, ...], ...]:
    """Layer indices per stage: contiguous, non-empty blocks that minimise the time of the slowest stage."""
    if len(graph.layers) < stages:
        raise TrainingError(f"the model has {len(graph.layers)} layers, too few for {stages} stages")
    best = [stage.layers for stage in partition(graph, [TopologyLevel(stages, 1e12)], objective="balance").stages]
    while len(best) < stages:  # the optimum may leave stages empty: split the longest block
        place = max(range(len(best)), key=lambda i: len(best[i]))
        half = len(best[place]) // 2
        best[place : place + 1] = [best[place][:half], best[place][half:]]
    return tuple(best)


def check_tied_layers(
    name: str, schedule: Schedule, profile: TorchProfile, layers: tuple[tuple[int, ...], ...]
) -> None:
    """TrainingError if a schedule without a flush would update a tied weight in several stages."""
    home = {profile.graph.layers[layer].name: stage for stage, own in enumerate(layers) for layer in own}
    for weight, users in profile.tied.items():
        if not schedule.flushes and len({home[user] for user in users}) > 1:
            raise TrainingError(f"{weight} is shared by several stages, which {name} updates at different times")
