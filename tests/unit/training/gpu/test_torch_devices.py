"""Stages move as a whole: no operation of a moved stage makes or reads a tensor on the device where it was traced."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jellybean.pipeline import TRACERS, CallArguments, ProfileTarget, graph_facts, move_module, profile_traced, trace
from jellybean.pipeline.torch_devices import operation_on
from jellybean.training import cut_module
from jellybean.training.stages.stage import StageSettings

META = torch.device("meta")


class _OnlyOn(TorchDispatchMode):
    """Any operation that makes or reads a tensor of another device is an error."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, found)):
            if isinstance(value, torch.Tensor) and value.device != self.device:
                raise AssertionError(f"{function} touches a tensor on {value.device}")
        return found


class _MakesTensors(nn.Module):
    """Makes tensors in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.plain = torch.arange(4.0)

    def forward(self, x):
        x = self.first(x) + torch.zeros(4) + torch.arange(4, device=x.device)
        x = x * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.plain
        x = x.to("cpu") + torch.ones_like(x, device="cpu") + torch.ones((x.shape[0], 1))
        return self.second(x).cpu()


def _cut(module: nn.Module, tracer: str):
    arguments = CallArguments.of((torch.ones(3, 4),))
    traced = trace(module, arguments, tracer=tracer)
    facts = graph_facts(traced, arguments.tensors)
    names = [name for unit in facts.units for name in unit]
    half = next(number for number, name in enumerate(names) if "second" in name or "linear_1" in name)
    return cut_module(traced, facts, {name: int(number >= half) for number, name in enumerate(names)})


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_moved_stage_touches_its_device_only(tracer):
    torch.manual_seed(0)
    module = _MakesTensors()
    cut = _cut(module, tracer)
    x = torch.ones(3, 4)
    expected = module(x)
    values: tuple = (x,)
    for stage in cut.stages:
        values = stage.module(*values)
        values = values if isinstance(values, tuple) else (values,)
    assert torch.equal(values[0], expected)  # cutting changed nothing
    values = (torch.empty(3, 4, device=META),)
    for stage in cut.stages:
        copy = stage.copy(StageSettings(), None, META)
        with _OnlyOn(META):
            values = copy.module(*values)
        values = values if isinstance(values, tuple) else (values,)
        assert all(value.device == META for value in values)


def test_without_rewriting_the_graph_a_moved_stage_touches_the_cpu():
    """Guards the test above."""
    stage = _cut(_MakesTensors(), "torch.export").stages[0]
    with pytest.raises((AssertionError, RuntimeError)), _OnlyOn(META):
        stage.module.to(META)(torch.empty(3, 4, device=META))


def test_moving_back_computes_the_same():
    module = _MakesTensors()
    cut = _cut(module, "torch.export")
    x = torch.ones(3, 4)
    values: tuple = (x,)
    for stage in cut.stages:
        values = move_module(stage.module, torch.device("cpu"))(*values)
        values = values if isinstance(values, tuple) else (values,)
    assert torch.equal(values[0], module(x))
    assert all(isinstance(stage.module, fx.GraphModule) for stage in cut.stages)


class _UnderSettings(nn.Module):
    """Has parts under autocast and no_grad, which torch.export makes graphs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            added = torch.arange(4) * 2.0
        with torch.autocast(device_type="cpu", enabled=False):
            x = self.first(x) * 2
        return self.second(x) + added


class _UnderNoGrad(_UnderSettings):
    """Autocast has no meta device, so without it."""

    def forward(self, x):
        with torch.no_grad():
            added = torch.arange(4) * 2.0 + x
        return self.second(self.first(x)) + added


def _autocast_devices(module: nn.Module) -> set[str]:
    graphs = [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    return {node.args[0] for node in nodes if getattr(node.target, "__name__", "") == "wrap_with_autocast"}


def test_parts_under_other_settings_move_too():
    traced = trace(_UnderSettings(), CallArguments.of((torch.ones(3, 4),)), tracer="torch.export")
    assert _autocast_devices(traced.graph) == {"cpu"}
    for part in traced.graph.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.target, node.args, node.kwargs = operation_on(node, torch.device("cuda", 0))
                assert torch.device("cpu") not in tree_leaves((node.args, node.kwargs))
    assert _autocast_devices(traced.graph) == {"cuda"}


def test_a_profile_moves_parts_under_other_settings():
    arguments = CallArguments.of((torch.ones(3, 4),))
    traced = trace(_UnderNoGrad(), arguments, tracer="torch.export")
    facts = graph_facts(traced, arguments.tensors)
    profile = profile_traced(traced, facts, arguments.tensors, runs=1, target=ProfileTarget(META))
    assert sum(layer.parameter_bytes for layer in profile.graph.layers) == 2 * 4 * 20
