"""Memory of a schedule on the stages of a profiled model."""

from __future__ import annotations

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.training.collectives.buffer_memory import sum_buffer_bytes
from jellybean.training.errors import TrainingError
from jellybean.training.stages.precision import PRECISIONS
from jellybean_solver.pipeline import Schedule, peak_activation_bytes, schedule_memory

_FLOAT_BYTES = 4  # of a weight, a gradient and a master copy


def check_memory(name: str, needed_bytes: float, document: TrainingDocument) -> None:
    """TrainingError if the fullest device needs more than the document's `memory`."""
    if document.memory_bytes is not None and needed_bytes > document.memory_bytes:
        raise TrainingError(f"{name} needs {needed_bytes:,.0f} bytes on a device that has {document.memory_bytes:,.0f}")


def device_memory_bytes(
    profile: TorchProfile,
    layers: tuple[tuple[int, ...], ...],
    schedule: Schedule,
    states_per_weight: float,
    document: TrainingDocument,
) -> float:
    """Peak bytes of the fullest device: weights and activations in flight; versions, gradients and optimizer states of
    trained weights, and buffers for sums of their gradients. Weights in a short type have master copies beside.
    """
    precision = PRECISIONS[document.precision]
    share, masters = (precision.weights.itemsize / _FLOAT_BYTES, 1.0) if precision.weights is not None else (1.0, 0.0)
    weights = [sum(profile.graph.layers[layer].parameter_bytes for layer in stage) for stage in layers]
    trained = [sum(profile.trained_bytes[layer] for layer in stage) for stage in layers]
    activation_bytes = [sum(profile.graph.layers[layer].activation_bytes for layer in stage) for stage in layers]
    needed = []
    for device, memory in enumerate(schedule_memory(schedule)):
        fixed = sum(
            weights[one.stage] * share
            + trained[one.stage] * ((one.weight_versions - 1) * share + 1 + masters + states_per_weight)
            for one in memory.stages
        )
        held = sorted({one.stage for one in memory.stages})
        buffers = sum(_sum_bytes(stage, profile, layers[stage], schedule, document) for stage in held)
        needed.append(fixed + buffers + peak_activation_bytes(schedule, device, activation_bytes))
    return max(needed)


def _sum_bytes(
    stage: int, profile: TorchProfile, layers: tuple[int, ...], schedule: Schedule, document: TrainingDocument
) -> float:
    """Buffers for the sum of a stage's gradients over its copies. Those of shared weights are left out."""
    devices = {places[stage] for places in schedule.device_of}
    gradient_bytes = [profile.trained_bytes[layer] for layer in layers]
    ranks = len(devices) * document.replicas
    return sum_buffer_bytes(document.sync, ranks, gradient_bytes, on_cpu=profile.device.type == "cpu")
