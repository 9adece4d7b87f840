"""A model cut between any two operations gives the same outputs; shapes and sizes may cross too."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("sklearn", reason="the example's data")

from jellybean.pipeline.user_functions import load_function  # noqa: E402
from jellybean.training.stages.cut import cut_module, trace  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline"


def test_every_place():
    torch.manual_seed(0)
    module = load_function("nets.py", "Transformer", EXAMPLE)(8, 1)
    inputs = (torch.randn(3, 8, 8),)
    traced = trace(module, inputs)
    nodes = [node.name for node in traced.graph.nodes if node.op.startswith("call_")]
    expected = module(*inputs)
    for place in range(1, len(nodes)):
        cut = cut_module(traced, {node: int(number >= place) for number, node in enumerate(nodes)}, inputs)
        crossing = cut.stages[0](*inputs)
        assert all(isinstance(value, torch.Tensor) for value in crossing)
        assert torch.equal(cut.stages[1](*crossing), expected)
