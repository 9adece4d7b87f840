"""LoRA on models of a library: adapters of a pipeline equal those of one process; merged, ONNX answers the same."""

from __future__ import annotations

import sys

import pytest

from tests.support.skips import Absent, NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)
pytest.importorskip("tokenizers", reason=NotInstalled.TRANSFORMERS)

from tests.integration.training.models import lora_case, zoo

zoo.declare_torchvision()
pytest.importorskip("peft", reason=NotInstalled.PEFT)

import onnx

from jellybean.documents import ExportSpec, LoraSpec
from jellybean.pipeline import CallArguments
from jellybean.training import export_variant, served_arguments, write_model
from jellybean.training.models.lora import with_adapters
from tests.integration.training.models.lora_case import LoraUpdates, one_process
from tests.integration.training.ranks import run_ranks

pytestmark = pytest.mark.slow

SCHEDULES = ("gpipe", "1f1b", "interleaved", "chimera", "zb-h1", "zb-v")
ZOO = "tests.integration.training.models.zoo"
OWN = "tests.integration.training.models.lora_case:adapted_bert"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
WORKFLOW = """\
kind: Workflow
name: words
sources:
  text: {tier: edge, rate: 1/s, message: 1 KiB}
operators:
  answer:
    inputs: [text]
    variants:
      planned: {}
slo: {accuracy: 50}
"""


@LINUX
def test_adapters_equal_one_process():
    """With an adapter in the last layer only, nothing at all is sent to the rank below it."""
    cases = [LoraUpdates("zb-v", 2), LoraUpdates("1f1b", 2, lora_case.LAST)]
    below, last = _check(2, cases)[1]
    assert not below["trained"]
    assert last["trained"]
    assert below["sent"][1] > 0
    assert last["sent"].get(0, 0) == 0


@LINUX
@pytest.mark.nightly
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(("model", "lora"), [(f"{ZOO}:llama", True), (f"{ZOO}:gpt2", True), (OWN, False)])
def test_all_schedules(model, lora, devices):
    cases = [LoraUpdates(name, devices, model=model) for name in SCHEDULES]
    results = _check(devices, cases if lora else [LoraUpdates(name, devices, None, model) for name in SCHEDULES])
    assert all(own["trained"] for own in results[1])  # 1f1b
    assert all(results[1][rank]["sent"][rank - 1] > 0 for rank in range(1, devices))


@LINUX
@pytest.mark.nightly
def test_nothing_is_sent_below_the_last_layer_on_four_processes():
    last = LoraSpec(rank=4, targets=("model.layers.3.mlp.*", "lm_head"))
    for found in _check(4, [LoraUpdates(name, 4, last, f"{ZOO}:llama") for name in ("gpipe", "1f1b", "zb-h1")]):
        lowest = min(rank for rank, own in enumerate(found) if own["trained"])
        assert lowest > 1
        for rank, own in enumerate(found):
            assert (own["sent"].get(rank - 1, 0) > 0) == (rank > lowest), rank


def _check(world, cases):
    """All ranks' results; the weights equal those of one process."""
    results = run_ranks(world, cases, seconds=600.0)
    expected = {(case.model, case.lora): one_process(case) for case in cases}
    for case, found in zip(cases, results, strict=True):
        weights, wanted = found[0]["weights"], expected[case.model, case.lora]
        assert weights.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.allclose(weights[name], value, rtol=1e-10, atol=1e-12), (case, name)
        assert any(value.any() for name, value in wanted.items() if ".lora_B." in name)
    return results


def test_the_merged_model_answers_the_same_as_onnx(tmp_path):
    """A model of two inputs, with grouped queries; its labels are for training only."""
    (tmp_path / "workflow.yaml").write_text(WORKFLOW, encoding="utf-8")
    torch.manual_seed(3)
    base = zoo.SMALL_LLAMA.model()
    names = base.state_dict().keys()
    module = with_adapters(base, LoraUpdates("1f1b", 1).document)
    for name, value in base.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(value)
    rows = zoo.ZOO["gpt2"].data()["test"]
    inputs = served_arguments(CallArguments.of((), rows), "model")
    assert set(inputs.names) == {"attention_mask", "input_ids"}
    expected = module.eval()(**{name: rows[name] for name in inputs.names}).logits.detach()

    model = write_model(module, tmp_path)
    spec = ExportSpec(operator="answer", variant="tuned", model="tuned.onnx")
    exported = export_variant(model, spec, tmp_path, inputs)

    assert model.state_dict().keys() == names
    found = model(**{name: rows[name] for name in inputs.names}).logits
    assert torch.allclose(found, expected, atol=1e-5)
    assert exported.max_difference <= 1e-4
    assert {port.name for port in onnx.load(exported.path).graph.input} == set(inputs.names)
