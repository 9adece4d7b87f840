"""Memory of a schedule on the stages of a profiled model."""

from __future__ import annotations

from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.training.stages.precision import Precision
from jellybean_solver.pipeline import ActionKind, Schedule, schedule_memory

_FLOAT_BYTES = 4  # of a weight, a gradient and a master copy


def device_memory_bytes(
    profile: TorchProfile,
    layers: tuple[tuple[int, ...], ...],
    schedule: Schedule,
    states_per_weight: float,
    precision: Precision,
) -> float:
    """Peak bytes of the fullest device: weights and activations in flight; versions, gradients and optimizer states of
    trained weights. Weights in a short type have master copies beside.
    """
    share, masters = (precision.weights.itemsize / _FLOAT_BYTES, 1.0) if precision.weights is not None else (1.0, 0.0)
    weights = [sum(profile.graph.layers[layer].parameter_bytes for layer in own) for own in layers]
    trained = [sum(profile.trained_bytes[layer] for layer in own) for own in layers]
    activation_bytes = [sum(profile.graph.layers[layer].activation_bytes for layer in own) for own in layers]
    needed = []
    for device, own in enumerate(schedule_memory(schedule)):
        fixed = sum(
            weights[one.stage] * share
            + trained[one.stage] * ((one.weight_versions - 1) * share + 1 + masters + states_per_weight)
            for one in own.stages
        )
        needed.append(fixed + _peak_activation_bytes(schedule, device, activation_bytes))
    return max(needed)


def _peak_activation_bytes(schedule: Schedule, device: int, activation_bytes: list[float]) -> float:
    now = most = 0.0
    for action in schedule.actions[device]:
        if action.kind is ActionKind.FORWARD:
            now += activation_bytes[action.stage]
        elif action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT):
            now -= activation_bytes[action.stage]
        most = max(most, now)
    return most
