"""A rank keeps no weights but those of its stages, wherever they come from and however layers are split."""

from __future__ import annotations

import sys

import pytest

from tests.support.skips import Absent

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.integration.training.models.live_case import FILE, LAYERS, WIDTH, SetUp, write_layers
from tests.integration.training.ranks import run_ranks


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_a_rank_keeps_the_weights_of_its_stages_only(tmp_path):
    write_layers(tmp_path)
    cases = [SetUp(str(tmp_path), 4), SetUp(str(tmp_path), 4, FILE), SetUp(str(tmp_path), 2, tensor=2)]
    for case, ranks in zip(cases, run_ranks(4, cases), strict=True):
        for kept, staged in ranks:
            assert kept == staged, case
        assert sum(sum(staged) for _, staged in ranks) == LAYERS * WIDTH**2
        assert all(staged for _, staged in ranks)
