"""A model cut between any two operations gives the same outputs; shapes and sizes may cross too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("sklearn", reason=NotInstalled.SCIKIT_LEARN)

from jellybean.pipeline import CallArguments, graph_facts, load_function, trace
from jellybean.training import cut_module

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline"


@pytest.mark.slow
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


@pytest.mark.parametrize("trained", [True, False])
def test_a_shared_weight_is_reduced_if_it_is_trained(trained):
    """Frozen copies in several stages stay equal without a message."""
    first, last = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    last.weight = first.weight.requires_grad_(trained)
    inputs = (torch.randn(3, 4),)
    traced = trace(torch.nn.Sequential(first, torch.nn.Linear(4, 4), last), CallArguments.of(inputs))
    facts = graph_facts(traced, inputs)
    stage_of = {name: number for number, unit in enumerate(facts.units) for name in unit}
    cut = cut_module(traced, facts, stage_of)
    assert len(cut.stages) == 3
    assert bool(cut.tied) == trained
