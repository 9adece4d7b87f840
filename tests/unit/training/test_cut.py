"""A model cut between any two operations gives the same outputs; shapes and sizes may cross too."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("sklearn", reason="the example's data")

from jellybean.pipeline.torch_graph import graph_facts  # noqa: E402
from jellybean.pipeline.torch_trace import CallArguments, trace  # noqa: E402
from jellybean.pipeline.user_functions import load_function  # noqa: E402
from jellybean.training.stages.cut import cut_module  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline"


def test_every_place():
    torch.manual_seed(0)
    module = load_function("nets.py", "Transformer", EXAMPLE)(8, 1)
    inputs = (torch.randn(3, 8, 8),)
    traced = trace(module, CallArguments.of(inputs))
    facts = graph_facts(traced, inputs)
    units = facts.units
    expected = module(*inputs)
    for place in range(1, len(units)):
        stage_of = {name: int(number >= place) for number, unit in enumerate(units) for name in unit}
        cut = cut_module(traced, facts, stage_of)
        crossing = cut.stages[0].module(*(inputs[index] for index in cut.stages[0].inputs.arguments))
        assert all(isinstance(value, torch.Tensor) for value in crossing)
        own = [inputs[index] for index in cut.stages[1].inputs.arguments]
        assert torch.equal(cut.stages[1].module(*crossing, *own)[0], expected)
