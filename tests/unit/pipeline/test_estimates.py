"""Estimates of a transformer's training equal the published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    TRAINING_PRECISIONS,
    TrainingSetup,
    Transformer,
    device_memory,
    devices_for_states,
    iteration_flops,
    largest_parameters,
    model_state_memory,
    smallest_setup,
)
from jellybean_solver.pipeline.estimates.device_memory import layer_activation_bytes

MIXED = TrainingSetup(TRAINING_PRECISIONS["bfloat16-weights"])
GPT3 = Transformer(layers=96, hidden=12288, vocab=51200, heads=96, seq=2048)
SMALL = Transformer(layers=24, hidden=1024, vocab=50257, heads=16, seq=1024)


@pytest.mark.parametrize(
    ("billions", "hidden", "heads", "layers"),
    [
        (1.7, 2304, 24, 24),
        (3.6, 3072, 32, 30),
        (7.5, 4096, 32, 36),
        (18.4, 6144, 48, 40),
        (39.1, 8192, 64, 48),
        (76.1, 10240, 80, 60),
        (145.6, 12288, 96, 80),
        (310.1, 16384, 128, 96),
        (529.6, 20480, 128, 105),
        (1008.0, 25600, 160, 128),
    ],
)
def test_parameters_of_narayanan_2021_table_1(billions: float, hidden: int, heads: int, layers: int) -> None:
    """Their figures include position embeddings, s h; ours do not."""
    transformer = Transformer(layers, hidden, 51200, heads, 2048)
    assert transformer.parameters == 12 * layers * hidden**2 + 13 * layers * hidden + 51200 * hidden
    assert round((transformer.parameters + 2048 * hidden) / 1e9, 1) == billions


@pytest.mark.parametrize(("parameters", "gigabytes"), [(0.32e9, 5.12), (17.2e9, 275), (175e9, 2800)])
@pytest.mark.parametrize("precision", TRAINING_PRECISIONS)
def test_sixteen_bytes_per_parameter(parameters: float, gigabytes: float, precision: str) -> None:
    memory = model_state_memory(parameters, TrainingSetup(TRAINING_PRECISIONS[precision]))
    assert memory.total_bytes / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert memory.activations_bytes == 0


def test_states_replace_those_of_adam() -> None:
    """Momentum keeps one number of the weights' type per parameter."""
    memory = model_state_memory(1e9, TrainingSetup(TRAINING_PRECISIONS["float32"], states=1))
    assert (memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes) == (4e9, 4e9, 4e9)


def test_24_gigabytes_hold_a_model_and_a_half_and_not_the_published_1_9() -> None:
    assert largest_parameters(24e9, MIXED) == 1.5e9


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_of_rajbhandari_2020_figure_1(zero: int, gigabytes: float) -> None:
    memory = model_state_memory(7.5e9, replace(MIXED, replicas=64, zero=zero))
    assert round(memory.total_bytes / 1e9, 1) == gigabytes


@pytest.mark.parametrize(("heads", "hidden", "factor"), [(96, 12288, 34 + 80), (128, 20480, 34 + 64)])
def test_activations_of_korthikanti_2022(heads: int, hidden: int, factor: int) -> None:
    """GPT-3 and MT-NLG: 5as/h is 80 and 64; tensor parallelism divides all but the factor 10."""
    transformer = Transformer(8, hidden, 51200, heads, 2048)
    size = 2048 * 3 * hidden
    setup = replace(MIXED, micro_batch=3)
    assert layer_activation_bytes(transformer, setup) == size * factor
    assert layer_activation_bytes(transformer, replace(setup, tensor=8)) == size * (10 + (factor - 10) / 8)
    assert layer_activation_bytes(transformer, replace(setup, recompute="selective")) == size * 34
    assert layer_activation_bytes(transformer, replace(setup, recompute="full", tensor=8)) == size * 2
    doubled = replace(setup, precision=TRAINING_PRECISIONS["float32"])
    assert layer_activation_bytes(transformer, doubled) == size * (2 * 32 + 2 + (factor - 34) * 9 / 5)


