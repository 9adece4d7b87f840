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
