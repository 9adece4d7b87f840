"""Models of libraries, given as the libraries give them: one update of a pipeline equals one process."""

from __future__ import annotations

import multiprocessing
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.skips import Absent, NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)
pytest.importorskip("tokenizers", reason=NotInstalled.TRANSFORMERS)

from jellybean.documents import LoraSpec
from jellybean.pipeline import profile_traced
from jellybean.training import cut_module, find_graphs
from jellybean.training.choice.cuts import cut_layers
from tests.integration.training.models.zoo import ZOO
from tests.integration.training.models.zoo_case import ZooUpdate, in_sequence, one_process
from tests.integration.training.ranks import run_ranks
from tests.support.training_inputs import load_training_inputs

pytestmark = pytest.mark.slow

SCHEDULES = ("gpipe", "1f1b", "interleaved", "chimera", "zb-h1", "zb-v")
SOME = [ZooUpdate("gpt2", "1f1b", 2), ZooUpdate("t5", "zb-v", 2), ZooUpdate("timm_vit", "chimera", 2)]


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_some():
    _check(2, SOME)


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("model", ZOO)
def test_all(model, devices):
    schedules = [name for name in SCHEDULES if devices % 2 == 0 or name in ("gpipe", "1f1b", "zb-h1")]
    _check(devices, [ZooUpdate(model, name, devices) for name in schedules])


ASYNCHRONOUS = {  # the version that a stage's gradient is of, from the papers, on two devices
    "pipedream": lambda stage, update: max(0, update - (1 - stage)),
    "pipedream-2bw": lambda stage, update: max(0, update - 1),
    "wpipe": lambda stage, update: update if stage >= 2 else max(0, update - 1),
}


@pytest.mark.nightly
@pytest.mark.parametrize("model", [name for name in ZOO if name not in ("gpt2", "t5")])  # these share weights
def test_asynchronous(model):
    _check_asynchronous([ZooUpdate(model, name, 2) for name in ASYNCHRONOUS])


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["llama", "gpt2"])  # gpt2's shared weight is frozen, so that it may be in two stages
def test_asynchronous_with_adapters(model):
    pytest.importorskip("peft", reason=NotInstalled.PEFT)
    _check_asynchronous([ZooUpdate(model, name, 2, lora=LoraSpec(rank=4)) for name in ASYNCHRONOUS])


def _check_asynchronous(cases):
    for case, found in zip(cases, run_ranks(2, cases, seconds=600.0), strict=True):
        stage_of = found[0]["stage_of"] | found[1]["stage_of"]
        rule = ASYNCHRONOUS[case.schedule]
        expected = in_sequence(case, found[0]["period"], rule, stage_of)
        exact = 1e-6 if ZOO[case.model].loss == "model" else 1e-10  # transformers computes its losses in float32
        start = dict(load_training_inputs(case.document, Path()).module.named_parameters())
        moved = max(float((value - start[name].detach()).abs().max()) for name, value in expected.items())
        for name, value in expected.items():
            assert torch.allclose(found[0]["weights"][name], value, rtol=0.0, atol=exact * moved), (case, name)


@pytest.mark.nightly
@pytest.mark.parametrize("model", ZOO)
def test_cuts_are_legal_whatever_the_times(model):
    """Profiled ten times beside other load; every cut runs, and computes what the model computes."""
    case = ZooUpdate(model, "1f1b", 4)
    inputs = load_training_inputs(case.document, Path())
    example = inputs.example(case.document).inputs
    graphs = find_graphs(inputs.module, example)
    facts = graphs.recipes[0].facts
    buffers = {name: value.clone() for name, value in graphs.training.graph.named_buffers()}
    with _load():
        for _ in range(10):
            profile = profile_traced(graphs.training, facts, example.tensors, runs=1)
            for stages in (2, 4):
                layers = cut_layers(profile.graph, stages)
                stage_of = {n: s for s, own in enumerate(layers) for layer in own for n in profile.members[layer]}
                _runs_alike(graphs.training, cut_module(graphs.training, facts, stage_of), example.tensors, buffers)


@contextmanager
def _load():
    """Two processes that compute meanwhile, so that measured times differ from run to run."""
    others = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(2)]
    for process in others:
        process.start()
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        sum(range(1_000_000))


def _runs_alike(traced, cut, tensors, buffers) -> None:
    torch.manual_seed(0)
    expected = traced.graph(*tensors)
    _restore(traced.graph, buffers)
    torch.manual_seed(0)
    values: tuple[torch.Tensor, ...] = ()
    for stage in cut.stages:
        values = stage.module(*values, *(tensors[index] for index in stage.inputs.arguments))
    _restore(traced.graph, buffers)
    for one, other in zip(expected, values, strict=True):
        assert torch.equal(one, other)


def _restore(graph, buffers) -> None:
    with torch.no_grad():
        for name, value in graph.named_buffers():
            value.copy_(buffers[name])


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
