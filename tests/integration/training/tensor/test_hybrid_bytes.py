"""A CNN hybrid sends the bytes that `pipeline hybrid` computes, which are the published ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline import PUBLISHED_NETWORKS, LayerKind, LayerStrategy, sent_bytes
from tests.integration.training.ranks import run_ranks
from tests.integration.training.tensor.hybrid_case import BATCHES, WORKERS, OneHybridUpdate

pytestmark = pytest.mark.slow

PUBLISHED_MB = {"alexnet": 29.0, "vgg16": 141}
HYBRID = {LayerKind.CONV: LayerStrategy.DATA, LayerKind.LINEAR: LayerStrategy.TENSOR}


@pytest.mark.parametrize("network", ["alexnet", pytest.param("vgg16", marks=pytest.mark.nightly)])
def test_counted_bytes_are_those_predicted_and_published(network):
    layers = PUBLISHED_NETWORKS[network]
    by_layer = dict(zip(layers, sent_bytes(layers, HYBRID, WORKERS, BATCHES[network]), strict=True))
    convolutions = sum(size for layer, size in by_layer.items() if layer.kind is LayerKind.CONV)
    linear = sum(size for layer, size in by_layer.items() if layer.kind is LayerKind.LINEAR)
    for own in run_ranks(WORKERS, [OneHybridUpdate(network)], seconds=600)[0]:
        assert len(own["split"]) == 3  # the linear layers
        assert own["layers"] == linear
        assert own["gradients"] == pytest.approx(convolutions, rel=1e-4)  # a ring's segments differ by some bytes
        assert (own["layers"] + own["gradients"]) / 1e6 == pytest.approx(PUBLISHED_MB[network], rel=2e-3)
