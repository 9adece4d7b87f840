"""Stages call the user's modules: what these count, keep and assign in Python is that of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import ReadPlan
from jellybean.training.data.rows import MicrobatchIndex
from jellybean.training.data.sampler import MicrobatchSampler
from tests.integration.training.models.called_case import DOCUMENT, LR, ROWS, train_called
from tests.integration.training.ranks import run_ranks
from tests.support.training_inputs import load_training_inputs


def test_one_update_equals_one_process():
    inputs = load_training_inputs(DOCUMENT, Path())
    module = inputs.module
    reader = inputs.data.train.read(ReadPlan(MicrobatchSampler(ROWS, ROWS, 4, 1)))
    for index in (MicrobatchIndex(0, number) for number in range(4)):
        loss = inputs.loss(module(*reader.inputs(index, (0,))), reader.target(index, torch.device("cpu")))
        (loss * reader.weight(index) / ROWS).backward()
    with torch.no_grad():
        for value in module.parameters():
            value.sub_(LR * value.grad)
    test = inputs.data.test.example(ROWS)
    expected = float(inputs.loss(module.eval()(*test.inputs.tensors), test.target(slice(None))).detach())
    (found, _) = run_ranks(2, [train_called])[0]
    assert found["loss"] == pytest.approx(expected, rel=1e-12)
    assert "forward changes self.calls in Python" in found["warning"]
    assert found["state"].keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        assert torch.allclose(found["state"][name], value, rtol=1e-12, atol=1e-14), name
