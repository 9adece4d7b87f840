"""Planned stages: a plan's layers and devices become the run's, and what does not fit is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import OptimizerSpec, PlannedStage, StagePlan, TrainingDocument
from jellybean.documents.training.tensor import TensorSpec
from jellybean.pipeline import CallArguments, TorchProfile, graph_facts, profile_traced, trace
from jellybean.training import LinkSpeed, ScheduleChoice, TrainingError
from jellybean.training.choice.branches import branch_stages, choose_for_branches
from jellybean.training.choice.planned import (
    PlannedChoice,
    PlannedStages,
    choose_for_stages,
    stages_by_objective,
    stages_of_plan,
)
from jellybean_solver.pipeline import Layer, LayerGraph, schedule_violations

nn = torch.nn
FAST, SLOW = LinkSpeed(1e12), LinkSpeed(1e3)
SECONDS = (3e-3, 3e-3, 3e-3, 1e-3, 1e-3, 1e-3)  # forward; a backward takes twice as long


def _asked(**more: object) -> TrainingDocument:
    own = {"kind": "Training", "model": "a:b", "data": "a:b", "epochs": 1, "batch": 64, "microbatches": 8}
    return TrainingDocument(**{**own, "optimizer": OptimizerSpec(name="sgd", lr=0.1), "devices": 4, **more})


@pytest.fixture(scope="module")
def profile() -> TorchProfile:
    """Six layers named 0 to 5, of which the first three have nine tenths of the work."""
    inputs = (torch.randn(8, 16),)
    traced = trace(nn.Sequential(*(nn.Linear(16, 16) for _ in SECONDS)), CallArguments.of(inputs))
    measured = profile_traced(traced, graph_facts(traced, inputs), inputs, runs=1)
    layers = tuple(
        replace(layer, forward_s=seconds, backward_s=2 * seconds)
        for layer, seconds in zip(measured.graph.layers, SECONDS, strict=True)
    )
    return replace(measured, graph=LayerGraph(layers, measured.graph.edges))


def profile_layers(count: int) -> tuple[Layer, ...]:
    return tuple(Layer(str(number), 1.0, 1.0, 1.0) for number in range(count))


def _plan(*stages: tuple[str, tuple[int, ...]]) -> StagePlan:
    """Stages as (layers, devices); `012` is three layers."""
    return StagePlan(stages=tuple(PlannedStage(layers=tuple(names), devices=at) for names, at in stages))


def _choose(profile: TorchProfile, plan: StagePlan, **more: object) -> PlannedChoice:
    document = _asked(**more)
    stages = stages_of_plan(plan, "plan.json", profile.graph, document)
    return choose_for_stages(stages, profile, document, 1.0, FAST)


def test_a_plan_is_trained_as_it_is(profile):
    choice = _choose(profile, _plan(("012", (3, 0, 1)), ("345", (2,))))
    assert (choice.name, choice.period) == ("1f1b", None)
    assert choice.layers == ((0, 1, 2), (3, 4, 5))
    assert {choice.stage_of[node] for layer in (0, 1, 2) for node in profile.members[layer]} == {0}
    schedule = choice.schedule(4, 8)
    assert schedule_violations(schedule) == ()
    assert schedule.device_of == ((3, 2), (0, 2), (1, 2))
    assert choice.costs.forward_s == pytest.approx((9e-3, 3e-3))


def test_without_a_flush_only_if_it_is_allowed(profile):
    plan = _plan(("012", (0, 1, 2)), ("345", (3,)))
    late = _choose(profile, plan, staleness=True)
    assert (late.name, late.period) == ("pipedream", 3)
    assert late.bubble == pytest.approx(0.0, abs=1e-6)  # 3-1 of stages of 9 and 3 ms
    assert "1f1b" in late.rejected
    assert _choose(profile, plan, schedule="dapple").name == "dapple"
    with pytest.raises(TrainingError, match="a plan trains by 1f1b, dapple, pipedream, not by zb-v"):
        _choose(profile, plan, schedule="zb-v")


def test_a_plan_of_another_model_or_number_of_processes(profile):
    with pytest.raises(TrainingError, match="the model has no x, y, and the plan has no 4, 5"):
        _choose(profile, _plan(("0123", (0, 1, 2)), ("xy", (3,))))
    with pytest.raises(TrainingError, match=r"plan.json is for 2 devices \(1-1\), and the run has 4"):
        _choose(profile, _plan(("012", (0,)), ("345", (1,))))
    with pytest.raises(TrainingError, match="1 of stage 0 needs 0 of stage 1"):
        _choose(profile, _plan(("1", (0, 1, 2)), ("02345", (3,))))
    with pytest.raises(
        TrainingError, match=r"stage 0 has 3 replicas, but an update has 1 micro-batch: --set microbatches=3, or"
    ):
        _choose(profile, _plan(("012", (0, 1, 2)), ("345", (3,))), microbatches=1)


@pytest.mark.parametrize("objective", ["pipedream", "dapple", "alpa"])
def test_an_objective_plans_with_the_measured_times(profile, objective):
    """Over links that cost nothing all devices are used."""
    document = _asked(objective=objective)
    stages = stages_by_objective(profile.graph, document, 1.0, FAST)
    assert sorted(device for stage in stages for device in stage.devices) == [0, 1, 2, 3]
    assert schedule_violations(choose_for_stages(stages, profile, document, 1.0, FAST).schedule(4, 8)) == ()


@pytest.mark.parametrize("objective", ["pipedream", "dapple"])
def test_devices_that_would_make_the_run_slower_are_refused(profile, objective):
    with pytest.raises(TrainingError, match=r"1 of 4 devices are the fastest.*--set devices=1"):
        stages_by_objective(profile.graph, _asked(objective=objective), 1.0, SLOW)


class Branches(nn.Module):
    """A stem, two branches and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right, self.join = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        return self.join(torch.cat([self.left(x).tanh(), self.right(x).tanh()], 0))


