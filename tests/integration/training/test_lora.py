"""LoRA on a library's model: adapters of a pipeline equal those of one process."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason="the models: pip install transformers")
pytest.importorskip("tokenizers", reason="the models: pip install transformers")

from tests.integration.training.lora_case import LAST, LoraUpdates, one_process  # noqa: E402
from tests.integration.training.ranks import run_ranks  # noqa: E402

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
DEFAULT = ("q_proj", "v_proj")


@LINUX
def test_adapters_equal_one_process():
    """And with adapters in the last layer only, nothing at all is sent to the rank below it."""
    cases = [LoraUpdates("1f1b", 2, DEFAULT), LoraUpdates("zb-v", 2, DEFAULT), LoraUpdates("1f1b", 2, LAST)]
    everywhere, _, last = run_ranks(2, cases, seconds=300.0)
    _check(cases, [everywhere, _, last])
    assert not last[0]["trained"]
    assert last[1]["trained"]
    assert last[0]["sent"][1] > 0
    assert last[1]["sent"].get(0, 0) == 0
    assert everywhere[0]["trained"]
    assert everywhere[1]["sent"][0] > 0


def _check(cases, results):
    expected = {case.targets: one_process(case) for case in cases}
    for case, found in zip(cases, results, strict=True):
        weights, wanted = found[0]["weights"], expected[case.targets]
        assert weights.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.allclose(weights[name], value, rtol=1e-10, atol=1e-12), (case, name)
        assert all(".lora_" in name for own in found for name in own["trained"])
        assert any(value.any() for name, value in wanted.items() if ".lora_B." in name)
