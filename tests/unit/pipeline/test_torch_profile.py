"""Profiles of torch modules: layers, crossing bytes, tied weights. Needs torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.skips import Absent, NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from torch.utils.checkpoint import checkpoint

from jellybean.errors import JellyBeanError
from jellybean.pipeline import profile_model, read_profile
from jellybean.pipeline.torch_graph import graph_facts
from jellybean.pipeline.torch_profile import _HostInstant, profile_module, profile_traced
from jellybean.pipeline.torch_stages import StageChain, stage_graph
from jellybean.pipeline.torch_trace import CallArguments
from jellybean_solver.pipeline import TopologyLevel, partition

nn = torch.nn


class Skip(nn.Module):
    """A skip connection, a weight used twice, and an activation that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.second.weight = self.first.weight
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.first(x))
        return self.last(self.second(y) + y)


class Branching(Skip):
    """Branches on a value, which torch.fx cannot trace."""

    def forward(self, x):
        if x.shape[0] > 0 and isinstance(x, torch.Tensor):
            return super().forward(x)
        raise TypeError("not a tensor")


@pytest.mark.slow
def test_a_sequence() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = profile_module(net, (torch.randn(6, 1, 8, 8),))
    conv, linear = found.graph.layers
    assert (conv.name, linear.name) == ("0", "5")
    assert conv.activation_bytes == 6 * 64 * 4
    assert conv.parameter_bytes == 4 * (4 * 9 + 4 + 8)
    assert linear.parameter_bytes == 4 * (64 * 5 + 5)
    assert min(layer.forward_s for layer in found.graph.layers) > 0
    assert min(layer.backward_s for layer in found.graph.layers) > 0
    assert found.graph.edges == ((0, 1),)
    assert found.tracer == "torch.fx"
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())  # statistics too


@pytest.mark.slow
@pytest.mark.parametrize("module", [Skip, Branching])
def test_skips_and_tied_weights(module) -> None:
    found = profile_module(module(), (torch.randn(2, 8),))
    assert found.tracer == ("torch.export" if module is Branching else "torch.fx")
    assert len(found.graph.layers) == 4  # two linear layers, the sum, the last
    assert set(found.graph.edges) == {(0, 1), (0, 2), (1, 2), (2, 3)}
    assert found.graph.crossing_bytes(0b0011) == 2 * 2 * 8 * 4  # the skip crosses beside the second layer's output
    ((name, layers),) = found.tied.items()
    assert name == "first.weight"
    assert len(layers) == 2


def test_every_layer_has_both_passes() -> None:
    found = profile_module(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), (torch.randn(8, 16),))
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in found.graph.layers)


