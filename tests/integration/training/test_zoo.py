"""Models of libraries, given as the libraries give them: one update of a pipeline equals one process."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason="the models: pip install transformers")
pytest.importorskip("tokenizers", reason="the models: pip install transformers")

from tests.integration.training.ranks import run_ranks  # noqa: E402
from tests.integration.training.zoo import ZOO  # noqa: E402
from tests.integration.training.zoo_case import ZooUpdate, one_process  # noqa: E402

SCHEDULES = ("gpipe", "1f1b", "interleaved", "chimera", "zb-h1", "zb-v")
SOME = [ZooUpdate("gpt2", "1f1b", 2), ZooUpdate("t5", "zb-v", 2), ZooUpdate("timm_vit", "chimera", 2)]


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_some():
    _check(2, SOME)


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("model", ZOO)
def test_all(model, devices):
    schedules = [name for name in SCHEDULES if devices % 2 == 0 or name in ("gpipe", "1f1b", "zb-h1")]
    _check(devices, [ZooUpdate(model, name, devices) for name in schedules])


def _check(world: int, cases: list[ZooUpdate]) -> None:
    for case, found in zip(cases, run_ranks(world, cases, seconds=600.0), strict=True):
        loss, expected, evaluation = one_process(case)
        assert abs(sum(sum(own["losses"].values()) for own in found) - loss) <= 1e-6 * abs(loss), case
        weights = found[0]["weights"]
        assert weights.keys() == expected.keys()
        for name, value in expected.items():
            if case.schedule == "chimera" and not name.endswith((".weight", ".bias")):
                continue  # its two copies see half of the micro-batches each, and so do their statistics
            assert torch.allclose(weights[name], value, rtol=1e-10, atol=1e-12), (case, name)
        if case.schedule != "chimera":
            assert found[0]["evaluation"][0] == evaluation[0]
            assert found[0]["evaluation"][1] == pytest.approx(evaluation[1], rel=1e-6, nan_ok=True)
