"""Padded rows of a language model: uneven micro-batches on two ranks measure what whole batches on one device do."""

from __future__ import annotations

import sys

import pytest

from tests.support.skips import Absent, NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)
pytest.importorskip("tokenizers", reason=NotInstalled.TRANSFORMERS)

from tests.integration.training.models.padded_case import TrainPadded, whole_batches
from tests.integration.training.ranks import run_ranks

pytestmark = pytest.mark.slow

EXACT = {"cross_entropy": 1e-9, "model": 1e-6}  # transformers computes its loss in float32


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_padded_rows_in_uneven_micro_batches(tmp_path):
    cases = [
        *(TrainPadded(loss, "1f1b", 2, str(tmp_path)) for loss in EXACT),
        TrainPadded("model", "gpipe", 1, str(tmp_path), replicas=2),
    ]
    for case, found in zip(cases, run_ranks(2, cases), strict=True):
        assert found[0] == found[1], case  # every rank knows what was measured
        assert 0.0 < found[0][-1].accuracy < 100.0
        for epoch, expected in zip(found[0], whole_batches(of_model=case.loss == "model"), strict=True):
            assert epoch.accuracy == pytest.approx(expected.accuracy, rel=1e-12), case
            assert epoch[:3] == pytest.approx(expected[:3], rel=EXACT[case.loss]), case