def test_a_device_of_the_first_stage_keeps_as_many_layers_as_the_model_has() -> None:
    """With 1F1B it has P micro-batches of L/P layers in flight, or all M if these are fewer."""
    layer = layer_activation_bytes(SMALL, MIXED)
    logits = 1024 * (4 * 1024 + 4 * 50257)
    assert device_memory(SMALL, MIXED).activations_bytes == 24 * layer + logits
    staged = replace(MIXED, pipeline=4)
    assert device_memory(SMALL, staged).activations_bytes == 24 * layer
    assert device_memory(SMALL, replace(staged, batch=2)).activations_bytes == 12 * layer
    full = replace(staged, recompute="full")
    assert device_memory(SMALL, full).activations_bytes == 23 * layer_activation_bytes(SMALL, full) + layer
    weights = device_memory(SMALL, staged).weights_bytes
    assert weights == 2 * (6 * SMALL.layer_parameters + SMALL.embedding_parameters)
    assert device_memory(SMALL, replace(staged, pipeline=5)).weights_bytes == pytest.approx(
        2 * (5 * SMALL.layer_parameters + SMALL.embedding_parameters)
    )


def test_flops_of_narayanan_2021() -> None:
    published = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert iteration_flops(GPT3, 1536, "full") == pytest.approx(published)
    without = 72 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    assert iteration_flops(GPT3, 1536) == pytest.approx(without)
    again = iteration_flops(GPT3, 1536, "selective") - iteration_flops(GPT3, 1536)
    assert again == pytest.approx(96 * 4 * 1536 * 2048**2 * 12288)


@pytest.mark.parametrize(
    ("transformer", "tokens", "devices", "flops_per_s", "days"),
    [(GPT3, 300e9, 1024, 140e12, 34), (Transformer(128, 25600, 51200, 160, 2048), 450e9, 3072, 163e12, 84)],
)
def test_published_days_of_training(
    transformer: Transformer, tokens: float, devices: int, flops_per_s: float, days: float
) -> None:
    """Narayanan et al. 2021, section 5.1, at their measured FLOPs per second; they round 8TP / nX down."""
    per_sample = iteration_flops(transformer, 1, "full")
    seconds = per_sample * tokens / 2048 / (devices * flops_per_s)
    assert seconds / 86400 == pytest.approx(days, rel=0.025)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("transformer", "memory_bytes"),
    [(SMALL, 3e9), (SMALL, 6e9), (SMALL, 24e9), (GPT3, 24e9), (GPT3, 32e9), (GPT3, 80e9)],
)
def test_the_smallest_setup_is_that_of_an_exhaustive_search(
    transformer: Transformer, memory_bytes: float, recompute: str
) -> None:
    setup = replace(MIXED, replicas=2, zero=1, recompute=recompute)
    fits = [
        (tensor * stages * 2, tensor)
        for tensor in range(1, 9)
        for stages in range(1, transformer.layers + 1)
        if transformer.heads % tensor == 0
        if device_memory(transformer, replace(setup, tensor=tensor, pipeline=stages)).total_bytes <= memory_bytes
    ]
    smallest = smallest_setup(transformer, memory_bytes, setup)
    assert (smallest and (smallest.devices, smallest.tensor)) == min(fits, default=None)
    assert smallest_setup(transformer, 1e8, setup) is None


def test_fewer_devices_count_more_than_a_smaller_tensor_size() -> None:
    """GPT-3 with full recomputation on 32 GB: 6 x 20 devices, though 4 devices per layer would do with more stages."""
    full = replace(MIXED, recompute="full")
    smallest = smallest_setup(GPT3, 32e9, full)
    assert smallest is not None
    assert (smallest.tensor, smallest.pipeline) == (6, 20)
    assert device_memory(GPT3, replace(full, tensor=4, pipeline=32)).total_bytes <= 32e9


def test_devices_that_states_alone_need() -> None:
    assert devices_for_states(GPT3, 80e9, MIXED) == 35
    assert devices_for_states(SMALL, 24e9, MIXED) == 1


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(SolverError, match="1000 is not a multiple of 16 heads"):
        Transformer(1, 1000, 1, 16, 1)
    with pytest.raises(SolverError, match="16 heads cannot be divided over 3"):
        device_memory(SMALL, replace(MIXED, tensor=3))
    with pytest.raises(SolverError, match="24 layers are too few for 25"):
        device_memory(SMALL, replace(MIXED, pipeline=25))
    with pytest.raises(SolverError, match="batch of 6 is not a multiple of 2 replicas with 2 samples"):
        replace(MIXED, batch=6, replicas=2, micro_batch=2)
