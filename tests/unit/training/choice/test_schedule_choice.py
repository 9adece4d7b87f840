"""Schedule `auto`: the fastest that fits, and none with stale gradients unless allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import OptimizerSpec, SyncSpec, TrainingDocument
from jellybean.pipeline import CallArguments, TorchProfile, graph_facts, profile_traced, trace
from jellybean.training import LinkSpeed, TrainingError, choose_schedule, cut_module
from jellybean.training.choice.cuts import cut_layers
from jellybean.training.choice.schedule_choice import choose_from_profile
from jellybean_solver.pipeline import SCHEDULES, Layer, LayerGraph, make_schedule

nn = torch.nn
LINK = LinkSpeed(1.25e9)


def _asked(**more: object) -> TrainingDocument:
    own = {"kind": "Training", "model": "a:b", "data": "a:b", "epochs": 1, "batch": 64, "microbatches": 8}
    return TrainingDocument(**{**own, "optimizer": OptimizerSpec(name="sgd", lr=0.1), "devices": 2, **more})


@pytest.fixture(scope="module")
def traced():
    layers = [part for _ in range(8) for part in (nn.Linear(64, 64), nn.ReLU())]
    inputs = (torch.randn(8, 64),)
    graph = trace(nn.Sequential(*layers), CallArguments.of(inputs))
    return graph, graph_facts(graph, inputs), inputs


@pytest.fixture(scope="module")
def profile(traced) -> TorchProfile:
    """The module's sizes with equal layer times, so that the choice does not depend on the machine."""
    measured = profile_traced(*traced, runs=1)
    layers = tuple(replace(layer, forward_s=1e-3, backward_s=2e-3) for layer in measured.graph.layers)
    return replace(measured, graph=LayerGraph(layers, measured.graph.edges))


@pytest.mark.slow
def test_the_fastest_with_a_flush(profile):
    found = choose_from_profile(profile, _asked(), 1.0, LINK)
    assert SCHEDULES.keys() - {found.name} == found.rejected.keys()
    assert "staleness" in found.rejected["pipedream"]
    assert found.period is None
    assert found.name not in ("naive", "gpipe")
    late = choose_from_profile(profile, _asked(staleness=True), 1.0, LINK)
    assert not any("staleness" in why for why in late.rejected.values())


def test_memory_binds(profile):
    free = choose_from_profile(profile, _asked(schedule="gpipe"), 1.0, LINK)
    fits = choose_from_profile(profile, _asked(memory_bytes=free.memory_bytes - 1.0), 1.0, LINK)
    assert "gpipe" in fits.rejected
    assert "needs" in fits.rejected["gpipe"]
    with pytest.raises(TrainingError, match="no schedule can be used"):
        choose_from_profile(profile, _asked(memory_bytes=1000.0), 1.0, LINK)


def test_memory_has_the_buffers_of_sums(profile):
    """1f1b on 2 devices: 4 layers of 64 x 64 weights and 64 biases each, which the copies of a stage sum."""
    stage_bytes = 4 * 4 * (64 * 64 + 64)
    host, gpu = profile, replace(profile, device=torch.device("cuda"))

    def needed(where: TorchProfile, **more: object) -> float:
        return choose_from_profile(where, _asked(schedule="1f1b", **more), 1.0, LINK).memory_bytes

    ring = {"sync": SyncSpec(way="ring"), "replicas": 2}
    assert needed(host, sync=SyncSpec(way="ring")) == needed(host)  # one copy of each stage: nothing to sum
    assert needed(host, replicas=2) == needed(gpu, replicas=2) == needed(host) + stage_bytes
    assert needed(host, **ring) == needed(host) + stage_bytes + stage_bytes / 2  # a message is half a bucket
    assert needed(gpu, **ring) == needed(host)  # the buffers are in host memory


def test_chimeras_copies_need_buffers(profile):
    """Every device holds a copy of both stages."""
    both_bytes = 2 * 4 * 4 * (64 * 64 + 64)
    by_torch, by_naive = (
        choose_from_profile(profile, _asked(schedule="chimera", sync=SyncSpec(way=way)), 1.0, LINK).memory_bytes
        for way in ("torch", "naive")
    )
    assert by_naive == by_torch + both_bytes  # the whole bucket of the other copy, for each of the two stages


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_stages_are_the_model(traced, name):
    """Every chosen schedule can be cut, and its stages compute what the module does."""
    graph, facts, inputs = traced
    found = choose_schedule(graph, facts, inputs, _asked(schedule=name), 1.0, torch.device("cpu"), LINK)
    cut = cut_module(graph, facts, found.stage_of)
    assert len(cut.stages) == make_schedule(name, 2, 8).stages
    values = inputs
    for stage in cut.stages:
        values = stage.module(*values)
    assert torch.allclose(values[0], graph.graph(*inputs)[0])


def test_no_stage_is_empty():
    graph = LayerGraph(tuple(Layer(str(i), 0.0, 0.0, 1.0) for i in range(4)), ((0, 1), (1, 2), (2, 3)))
    assert sorted(sum(cut_layers(graph, 4), ())) == [0, 1, 2, 3]
    with pytest.raises(TrainingError, match="too few for 5 stages: it can be cut between 0, 1, 2, 3; take fewer"):
        cut_layers(graph, 5)


def test_slow_links_count(profile):
    """Where a message takes longer than all layers together, the fewest messages win; the prediction has its time."""
    fast = choose_from_profile(profile, _asked(), 1.0, LINK)
    slow = choose_from_profile(profile, _asked(), 1.0, LinkSpeed(1.25e9, latency_s=1.0))
    assert slow.microbatch_s > fast.microbatch_s + 0.1
    assert slow.costs.transfer_s[0] > 1.0
    assert len(slow.layers) == 2  # schedules with several stages a device send more often
