"""Loss scaling by GradScaler's rules, master weights in checkpoints, and precisions that a schedule refuses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from typing import get_args

import torch.distributed as dist
from torch import nn

from jellybean.documents import TrainingDocument
from jellybean.training import StageCopy, TrainingError, UpdateSettings, WeightUpdates
from jellybean.training.checkpoints.states import collect_state, restore_state
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.evaluation_pass import EvaluationPass, EvaluationStage
from jellybean.training.stages.loss_scale import LossScale
from jellybean.training.stages.master_weights import MasterWeights
from jellybean.training.stages.precision import PRECISIONS
from jellybean.training.stages.stage import StageSettings
from jellybean_solver.pipeline import Action, ActionKind


def _stage(short: torch.dtype | None):
    torch.manual_seed(1)
    stage = StageCopy(nn.Linear(3, 3), StageSettings(masters=MasterWeights(short) if short else None))
    updates = WeightUpdates(
        {(0, 0): stage}, lambda own: torch.optim.Adam(own.values(), lr=1e-3), ProcessGroups(), UpdateSettings(True)
    )
    return stage, updates


def _update(stage: StageCopy, updates: WeightUpdates) -> None:
    stage.begin_iteration({})
    updates.begin_iteration(())
    stage.gradient = {name: torch.ones_like(value) for name, value in stage.versions.exact.items()}
    updates.update(Action(ActionKind.UPDATE, 0, 0, 1), stage, 0)


def test_the_document_names_the_precisions():
    assert get_args(TrainingDocument.model_fields["precision"].annotation) == tuple(PRECISIONS)


def test_a_test_loss_is_computed_in_float32():
    """As in training: autocast computes losses of bfloat16 scores in float32."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        stage = EvaluationStage(nn.Linear(3, 3), (0,), {}, torch.bfloat16)
        found = []

        def collect(microbatch, tensors):
            found.append((tensors[0].dtype, nn.functional.cross_entropy(tensors[0], torch.tensor([0, 1])).dtype))

        evaluation = EvaluationPass({0: stage}, [0], None, device=0)
        evaluation.run(1, 1, lambda microbatch, arguments: (torch.ones(2, 3),), {0: {}}, collect)
    finally:
        dist.destroy_process_group()
    assert found == [(torch.bfloat16, torch.float32)]


def test_float16_needs_a_flush():
    with pytest.raises(TrainingError, match="pipedream updates its stages at different times, and float16 must skip"):
        PRECISIONS["float16"].check_schedule("pipedream", flushes=False)
    for name, precision in PRECISIONS.items():
        precision.check_schedule("1f1b", flushes=True)
        if name != "float16":
            precision.check_schedule("pipedream", flushes=False)


def test_updates_too_small_for_short_weights_add_up_in_their_masters():
    stage, updates = _stage(torch.bfloat16)
    start = {name: value.clone() for name, value in stage.versions.exact.items()}
    for _ in range(20):
        _update(stage, updates)
    for name, value in stage.versions.exact.items():
        assert torch.allclose(value, start[name] - 0.02, atol=1e-4)
    assert torch.equal(stage.module.weight, stage.versions.exact["weight"].bfloat16())


def test_a_checkpoint_holds_the_masters():
    """So that it resumes exactly, in this precision or another."""
    stage, updates = _stage(torch.bfloat16)
    for _ in range(3):
        _update(stage, updates)
    saved = {name: value.detach().clone() for name, value in collect_state({(0, 0): stage}, updates).items()}
    assert {value.dtype for value in saved.values()} == {torch.float32}
    for short in (torch.bfloat16, None):
        other, others = _stage(short)
        restore_state(saved, {(0, 0): other}, others)
        again = collect_state({(0, 0): other}, others)
        assert all(torch.equal(again[name], value) for name, value in saved.items())
        assert torch.equal(other.module.weight.float(), saved["weight/weight"].to(short or torch.float32).float())
        _update(other, others)
    _update(stage, updates)
    assert torch.equal(other.module.weight, stage.versions.exact["weight"])


def test_frozen_matrices_are_rounded_without_a_copy():
    module = nn.Linear(3, 3)
    module.weight.requires_grad_(False)
    before = module.weight.detach().clone()
    versions = StageCopy(module, StageSettings(masters=MasterWeights(torch.bfloat16))).versions
    assert not versions.is_rounded("weight")
    assert torch.equal(versions.exact["weight"], before.bfloat16())
    assert versions.exact["bias"].dtype is torch.float32


@pytest.mark.parametrize("pattern", ["1" * 9, "0110111110", "0000", "1110111011101"])
def test_the_scale_follows_grad_scaler(pattern):
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler, own = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3), LossScale(64.0, interval=3)
    for finite in pattern:
        scaler.scale(torch.ones(1))
        parameter.grad = torch.full((1,), 1.0 if finite == "1" else float("nan"))
        scaler.step(optimizer)
        scaler.update()
        own.update(finite=finite == "1")
        again = LossScale(interval=3)
        again.restore(own.state())
        assert own.scale == again.scale == scaler.get_scale()
        own = again


def test_a_step_is_restored_where_the_optimizer_counts_it():
    """On the parameter's device if capturable (or fused), otherwise on the host. The meta device stands for a GPU."""
    stage, updates = _stage(None)
    _update(stage, updates)
    saved = collect_state({(0, 0): stage}, updates)
    for capturable in (False, True):
        other = {(0, 0): StageCopy(nn.Linear(3, 3, device="meta"), device=torch.device("meta"))}
        again = WeightUpdates(
            other,
            lambda own, capturable=capturable: torch.optim.Adam(own.values(), capturable=capturable),
            ProcessGroups(),
            UpdateSettings(True),
        )
        restore_state(saved, other, again)
        states = again.optimizers[0, 0].state.values()
        assert {own["step"].device.type for own in states} == {"meta" if capturable else "cpu"}
        assert {own["exp_avg"].device.type for own in states} == {"meta"}
