"""Averages of the weights are those of plain torch; they are what is evaluated and handed back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.integration.training.averages_case import Averaged, averages_in_plain_torch
from tests.integration.training.ranks import run_ranks


def test_averages_over_stages_and_replicas(tmp_path):
    cases = [
        Averaged("1f1b", str(tmp_path / "1f1b")),
        Averaged("chimera", str(tmp_path / "chimera")),
        Averaged("gpipe", str(tmp_path / "replicas"), replicas=2),
        Averaged("pipedream", str(tmp_path / "pipedream"), model="plain"),
    ]
    expected = averages_in_plain_torch()
    for case, (first, second) in zip(cases, run_ranks(2, cases), strict=True):
        epochs, weights, (accuracy, loss) = first
        assert epochs == second[0], case  # every rank knows what was measured
        assert epochs[-1][0] == pytest.approx(loss, rel=1e-10), case
        assert epochs[-1][1] == {"accuracy": pytest.approx(accuracy), "error": pytest.approx(1.0 - accuracy / 100)}
        if case.model == "tied":
            for name, value in expected.items():
                assert torch.allclose(weights[name], value, rtol=1e-10, atol=1e-12), (case, name)
