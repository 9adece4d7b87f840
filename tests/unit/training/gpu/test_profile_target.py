"""Layers are timed on the rank's device and in its precision."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jellybean.pipeline import TRACERS, CallArguments, ProfileTarget, graph_facts, profile_traced, trace

RUNS = 2


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.first(x).relu() + torch.zeros(8, device=x.device))


class _MatrixProducts(TorchDispatchMode):
    """Counts matrix products by device and type."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if "addmm" in str(function) or "aten.linear" in str(function):
            self.counted[tensors[0].device.type, tensors[0].dtype] += 1
        return function(*args, **(kwargs or {}))


def _profile(tracer: str, target: ProfileTarget | None):
    module, arguments = _Model(), CallArguments.of((torch.ones(3, 4),))
    traced = trace(module, arguments, tracer=tracer)
    facts = graph_facts(traced, arguments.tensors)
    with _MatrixProducts() as products:
        profile = profile_traced(traced, facts, arguments.tensors, runs=RUNS, target=target)
    assert all(value.device.type == "cpu" for value in module.parameters())
    return profile, products.counted


@pytest.mark.parametrize("tracer", TRACERS)
def test_operations_are_timed_on_the_target(tracer):
    """On meta, where an operation that mixed devices would fail; the model itself stays where it is."""
    profile, counted = _profile(tracer, ProfileTarget(torch.device("meta")))
    assert counted["meta", torch.float32] == 2 * (RUNS + 1)  # each layer, once more for warming up
    assert counted["cpu", torch.float32] == 2  # the values for the operations that follow
    assert [layer.parameter_bytes for layer in profile.graph.layers] == [4 * 40, 4 * 18]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in profile.graph.layers)


@pytest.mark.parametrize("tracer", TRACERS)
def test_operations_are_timed_in_the_precision(tracer):
    _, counted = _profile(tracer, ProfileTarget(precision=torch.bfloat16))
    assert counted["cpu", torch.bfloat16] == 2 * (RUNS + 1)
    _, counted = _profile(tracer, None)
    assert set(counted) == {("cpu", torch.float32)}
