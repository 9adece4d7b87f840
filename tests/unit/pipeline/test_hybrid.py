"""Bytes of hybrid parallelism: the published figures, and a count of what each device of a small network sends."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest

from jellybean.pipeline import HybridTraffic, save_hybrid
from jellybean_solver import SolverError
from jellybean_solver.pipeline import PUBLISHED_NETWORKS, LayerKind, LayerStrategy, NetworkLayer, sent_bytes

CONV, LINEAR = LayerKind
DATA, TENSOR = LayerStrategy
HYBRID = {CONV: DATA, LINEAR: TENSOR}


@pytest.mark.parametrize(
    ("name", "parameters", "batch", "data_mb", "hybrid_mb"),
    [("alexnet", 61_100_840, 32, 366.6, 29.0), ("vgg16", 138_357_544, 64, 830.1, 140.9)],
)
def test_published_megabytes_on_four_workers(
    name: str, parameters: int, batch: int, data_mb: float, hybrid_mb: float
) -> None:
    layers = PUBLISHED_NETWORKS[name]
    assert sum(layer.parameters for layer in layers) == parameters
    everywhere = dict.fromkeys(LayerKind, DATA)
    assert round(sum(sent_bytes(layers, everywhere, 4, batch)) / 1e6, 1) == data_mb
    assert round(sum(sent_bytes(layers, HYBRID, 4, batch)) / 1e6, 1) == hybrid_mb


@pytest.mark.parametrize("name", PUBLISHED_NETWORKS)
def test_few_parameters_are_convolutions_and_layers_fit(name: str) -> None:
    layers = PUBLISHED_NETWORKS[name]
    share = sum(layer.parameters for layer in layers if layer.kind is CONV) / sum(layer.parameters for layer in layers)
    assert 0.03 < share < 0.11
    fits = [(up.outputs, down.inputs) for up, down in pairwise(layers)]
    assert all(outputs >= inputs for outputs, inputs in fits)  # equal, or a pooling layer between


def exchanged(layers: list[NetworkLayer], ways: list[LayerStrategy], workers: int, batch: int) -> list[float]:
    """Values that a worker sends, collective by collective, with (N - 1) / N of a tensor in each half all-reduce."""
    share, samples = (workers - 1) / workers, workers * batch
    sent = []
    for index, (layer, way) in enumerate(zip(layers, ways, strict=True)):
        if way is DATA:
            sent.append(share * layer.parameters + share * layer.parameters)  # reduce-scatter, all-gather
            continue
        values = share * samples * layer.inputs  # all-gather
        if index:
            values += share * samples * layer.inputs  # reduce-scatter of their gradients
        if index + 1 == len(layers) or ways[index + 1] is DATA:
            values += 2 * share * samples * layer.outputs
        sent.append(values)
    return sent


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("conv", LayerStrategy)
@pytest.mark.parametrize("linear", LayerStrategy)
def test_any_order_of_data_and_tensor_layers(workers: int, conv: LayerStrategy, linear: LayerStrategy) -> None:
    for kinds in product(LayerKind, repeat=4):
        layers = [NetworkLayer(f"l{i}", kind, 7 + i, 3 + i, 5 * i + 1) for i, kind in enumerate(kinds)]
        ways = [{CONV: conv, LINEAR: linear}[kind] for kind in kinds]
        expected = [4 * values for values in exchanged(layers, ways, workers, 6)]
        assert sent_bytes(layers, {CONV: conv, LINEAR: linear}, workers, 6) == pytest.approx(expected)


def test_what_is_not_positive_is_refused() -> None:
    with pytest.raises(SolverError, match="must be positive"):
        sent_bytes(PUBLISHED_NETWORKS["alexnet"], HYBRID, 0, 1)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_picture_has_two_bars_per_layer(workers: int, tmp_path: Path) -> None:
    picture = tmp_path / "bars.svg"
    save_hybrid(HybridTraffic("alexnet", HYBRID, workers, 32), picture)
    text = picture.read_text(encoding="utf-8")
    for layer in PUBLISHED_NETWORKS["alexnet"]:
        assert f">{layer.name}<" in text
    labels = [">227 MB<", ">7.08 MB<", ">140 kB<"] if workers == 4 else [">0 B<"]
    assert all(label in text for label in labels)
