"""Checkpoints have whole weights, so runs resume with another `tensor`; stale weights; what is refused."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import OptimizerSpec
from jellybean.documents.training.tensor import TensorSpec
from tests.integration.training.ranks import run_ranks
from tests.integration.training.tensor.tensor_case import Split, in_plain_torch, pictures_net

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
ONE, TWO = TensorSpec(ways=1), TensorSpec(ways=2)
SHORT = {"epochs": 2, "ema": 0.9}


def _close(weights, expected, tolerance=1e-10):
    for name, value in expected.items():
        assert float((weights[name] - value).norm() / value.norm()) < tolerance, name


def test_runs_resume_with_another_number_of_processes_a_layer(tmp_path):
    fewer, more = str(tmp_path / "fewer"), str(tmp_path / "more")
    rest = {"ema": 0.9}
    run_ranks(2, [Split(fewer, TWO, more=SHORT)])
    run_ranks(1, [Split(more, ONE, more=SHORT)])
    (alone,) = run_ranks(1, [Split(fewer, ONE, more=rest)])[0]
    together = run_ranks(2, [Split(more, TWO, more=rest)])[0]
    expected = in_plain_torch(Split(more, ONE, more=rest))["weights"]
    for own in (alone, together[0]):
        assert len(own["losses"]) == 1  # only the last epoch was left
        _close(own["weights"], expected)


def _same_stages(folder):
    """A plan's file: without a flush a layer's stage sets the age of its weights, and measured times vary."""
    layers = [["0", "1", "3"], ["6", "8", "10"]]
    stages = [{"layers": own, "devices": [device]} for device, own in enumerate(layers)]
    path = folder / "plan.json"
    path.write_text(json.dumps({"stages": stages}), encoding="utf-8")
    return str(path)


def test_stale_weights_and_refused_settings(tmp_path):
    plan = _same_stages(tmp_path)
    stale = {"schedule": "pipedream", "microbatches": 4, "batch": 8, "epochs": 1, "plan": plan}
    plain, split = (
        Split(str(tmp_path / str(spec.ways)), spec, model=pictures_net, devices=2, more=stale) for spec in (ONE, TWO)
    )
    (expected, _) = run_ranks(2, [plain])[0]
    found = run_ranks(4, [split])[0]
    assert found[0]["layers"] == {"6": "columns", "8": "rows"}
    _close(found[0]["weights"], expected["weights"])
    adafactor = {"optimizer": OptimizerSpec(name="Adafactor", lr=0.1)}
    with pytest.raises(AssertionError, match="tensor: Adafactor computes with whole matrices"):  # by the first rank
        run_ranks(2, [Split(str(tmp_path / "whole"), TWO, more=adafactor)])
