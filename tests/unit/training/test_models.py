"""Models built without memory for their weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.training.models.building import fill, load_model, load_skeleton
from tests.integration.training.models.evaluation_case import TwoModes


def _document() -> TrainingDocument:
    name = "tests.integration.training.models.evaluation_case"
    optimizer = OptimizerSpec(name="sgd", lr=0.1)
    return TrainingDocument(
        kind="Training", model=f"{name}:two_modes", data=f"{name}:rows_of_three_classes", epochs=1, batch=4,
        optimizer=optimizer,
    )  # fmt: skip


def test_a_skeleton_has_the_module_without_its_weights(tmp_path):
    whole, skeleton = load_model(_document(), tmp_path), load_skeleton(_document(), tmp_path)

    assert isinstance(skeleton, TwoModes)
    shapes = [[(n, v.shape, v.dtype, v.requires_grad) for n, v in one.named_parameters()] for one in (whole, skeleton)]
    assert shapes[0] == shapes[1]
    assert {value.untyped_storage().nbytes() for value in skeleton.parameters()} == {8}
    assert skeleton.last.weight is skeleton.middle.weight
    assert torch.equal(skeleton.norm.running_var, torch.ones(6))  # buffers are real
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"  # only models of the call are built without weights


def test_a_skeleton_is_filled(tmp_path):
    whole, skeleton = load_model(_document(), tmp_path), load_skeleton(_document(), tmp_path)

    fill(skeleton, whole.state_dict())

    for name, value in whole.state_dict().items():
        assert torch.equal(skeleton.state_dict()[name], value)


HOOKED = """\
import torch
class Hooked(torch.nn.Module):
    def __init__(self, before, way):
        super().__init__()
        weight = torch.nn.Parameter(torch.ones(3))
        if before:
            hook(weight, way)
        self.weight = weight
        if not before:
            hook(self.weight, way)
    def forward(self, x):
        return x * self.weight
def hook(weight, way):
    if way == "gradient":
        weight.register_hook(lambda gradient: gradient * 2)
    else:
        weight.register_post_accumulate_grad_hook(doubled)
def doubled(weight):
    weight.grad.mul_(2)
def before_gradient():
    return Hooked(True, "gradient")
def after_gradient():
    return Hooked(False, "gradient")
def before_accumulated():
    return Hooked(True, "accumulated")
def after_accumulated():
    return Hooked(False, "accumulated")
"""


@pytest.mark.parametrize("name", ["before_gradient", "after_gradient", "before_accumulated", "after_accumulated"])
def test_a_skeleton_has_the_hooks_of_its_weights(tmp_path, name):
    (tmp_path / "hooked.py").write_text(HOOKED)
    module = load_skeleton(_document().model_copy(update={"model": f"hooked.py:{name}"}), tmp_path)
    fill(module, {"weight": torch.ones(3)})
    module(torch.ones(3)).sum().backward()
    assert torch.equal(module.weight.grad, torch.full((3,), 2.0))
