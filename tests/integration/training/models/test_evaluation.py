"""Evaluation through the pipeline is that of the whole model on one device."""

from __future__ import annotations

import sys

import pytest

from tests.support.skips import Absent

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.integration.training.models.evaluation_case import MeasureTwoModes, two_modes
from tests.integration.training.ranks import run_ranks

CASES = [
    MeasureTwoModes("1f1b", 2),
    MeasureTwoModes("interleaved", 2),
    MeasureTwoModes("zb-v", 2),
    MeasureTwoModes("chimera", 2),
    MeasureTwoModes("gpipe", 1, replicas=2),
]


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_of_a_model_with_two_modes():
    for case, found in zip(CASES, run_ranks(2, CASES), strict=True):
        (accuracy, loss), (whole_accuracy, whole_loss), state = found[0]
        assert found[1][0] == found[0][0], case  # every rank knows what was measured
        assert accuracy == whole_accuracy, case
        assert loss == pytest.approx(whole_loss, rel=1e-12), case
        torch.manual_seed(0)
        first = two_modes().state_dict()
        assert state.keys() == first.keys()
        unchanged = {name.split(".")[0] for name in first if torch.equal(first[name], state[name])}
        assert unchanged == {"unused", "aside"}  # the loss does not depend on them
        assert torch.equal(state["last.weight"], state["middle.weight"])