def test_from_the_command_line_to_a_partition(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "def make():\n"
        "    blocks = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()) for _ in range(4)]\n"
        "    return torch.nn.Sequential(*blocks), (torch.randn(8, 32),)\n",
        encoding="utf-8",
    )
    found = profile_model(f"{tmp_path}/nets.py:make", seconds=0.05)
    (tmp_path / "layers.txt").write_text(found.to_text(), encoding="utf-8")
    graph = read_profile(tmp_path / "layers.txt")
    assert len(graph.layers) == 4
    assert len(partition(graph, [TopologyLevel(2, 1e12)]).stages) >= 1
    assert len(found.cuts) == 3
    with pytest.raises(JellyBeanError, match="no function 'other'"):
        profile_model(f"{tmp_path}/nets.py:other")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 7", "returned int;"),
        ("pass", "returned nothing;"),
        ("return torch.nn.Linear(2, 2), torch.ones(1, 2)", r"returned \(Linear, Tensor\);"),
        ("return torch.nn.Linear(2, 2), (torch.ones(1, 2),), 3", r"returned \(Linear, tuple, int\);"),
        ("return torch.ones(1, 2), (torch.ones(1, 2),)", r"returned \(Tensor, tuple\);"),
    ],
)
def test_a_function_that_returns_something_else(body: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(f"import torch\ndef make():\n    {body}\n", encoding="utf-8")
    with pytest.raises(JellyBeanError, match=f"nets.py:make {told} it must return"):
        profile_model(f"{tmp_path}/nets.py:make")


def test_a_module_that_no_tracer_follows() -> None:
    class Odd(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(JellyBeanError, match=r"neither torch\.fx nor torch\.export"):
        profile_module(Odd(), (torch.randn(3),))


def test_a_module_that_is_called_again_shares_its_weights() -> None:
    linear = nn.Linear(4, 4)
    found = profile_module(nn.Sequential(linear, nn.ReLU(), linear), (torch.randn(2, 4),))
    assert found.tied == {"0.weight": ("0", "0:module_2"), "0.bias": ("0", "0:module_2")}
    with pytest.raises(JellyBeanError, match="cannot be run on these inputs"):
        profile_module(linear, (torch.randn(2, 3),))


def test_operations_that_write_in_place_are_timed_on_the_same_values() -> None:
    class Buckets(nn.Module):
        """Integers that are written in place and then index a table, as T5's relative positions do."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.table, self.last = nn.Embedding(8, 4), nn.Embedding(8, 4), nn.Linear(4, 2)

        def forward(self, words):
            places = torch.arange(words.shape[1]).repeat(words.shape[0], 1) * (self.words(words).sum(2) < 99)
            places.add_(1)
            return self.last(self.words(words) + self.table(places))

    found = profile_module(Buckets(), (torch.randint(0, 8, (3, 6)),))
    assert len(found.graph.layers) > 2


def test_frozen_weights_take_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    module[0].requires_grad_(False)
    found = profile_module(module, (torch.randn(8, 64),))
    assert [layer.backward_s > 0 for layer in found.graph.layers] == [False, True, True]
    assert found.trained_bytes[0] == 0.0
    assert found.trained_bytes[1] == found.graph.layers[1].parameter_bytes


def test_names_are_unique() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.other(self.layer(x)) + x) + self.other(x)

    names = [layer.name for layer in profile_module(Twice(), (torch.randn(2, 4),)).graph.layers]
    assert len(set(names)) == len(names)


def test_arguments_by_name(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x, scale=1.0, *, shift=None):\n"
        "        return super().forward(x) * scale + shift\n"
        "def make():\n"
        "    return Net(4, 4), {'x': torch.randn(2, 4), 'shift': torch.randn(2, 4)}\n",
        encoding="utf-8",
    )
    (layer,) = profile_model(f"{tmp_path}/nets.py:make", seconds=0.05).graph.layers
    assert layer.parameter_bytes == 4 * (4 * 4 + 4)


def test_time_in_which_others_have_the_core_does_not_count():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        waited, preempted = _HostInstant(5.0, 1.0, 0), _HostInstant(5.0, 1.0, 1)
        assert _HostInstant(0.0, 0.0, 0).seconds_to(preempted) == 1.0
        assert _HostInstant(0.0, 0.0, 0).seconds_to(waited) == 5.0  # an operation may wait for something else
        torch.set_num_threads(2)
        assert _HostInstant(0.0, 0.0, 0).seconds_to(preempted) == 5.0  # its other threads compute meanwhile
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_preemptions_are_counted():
    """On one core with another process that computes, the thread is preempted; waiting is none."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until_s = time.monotonic() + 60
        before = _HostInstant.now().preemptions
        while (preemptions := _HostInstant.now().preemptions) == before and time.monotonic() < until_s:
            pass
        assert preemptions > before
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, cores)


class Halved(nn.Module):
    """Its backward hook fails where its input gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_full_backward_hook(lambda _, given, coming: (given[0] * 0.5,))

    def forward(self, x):
        return torch.sin(self.layer(x))


class Again(nn.Module):
    """Its layer by the reentrant checkpoint, which takes no choice of leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=True) if torch.is_grad_enabled() else self.layer(x)


def test_layers_are_timed_with_the_gradients_of_their_inputs() -> None:
    profile_module(nn.Sequential(nn.Linear(8, 8), Halved(), nn.Linear(8, 3)), (torch.ones(4, 8),), runs=1)


def test_no_gradient_stays_behind() -> None:
    net = nn.Sequential(nn.Linear(8, 8), Again(), nn.Linear(8, 3))
    arguments = CallArguments.of([torch.ones(4, 8)])
    traced = stage_graph(StageChain(list(net)), arguments)
    profile_traced(traced, graph_facts(traced, arguments.tensors), arguments.tensors, runs=1)
    assert all(value.grad is None for value in net.parameters())
