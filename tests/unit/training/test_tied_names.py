"""A checkpoint's tensors under all names of a tied weight."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.checkpoints.states import belongs_to, renamed
from jellybean.training.checkpoints.tied_names import TensorsByAnyName, by_all_names, tied_names
from jellybean.training.stages.stage import StageCopy
from tests.integration.training.gradients.nets import Tied

NAMES = ("words.weight", "head.weight", "again.weight")
BIASES = ("layers.1.bias", "layers.2.bias")


def test_all_names_of_each_tensor_that_has_several():
    assert tied_names(Tied()) == {**dict.fromkeys(NAMES, NAMES), **dict.fromkeys(BIASES, BIASES)}


def test_a_tensor_has_all_names_of_its_weight():
    saved = {
        "weight/head.weight": torch.ones(1),
        "weight/again.weight": torch.zeros(1),
        "state/head.weight/exp_avg": torch.full((1,), 3.0),
        "average/layers.2.bias": torch.full((1,), 4.0),
        "buffer/mean": torch.full((1,), 5.0),
    }
    tensors = TensorsByAnyName(saved, tied_names(Tied()))
    assert float(tensors["weight/words.weight"]) == float(tensors["weight/head.weight"]) == 1
    assert float(tensors["weight/again.weight"]) == 0  # its own name comes first
    assert float(tensors["state/again.weight/exp_avg"]) == 3
    assert float(tensors["average/layers.1.bias"]) == 4
    assert "weight/layers.1.bias" not in tensors
    assert len(tensors) == len(list(tensors)) == 3 + 3 + 2 + 1


def test_the_name_of_a_state_changes_in_its_middle():
    assert renamed("state/a.b/exp_avg", "c") == "state/c/exp_avg"
    assert renamed("weight/a.b", "c") == "weight/c"


def test_fingerprints_of_frozen_weights_have_all_names():
    assert by_all_names({"head.weight": "1", "other": "2"}, tied_names(Tied())) == {
        **dict.fromkeys(NAMES, "1"),
        "other": "2",
    }


def test_a_rank_reads_the_files_that_have_its_weights_by_another_name():
    module = Tied()
    stage = torch.nn.Module()
    stage.head = module.head
    needs = belongs_to({(1, 0): StageCopy(stage)}, tied_names(module))
    assert needs("weight/words.weight")
    assert needs("state/again.weight/exp_avg")
    assert not needs("weight/layers.1.bias")
