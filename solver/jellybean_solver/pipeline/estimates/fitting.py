"""Which transformers fit into a device's memory, and how many devices one needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from jellybean_solver.pipeline.estimates.device_memory import device_memory
from jellybean_solver.pipeline.estimates.training_setup import TrainingSetup
from jellybean_solver.pipeline.estimates.transformer import Transformer

# Device memory in bytes, from the manufacturers' data sheets, with 1 GB = 1e9 bytes.
DEVICE_MEMORY_BYTES = {
    "T4": 16e9,
    "RTX 4090": 24e9,
    "V100": 32e9,
    "A100 40 GB": 40e9,
    "A100 80 GB": 80e9,
    "H100": 80e9,
    "H200": 141e9,
    "MI300X": 192e9,
}
MAX_TENSOR = 8  # tensor parallelism stays inside a machine of eight devices (Narayanan et al. 2021, takeaway 1)


def largest_parameters(memory_bytes: float, setup: TrainingSetup) -> float:
    """The most parameters whose weights, gradients and optimizer states fit one device, without activations."""
    return memory_bytes / setup.bytes_per_parameter


def devices_for_states(transformer: Transformer, memory_bytes: float, setup: TrainingSetup) -> int:
    """The fewest devices whose memory holds one copy of weights, gradients and optimizer states: a lower bound."""
    return max(1, math.ceil(transformer.parameters * setup.bytes_per_parameter / memory_bytes))


def smallest_setup(transformer: Transformer, memory_bytes: float, setup: TrainingSetup) -> TrainingSetup | None:
    """The setup with the fewest devices that fits, activations included; None if none does.

    The search is over tensor sizes up to `MAX_TENSOR` that divide the heads, and over pipeline stages, with the given
    replicas. Of several with as few devices, it returns the one with the smallest tensor size.
    """
    fits = (
        candidate
        for candidate in _setups(transformer, setup)
        if device_memory(transformer, candidate).total_bytes <= memory_bytes
    )
    return min(fits, key=lambda candidate: (candidate.devices, candidate.tensor), default=None)


def _setups(transformer: Transformer, setup: TrainingSetup) -> Iterator[TrainingSetup]:
    """Per tensor size, the fewest pipeline stages for each number of layers per stage; more would only cost devices."""
    stages = {-(-transformer.layers // layers) for layers in range(1, transformer.layers + 1)}
    for tensor in range(1, MAX_TENSOR + 1):
        if transformer.heads % tensor == 0:
            for pipeline in stages:
                yield replace(setup, tensor=tensor, pipeline=pipeline)