@pytest.fixture(scope="module")
def branches():
    inputs = (torch.randn(8, 16),)
    traced = trace(Branches(), CallArguments.of(inputs))
    facts = graph_facts(traced, inputs)
    measured = profile_traced(traced, facts, inputs, runs=1)
    layers = tuple(replace(layer, forward_s=1e-3, backward_s=1e-3) for layer in measured.graph.layers)
    return replace(measured, graph=LayerGraph(layers, measured.graph.edges)), (traced, facts)


def test_branches_run_at_the_same_time(branches):
    profile, model = branches
    names = [layer.name for layer in profile.graph.layers]
    devices = [1 if name == "right" else 0 for name in names]
    choice = choose_for_branches(devices, profile, model, _asked(devices=2, microbatches=1), 1.0, FAST)
    assert (choice.name, choice.period, choice.graph.devices) == ("branches", None, (0, 0, 1, 0))
    assert choice.graph.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert [names[own[0]] for own in choice.layers][:3] == ["stem", "left", "right"]
    sum_s = sum(layer.compute_s for layer in profile.graph.layers)
    assert choice.microbatch_s == pytest.approx(sum_s - 2e-3)  # the right branch beside the left one
    assert schedule_violations(choice.schedule(2, 6)) == ()
    with pytest.raises(TrainingError, match="remove `schedule: 1f1b`"):
        choose_for_branches(devices, profile, model, _asked(devices=2, schedule="1f1b"), 1.0, FAST)


def test_branches_are_planned_with_the_measured_times(branches):
    """Over free links the branches are on two devices; over slow ones one device is faster, which is refused."""
    profile, _ = branches
    document = _asked(objective="branches", devices=2)
    stages = stages_by_objective(profile.graph, document, 1.0, FAST)
    home = {profile.graph.layers[layer].name: stage.devices for stage in stages for layer in stage.layers}
    assert home["left"] != home["right"]
    with pytest.raises(TrainingError, match="1 of 2 devices are the fastest"):
        stages_by_objective(profile.graph, document, 1.0, SLOW)


def test_stages_end_where_another_device_needs_them_and_begin_where_they_need_one():
    graph = LayerGraph(profile_layers(5), ((0, 1), (0, 2), (1, 3), (2, 4), (3, 4)))
    assert branch_stages(graph, [0, 0, 1, 0, 0]) == (((0,), (1, 3), (2,), (4,)), (0, 0, 1, 0))
    assert branch_stages(graph, [0, 1, 0, 1, 0]) == (((0,), (1, 3), (2,), (4,)), (0, 1, 0, 0))
    assert branch_stages(graph, [0] * 5) == (((0, 1, 2, 3, 4),), (0,))


def test_memory_binds_an_objective(profile):
    with pytest.raises(TrainingError, match="objective: pipedream: no partition fits into 100 bytes"):
        stages_by_objective(profile.graph, _asked(objective="pipedream", memory_bytes=100.0), 1.0, FAST)


@pytest.mark.parametrize("objective", ["pipedream", "branches"])
def test_an_objective_and_a_plan_count_a_process_s_parts_of_split_layers(objective, tmp_path):
    """Two layers of 256 KiB, and their gradients and states, are 1.5 MiB whole and 0.75 MiB in parts."""
    inputs = (torch.randn(8, 16),)
    traced = trace(nn.Sequential(nn.Linear(16, 4096), nn.ReLU(), nn.Linear(4096, 16)), CallArguments.of(inputs))
    facts = graph_facts(traced, inputs)
    plan = StagePlan(
        objective=objective, stages=(PlannedStage(layers=tuple(_layer_names(traced, facts, inputs)), devices=(0,)),)
    )
    (tmp_path / "plan.json").write_text(plan.model_dump_json(), encoding="utf-8")

    def choose(**more: object) -> ScheduleChoice:
        document = _asked(devices=1, microbatches=1, **more)
        return PlannedStages(tmp_path)(traced, facts, inputs, document, 1.0, torch.device("cpu"), FAST)

    for asked in ({"objective": objective}, {"plan": "plan.json"}):
        whole, parts = choose(**asked).memory_bytes, choose(tensor=TensorSpec(ways=2), **asked).memory_bytes
        most = (whole + parts) / 2
        assert parts < 0.7 * whole
        assert choose(tensor=TensorSpec(ways=2), memory_bytes=most, **asked).memory_bytes == parts
        with pytest.raises(TrainingError, match=r"fits into|needs"):
            choose(memory_bytes=most, **asked)


def _layer_names(traced, facts, inputs) -> list[str]:
    return [layer.name for layer in profile_traced(traced, facts, inputs, runs=1).graph.layers]
