"""Predictions count a process's share of split layers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn

from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.documents.training.tensor import TensorSpec
from jellybean.pipeline import CallArguments, graph_facts, profile_traced, trace
from jellybean.training.tensor_parallel.profile import LayerParts


@pytest.mark.parametrize(("conv", "divided"), [("replicated", True), ("data", False)])
def test_bytes_and_seconds_of_split_layers_are_divided(conv, divided):
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8))
    traced = trace(net, CallArguments.of((torch.randn(4, 8),)))
    facts = graph_facts(traced, (torch.randn(4, 8),))
    profile = profile_traced(traced, facts, (torch.randn(4, 8),), runs=1)
    document = TrainingDocument(
        kind="Training",
        model="nets.py:net",
        data="nets.py:rows",
        epochs=1,
        batch=8,
        optimizer=OptimizerSpec(name="sgd", lr=0.1),
        tensor=TensorSpec(ways=2, conv=conv),
    )
    parts = LayerParts(traced, facts, document).profile(profile, 2, 4)
    bias = 8 if conv == "replicated" else 4  # the second layer is split by its inputs, or by its outputs
    expected = [4 * (8 * 16 + 16) / 2, 4 * (16 * 8 / 2 + bias) + 4 * 16]  # the profile joins small layers to these two
    assert [layer.parameter_bytes for layer in parts.graph.layers] == pytest.approx(expected)
    assert list(parts.trained_bytes) == pytest.approx(expected)
    norm_s = next(
        seconds for name, seconds in profile.node_seconds.items() if name.endswith("3")
    )  # a layer norm computes whole rows
    for whole, part, rest_s in zip(profile.graph.layers, parts.graph.layers, [(0.0, 0.0), norm_s], strict=True):
        for way, name in enumerate(("forward_s", "backward_s")):
            divided_s = (getattr(whole, name) - rest_s[way]) / (2 if divided else 1)
            assert getattr(part, name) == pytest.approx(divided_s + rest_s[way])
